"""Ensembles: members, their average, resuming, what serves the result, and members shared by the jobs of a suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax

import classgap
from classgap.checks import InputError
from classgap.models import Ensemble
from classgap.posthoc import GapDial
from classgap.suites import Suite, Task, Variant
from classgap.suites.jobs import JobFolder
from classgap.suites.work import run_job
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.epoch import read_log

SMALL = ["data.per_class=13", "epochs=2", "batch=24", "optim.lr=0.05", "model=mlp-16", "data.augment=crop"]
ENSEMBLE = [*SMALL, "stage=ensemble"]


def run(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override(list(settings)), folder, accelerator="cpu", **options)


def probabilities(scores: Any) -> Any:
    return softmax(np.asarray(scores, dtype=np.float64), axis=1)


class Killed(Exception):
    pass


def kill_at(stage: str, step: int) -> Any:
    def watch(position: TrainProgress) -> None:
        if position.stage == stage and position.step == step and not position.note:
            raise Killed

    return watch


def test_members_are_runs_with_other_seeds_and_their_mean_probability_is_the_result(tmp_path: Path) -> None:
    result = run(tmp_path / "all", *ENSEMBLE, "seed=2")
    alone = [run(tmp_path / str(seed), *SMALL, f"seed={seed}") for seed in (2, 10_002, 20_002)]
    for number, one in enumerate(alone, 1):
        member, single = (
            load_file(f / "model.safetensors") for f in (tmp_path / "all" / f"member{number}", one.folder)
        )
        assert all(torch.equal(member[name], single[name]) for name in single)
    for split in ("test", "val"):
        mean = np.mean([probabilities(getattr(one, split).scores) for one in alone], axis=0)
        np.testing.assert_allclose(np.exp(getattr(result, split).scores), mean, rtol=1e-4, atol=1e-7)
    assert np.array_equal(result.test.features, np.concatenate([one.test.features for one in alone], axis=1))
    assert result.test.weight is None
    seconds = sum(record["seconds"] for one in (1, 2, 3) for record in log(tmp_path / "all" / f"member{one}"))
    assert len(result.history) == 1
    assert result.history[0]["seconds"] > seconds
    np.testing.assert_allclose(result.history[0]["val"]["balanced"], accuracy(result.val))


def pretend_it_took(seconds: float, folder: Path) -> None:
    records = [{**record, "seconds": seconds} for record in log(folder)]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def log(folder: Path) -> list[dict[str, Any]]:
    return read_log(folder / "log.jsonl")


def accuracy(outputs: Any) -> float:
    right = outputs.y_pred == outputs.y_true
    return float(np.mean([right[outputs.y_true == k].mean() for k in np.unique(outputs.y_true)]))


def test_logits_can_be_averaged_instead(tmp_path: Path) -> None:
    result = run(tmp_path, *ENSEMBLE, "stage.members=2", "stage.combine=logits")
    parts = [np.load(tmp_path / f"member{number}" / "predictions_test.npz")["scores"] for number in (1, 2)]
    np.testing.assert_allclose(result.test.scores, np.mean(parts, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "extra", [["average=swa", "average.start=0.5"], ["method=dbm"], ["method=lgm"], ["method=ncl"], ["method=bcl"]]
)
def test_losses_that_change_scores_keep_them_and_a_loaded_run_predicts_the_same(
    tmp_path: Path, extra: list[str]
) -> None:
    """Cosines at the scale of the loss, distances to learned means, several networks each."""
    result = run(tmp_path, *ENSEMBLE, "stage.members=2", "epochs=1", *extra)
    parts = [np.load(tmp_path / f"member{number}" / "predictions_test.npz")["scores"] for number in (1, 2)]
    np.testing.assert_allclose(
        probabilities(result.test.scores), np.mean([probabilities(p) for p in parts], axis=0), rtol=1e-4, atol=1e-6
    )
    predictor = classgap.load_run(tmp_path)
    np.testing.assert_allclose(predictor.outputs("digits").scores, result.test.scores, rtol=1e-4, atol=1e-5)
    report = classgap.audit(tmp_path / "predictions_test.npz")
    assert report.overall.value == pytest.approx((result.test.y_pred == result.test.y_true).mean())


def test_a_dial_is_part_of_the_saved_network(tmp_path: Path) -> None:
    """Offsets of the gap dial, fitted to the mean of the members on the validation set."""
    plain = run(tmp_path / "plain", *ENSEMBLE)
    dialled = run(tmp_path / "dialled", *ENSEMBLE, "stage.dial=2")
    dial = GapDial(2.0, ridge=1.0)
    dial.fit(plain.val.scores, plain.val.y_true, class_counts=plain.val.train_counts)
    assert np.abs(dial.offset_ - dial.offset_.mean()).max() > 0.01
    np.testing.assert_allclose(dialled.test.scores, dial.transform(plain.test.scores), rtol=1e-4, atol=1e-5)
    again = classgap.load_run(tmp_path / "dialled").outputs("digits")
    np.testing.assert_allclose(again.scores, dialled.test.scores, rtol=1e-4, atol=1e-5)
    resumed = run(tmp_path / "dialled", *ENSEMBLE, "stage.dial=2", resume=True)
    assert np.array_equal(resumed.test.scores, dialled.test.scores)


def test_a_dial_needs_a_validation_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.val_fraction"):
        run(tmp_path, *ENSEMBLE, "stage.dial=1", "data.val_fraction=0")


def test_an_ensemble_killed_anywhere_continues_bit_for_bit(tmp_path: Path) -> None:
    settings = [*ENSEMBLE, "model=resnet20", "data.per_class=3", "batch=10", "checkpoint_steps=1", "stage.members=2"]
    for stage, step in (("member1", 2), ("member2", 3), ("member2", 6)):
        with pytest.raises(Killed):
            run(tmp_path / "cut", *settings, watch=kill_at(stage, step), resume=True)
    resumed, whole = (run(tmp_path / name, *settings, resume=True) for name in ("cut", "whole"))
    assert np.array_equal(resumed.test.scores, whole.test.scores)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in second)
    again = run(tmp_path / "cut", *settings, resume=True)
    assert np.array_equal(again.test.scores, whole.test.scores)


def test_the_jobs_of_a_suite_share_members_and_use_finished_runs(tmp_path: Path) -> None:
    task = Task("digits", TrainConfig().override([*SMALL, "data.per_class=8", "epochs=1"]))
    variants = (
        Variant("plain"),
        Variant("dial", settings=("stage=gap_dial", "stage.strength=1", "stage.ridge=1")),
        Variant("two", settings=("stage=ensemble", "stage.members=2")),
        Variant("three", settings=("stage=ensemble", "stage.members=3")),
    )
    jobs = Suite("shares", (task,), variants, seeds=(0, 1)).jobs()
    results = {}
    for job in jobs:
        folder = JobFolder(tmp_path, job)
        results[job.variant, job.seed] = run_job(job, folder)
        if job.variant == "plain":
            pretend_it_took(1000, folder.path)
    # seed 0 and 1 are those of the plain runs; of each seed two more members are trained, for the ensemble of three
    assert len(list((tmp_path / "shared").iterdir())) == 4
    alone = run(tmp_path / "alone", *SMALL, "data.per_class=8", "epochs=1", "stage=ensemble", "seed=1")
    hits = np.bincount(alone.test.y_true[alone.test.y_pred == alone.test.y_true], minlength=10)
    assert results["three", 1].candidates[0].test_correct == tuple(hits.tolist())
    for variant in ("two", "three"):  # a member that was there already counts too
        assert results[variant, 1].seconds >= 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["stage.members=1"], "stage.members must be a whole number"),
        (["stage.dial=-1"], "stage.dial must be"),
        (["stage.combine=votes"], "stage.combine"),
        (["stage.seed_step=0"], "stage.seed_step"),
        (["teacher=somewhere"], "trains every member from the beginning"),
        (["seed=4294967295"], "lower it"),
    ],
)
def test_settings_that_cannot_work_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", *ENSEMBLE, *settings)
    assert not (tmp_path / "run").exists()


def test_an_ensemble_needs_members() -> None:
    with pytest.raises(InputError, match="got none"):
        Ensemble([])


def test_one_member_is_not_changed() -> None:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

    class Said(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return scores, inputs

    found, _ = Ensemble([Said()])(torch.zeros(4, 2))
    torch.testing.assert_close(found.softmax(1), scores.softmax(1))
