"""Distillation: the loss against the paper, teachers of every kind, and an ensemble as the teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import classgap
from classgap.checks import InputError
from classgap.losses import DistillationLoss
from classgap.models import Ensemble
from classgap.suites import Suite, Task, Variant
from classgap.suites.jobs import JobFolder
from classgap.suites.work import run_job
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.run import start
from reference import experts

K = 4
SMALL = ["data.per_class=13", "epochs=2", "batch=24", "optim.lr=0.05", "model=mlp-16", "data.augment=crop"]
TAUGHT = [*SMALL, "method=distillation"]


class Said(nn.Module):
    """A network whose logits are a multiple of its inputs."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.factor * inputs, inputs


def batch(samples: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits, inputs = torch.randn(2, samples, K, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(K, (samples,), generator=generator), inputs


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 0.5), (4.0, 0.9), (20.0, 1.0)])
@pytest.mark.parametrize("factors", [[2.0], [1.0, -3.0]])
def test_the_loss_is_that_of_the_paper(temperature: float, alpha: float, factors: list[float]) -> None:
    logits, target, inputs = batch()
    criterion = DistillationLoss(K, temperature=temperature, alpha=alpha).double()
    networks = [Said(factor) for factor in factors]
    criterion.bind_teacher(networks[0] if len(networks) == 1 else Ensemble(networks))
    criterion.observe(inputs)
    teachers = [(factor * inputs).numpy() for factor in factors]
    expected = experts.taught(logits.detach().numpy(), target.tolist(), teachers, temperature, alpha)
    assert criterion(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_the_gradient_does_not_shrink_with_the_temperature() -> None:
    """At high temperatures it is (z - v) / K for centred logits, sec. 2.1, whatever the temperature."""
    logits, target, inputs = batch()
    criterion = DistillationLoss(K, temperature=500.0, alpha=1.0).double()
    criterion.bind_teacher(Said(1.0))
    criterion.observe(inputs)
    (gradient,) = torch.autograd.grad(criterion(logits, target), logits)
    centred = [values - values.mean(1, keepdim=True) for values in (logits.detach(), inputs)]
    torch.testing.assert_close(gradient * len(logits), (centred[0] - centred[1]) / K, rtol=0.02, atol=1e-3)


def test_geometric_mean_of_teachers() -> None:
    _, _, inputs = batch()
    found = Ensemble([Said(1.0), Said(3.0)], "logits").log_probabilities(inputs, 2.0)
    torch.testing.assert_close(found, inputs.float().log_softmax(1).to(found.dtype), rtol=1e-5, atol=1e-6)


def test_a_teacher_is_needed_for_every_batch() -> None:
    logits, target, inputs = batch()
    criterion = DistillationLoss(K)
    with pytest.raises(InputError, match="bind_teacher"):
        criterion.observe(inputs)
    criterion.bind_teacher(Said(1.0))
    with pytest.raises(InputError, match="observe"):
        criterion(logits, target)


# --- training -------------------------------------------------------------------------------------------------------


def run(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override(list(settings)), folder, accelerator="cpu", **options)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def equal(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_without_weight_a_teacher_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "plain", *SMALL)
    run(tmp_path / "taught", *TAUGHT, "method.alpha=0")
    assert equal(tmp_path / "plain", tmp_path / "taught")
    assert equal(tmp_path / "plain", tmp_path / "taught" / "teacher")


def test_the_teacher_may_be_any_run(tmp_path: Path) -> None:
    """A cosine head, several networks, an ensemble: what counts are the scores that the run itself predicts with."""
    teachers = {
        "cosine": ["method=dbm"],
        "experts": ["method=ncl"],
        "ensemble": ["stage=ensemble", "stage.members=2"],
        "wide": ["model=mlp-24"],
        "learned": ["method=lgm"],
    }
    for name, settings in teachers.items():
        result = run(tmp_path / name, *SMALL, *settings)
        taught = [*TAUGHT, f"teacher={tmp_path / name}", "method.temperature=1"]
        trainer: Any = start(TrainConfig().override(taught), tmp_path / f"from_{name}", accelerator="cpu")
        trainer.criterion.observe(trainer.normalise(trainer.data.test.x))
        (found,) = trainer.criterion._teacher_output
        expected = torch.from_numpy(result.test.scores).log_softmax(1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        trainer.release()
    with pytest.raises(InputError, match="holds several networks"):
        run(tmp_path / "other", *SMALL, "method=gml", f"teacher={tmp_path / 'ensemble'}")


def test_an_ensemble_teaches(tmp_path: Path) -> None:
    settings = [*TAUGHT, "stage=ensemble_teacher", "stage.members=2", "method.base=focal"]
    student = run(tmp_path / "student", *settings)
    run(tmp_path / "ensemble", *SMALL, "method=focal", "stage=ensemble", "stage.members=2")
    assert equal(tmp_path / "student" / "teacher", tmp_path / "ensemble")
    again = run(tmp_path / "again", *TAUGHT, "method.base=focal", f"teacher={tmp_path / 'student' / 'teacher'}")
    assert np.array_equal(again.test.scores, student.test.scores)
    predictor = classgap.load_run(tmp_path / "student")
    np.testing.assert_allclose(predictor.outputs("digits").scores, student.test.scores, rtol=1e-4, atol=1e-5)
    assert {"labels", "teacher"} <= student.history[0]["train"].keys()


class Killed(Exception):
    pass


def test_a_run_killed_anywhere_continues_bit_for_bit(tmp_path: Path) -> None:
    settings = [*TAUGHT, "model=resnet20", "data.per_class=3", "batch=10", "checkpoint_steps=1", "mix=mixup"]
    settings += ["stage=ensemble_teacher", "stage.members=2"]
    for stage, step in (("member1", 2), ("member2", 4), ("", 3)):

        def watch(position: TrainProgress, stage: str = stage, step: int = step) -> None:
            if position.stage == stage and position.step == step and not position.note:
                raise Killed

        with pytest.raises(Killed):
            run(tmp_path / "cut", *settings, watch=watch, resume=True)
    resumed, whole = (run(tmp_path / name, *settings, resume=True) for name in ("cut", "whole"))
    assert np.array_equal(resumed.test.scores, whole.test.scores)
    assert equal(tmp_path / "cut", tmp_path / "whole")


def test_jobs_of_a_suite_share_the_teachers(tmp_path: Path) -> None:
    task = Task("digits", TrainConfig().override([*SMALL, "data.per_class=8", "epochs=1"]))
    variants = (
        Variant("ensemble", settings=("stage=ensemble", "stage.members=2")),
        Variant("student", "distillation", settings=("stage=ensemble_teacher", "stage.members=2")),
        Variant("self", "distillation"),
        Variant("warm", "distillation", {"temperature": 2.0}, settings=("stage=ensemble_teacher", "stage.members=3")),
    )
    for job in Suite("shares", (task,), variants, seeds=(0,)).jobs():
        run_job(job, JobFolder(tmp_path, job))
    assert len(list((tmp_path / "shared").iterdir())) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["stage=ensemble_teacher", "method=mr2"], "set method=distillation method.base=mr2"),
        (["stage=ensemble_teacher", "method=gml"], "learns from the scores of a teacher"),
        (["stage=ensemble_teacher", "teacher=x"], "must be left out"),
        (["stage=ensemble_teacher", "stage.members=1"], "stage.members"),
        (["method.alpha=2"], "alpha must be"),
        (["method.temperature=0"], "temperature must be"),
        (["teacher=nowhere"], "must be the folder of a finished run"),
    ],
)
def test_settings_that_cannot_work_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", *TAUGHT, *settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["distillation", "gml"])
def test_a_teacher_in_double_precision(tmp_path: Path, method: str) -> None:
    """Inputs were in single precision for the teacher alone, which ended in a traceback."""
    settings = ["epochs=1", "data.per_class=12", "model=mlp-8", f"method={method}", "precision=64-true"]
    found = classgap.train(folder=tmp_path / "run", settings=settings)
    assert np.isfinite(found.test.scores).all()
    if method == "distillation":  # and a teacher of another precision
        given = [*settings[:-1], f"teacher={tmp_path / 'run' / 'teacher'}"]
        assert np.isfinite(classgap.train(folder=tmp_path / "given", settings=given).test.scores).all()
