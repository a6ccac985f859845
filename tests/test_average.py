"""Averaged weights: identities, statistics of normalisation, resuming, and what reads the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel, update_bn

import classgap
from classgap.checks import InputError
from classgap.models import build_model
from classgap.training import TrainConfig, train
from classgap.training.average_config import AverageConfig
from classgap.training.averaging import WeightAverage, newest_share
from classgap.training.checkpoint import read_checkpoint
from classgap.training.loop import Trainer
from classgap.training.run import start

SMALL = ["data.per_class=13", "epochs=3", "batch=24", "optim.lr=0.05", "model=mlp-16", "optim.momentum=0.5"]
Weights = dict[str, torch.Tensor]


def fit(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def weights(folder: Path) -> Weights:
    return load_file(folder / "model.safetensors")


def course(folder: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> tuple[Any, list[Weights]]:
    """A finished run, and its weights after every step."""
    found: list[Weights] = []
    update = Trainer._update

    def noting(trainer: Trainer, batch: Any) -> None:
        update(trainer, batch)
        found.append({name: t.clone() for name, t in trainer.model.state_dict().items()})

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", noting)
        return fit(folder, *settings), found


def same(one: Weights, two: Weights) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        (["average=ema", "average.decay=0.8"], lambda done, steps: 0.8 ** (steps - done)),
        (["average=ema", "average.horizon=0.5"], lambda done, steps: (1 - 2 / steps) ** (steps - done)),
        (["average=ema", "average.decay=0.8", "average.start=0.5"], lambda done, steps: 0.8 ** -done * (2 * done > steps)),
        (["average=swa"], lambda done, steps: 4 * done > 3 * steps),
        (["average=swa", "average.start=0.4", "average.every=epoch"], lambda done, steps: done in (steps * 2 // 3, steps)),
    ],
)  # fmt: skip
def test_average_of_the_course(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], share: Any
) -> None:
    _, found = course(tmp_path, monkeypatch, *settings)
    shares = torch.tensor([float(share(done, len(found))) for done in range(1, len(found) + 1)], dtype=torch.float64)
    assert (shares > 0).sum() > 1
    for name, tensor in weights(tmp_path).items():
        stack = torch.stack([step[name] for step in found]).double()
        mean = torch.tensordot(shares / shares.sum(), stack, 1)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
        assert not torch.equal(tensor, found[-1][name])


def test_equal_average_is_that_of_torch() -> None:
    torch.manual_seed(0)
    model = build_model("resnet20", 5, (3, 16, 16))
    ours, theirs = (
        WeightAverage(AverageConfig("swa", start=0.0), {"model": model}),
        AveragedModel(model, use_buffers=True),
    )
    for step in range(4):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor.add_(torch.randn_like(tensor))
        ours.update(step + 1, 4, epoch_ends=False)
        theirs.update_parameters(model)
    ours.apply()
    for name, tensor in theirs.module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-5)


def test_shares_sum_to_one_from_the_first_step_on() -> None:
    config = AverageConfig("ema", decay=0.9)
    mean = torch.zeros(())
    for count in range(1, 6):
        mean.lerp_(torch.ones(()), newest_share(config, count, 100))
        assert float(mean) == pytest.approx(1.0)
    assert newest_share(AverageConfig("ema"), 1, 3) == 1.0  # shorter than any horizon: the newest weights


def test_statistics_of_normalisation_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.optim.swa_utils.update_bn does with the averaged weights and the batches of an epoch."""
    setup = ("model=resnet20", "data.per_class=5", "epochs=2", "average=swa", "average.start=0.2")
    result, found = course(tmp_path, monkeypatch, *setup)
    end = weights(tmp_path)
    plain = build_model("resnet20", 10, (1, 8, 8))
    plain.load_state_dict(end)
    trainer = start(result.config, tmp_path / "batches")
    inputs = [batch.x for batch in trainer.batches.epoch(1)]
    trainer.release()
    update_bn(inputs, plain)
    for name, tensor in plain.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(end[name], tensor, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(end[name], found[-1][name], rtol=1e-2)


def test_frozen_norms_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = (
        "model=resnet20",
        "data.per_class=4",
        "epochs=1",
        "average=ema",
        "optim.lr=0.001",
        "model.freeze_norms=true",
    )
    _, found = course(tmp_path, monkeypatch, *setup)
    assert all(torch.equal(t, found[-1][name]) for name, t in weights(tmp_path).items() if "running" in name)


@pytest.mark.parametrize(
    ("settings", "average"),
    [([], ["average=ema", "average.horizon=0.3"]), (["model=resnet20", "data.per_class=5"], ["average=swa"])],
)
def test_training_itself_is_unchanged(tmp_path: Path, settings: list[str], average: list[str]) -> None:
    plain = fit(tmp_path / "plain", *settings)
    averaged = fit(tmp_path / "averaged", *settings, *average)
    for mine, theirs in zip(averaged.history, plain.history, strict=True):
        assert mine["val"] == theirs["val"]
        assert mine["train"] == theirs["train"]
    saved = [read_checkpoint(tmp_path / name / "checkpoint.pt")["model"] for name in ("plain", "averaged")]
    assert same(*saved)
    assert not same(weights(tmp_path / "plain"), weights(tmp_path / "averaged"))
    assert averaged.history[-1]["average"]["count"] > 1


def test_everything_reads_the_averaged_network(tmp_path: Path) -> None:
    result = fit(tmp_path, "average=ema", "average.horizon=0.3", "data.val_fraction=0.3")
    run = classgap.load_run(tmp_path)
    again = run.outputs("digits")
    np.testing.assert_allclose(again.scores, result.test.scores, rtol=1e-4, atol=1e-5)
    layer = result.test.features @ result.test.weight.T + result.test.bias
    np.testing.assert_allclose(layer, result.test.scores, rtol=1e-4, atol=1e-4)
    correct = result.val.y_pred == result.val.y_true
    balanced = np.mean([correct[result.val.y_true == k].mean() for k in range(10)])
    assert result.history[-1]["average"]["val"]["balanced"] == pytest.approx(balanced)
    assert result.history[-1]["val"]["balanced"] != pytest.approx(balanced)  # of the network in training


def test_what_a_loss_learns_is_averaged_too(tmp_path: Path) -> None:
    result = fit(tmp_path, "average=ema", "average.horizon=0.5", "method=lgm", "epochs=4")
    again = classgap.load_run(tmp_path).outputs("digits")
    np.testing.assert_allclose(again.scores, result.test.scores, rtol=1e-4, atol=1e-4)


CASES = {
    "ema": ["average=ema", "average.horizon=0.3"],
    "swa": ["average=swa", "model=resnet20", "data.per_class=5", "data.augment=crop"],
    "wise": ["average=ema", "average.horizon=0.3", "model.wise=0.7"],
    "sam": ["average=swa", "wrapper=sam", "method=lff"],
    "crt": ["average=ema", "average.horizon=0.3", "stage=crt"],
    "jtt": ["average=swa", "stage=jtt", "model=resnet20", "data.per_class=5"],
    "refit": [
        "average=ema",
        "average.horizon=0.3",
        "stage=gap_dial",
        "stage.refit=true",
        "stage.strength=2",
        "stage.ridge=1",
    ],
    "probe": ["average=ema", "average.horizon=0.3", "stage=linear_probe", "stage.epochs=2"],
    "three_stage": ["average=ema", "average.horizon=0.3", "stage=three_stage", "method=dro_lt"],
    "teacher": ["average=ema", "average.horizon=0.3", "method=gml"],
    "experts": ["average=swa", "method=ncl"],
}


class CutOff(Exception):
    """The power fails."""


@pytest.mark.parametrize("name", CASES)
def test_cut_off_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Cut off at every fifth checkpoint, also at those of other stages, and once before the results are written."""
    settings = [*CASES[name], "checkpoint_steps=2"]
    fit(tmp_path / "whole", *settings)
    save = Trainer.save
    for attempt in range(40):
        left = [5 + attempt % 3]

        def save_some(trainer: Trainer, left: list[int] = left) -> None:
            save(trainer)
            left[0] -= 1
            if not left[0]:
                raise CutOff

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "save", save_some)
            try:
                fit(tmp_path / "cut", *settings, resume=True)
                break
            except CutOff:
                continue
    assert attempt > 0
    fit(tmp_path / "cut", *settings, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    for file in ("predictions_test.npz", "predictions_val.npz"):
        if (tmp_path / "whole" / file).exists():
            assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()


def test_a_run_without_average_keeps_its_name() -> None:
    assert "average" not in TrainConfig().to_dict()
    config = TrainConfig().override(["average=swa", "average.start=0.5"])
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert "-swa-" in config.slug
    assert config.override(["average=none"]).slug == TrainConfig().slug


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["average=mean"], "average"),
        (["average.decay=0.9"], "average.decay is a setting of average=ema"),
        (["average=swa", "average.decay=0.9"], "got average=swa"),
        (["average=ema", "average.every=epoch"], "average=swa"),
        (["average=ema", "average.decay=1"], "below 1"),
        (["average=swa", "average.start=1"], "below 1"),
        (["average=ema", "average.horizon=0"], "average.horizon"),
        (["average=ema", "average.decay=0.9", "average.horizon=0.1"], "exclude each other"),
    ],
)
def test_refused(settings: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TrainConfig().override(settings)


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        (["average=swa", "average.every=epoch"], "lower average.start"),
        (["average=ema", "average.horizon=0.01"], "raise average.horizon"),
        (["average=swa"], ""),
    ],
)
def test_an_average_of_one_is_said(tmp_path: Path, settings: list[str], way_out: str) -> None:
    notes: list[str] = []
    classgap.train(folder=tmp_path / "run", settings=[*SMALL, *settings], watch=lambda p: notes.append(p.note))
    said = [note for note in notes if "averages nothing" in note]
    assert bool(said) == bool(way_out)
    assert all(way_out in note for note in said)
