"""Stages that fit a post-hoc method after training: the same as its estimator, and served by the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classgap
from classgap import posthoc
from classgap.checks import InputError
from classgap.training import TrainConfig
from classgap.training.epoch import read_log
from classgap.training.run import start
from reference import posthoc as reference
from stage_runs import LONG_TAIL, SMALL, run, weights


@pytest.mark.parametrize("stage", ["crt", "lws", "marc", "disalign"])
@pytest.mark.parametrize("method", ["cross_entropy", "dbm"])
def test_a_fitted_stage_is_the_estimator_on_the_training_set(tmp_path: Path, stage: str, method: str) -> None:
    result = run(tmp_path, f"stage={stage}", f"method={method}", *LONG_TAIL)
    first, final = weights(tmp_path / "stage1"), weights(tmp_path)
    assert all(torch.equal(first[k], final[k]) for k in first if not k.startswith("3."))
    with np.load(tmp_path / "stage1" / "predictions_test.npz") as before:
        corrected = posthoc.load(tmp_path).transform(before["scores"], features=before["features"])
        np.testing.assert_allclose(corrected, result.test.scores, rtol=1e-4, atol=1e-4)
        assert not np.array_equal(before["y_pred"], result.test.y_pred)
    affine = result.test.features @ final["3.weight"].T.numpy() + (final["3.bias"].numpy() if "3.bias" in final else 0)
    served = np.allclose(affine, result.test.scores, rtol=1e-3, atol=1e-3)
    assert served == (method == "cross_entropy" and stage != "disalign")  # a cosine head cannot hold a correction
    assert [record["epoch"] for record in result.history] == [0]


def test_marc_as_a_stage_is_equation_11_by_the_papers_steps(tmp_path: Path) -> None:
    run(tmp_path, "stage=marc", *LONG_TAIL)
    with np.load(tmp_path / "stage1" / "predictions_test.npz") as before:
        norms = np.linalg.norm(before["weight"], axis=1)

    trainer: Any = start(
        TrainConfig().override([*SMALL, *LONG_TAIL, "stage=marc"]), tmp_path, accelerator="cpu", resume=True
    )
    scores, _, y = trainer._training_outputs(1)
    omega, beta = reference.marc_by_sgd(
        scores.double().numpy(), y.numpy(), np.bincount(y.numpy()), norms, gamma=1.2, ridge=0.0, normalize="batch",
        epochs=2000, batch=len(y),
    )  # fmt: skip
    found: Any = posthoc.load(tmp_path)
    np.testing.assert_allclose(found.omega_, omega, rtol=1e-4)
    np.testing.assert_allclose(found.beta_, beta, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["cross_entropy", "dbm"])  # a linear head and a cosine one
def test_average_margins_after_marc_are_the_calibrated_ones(tmp_path: Path, method: str) -> None:
    """ω d + β (eq. 8) with the norms of the head before calibration, not the margins of the folded head."""
    run(tmp_path, "stage=marc", f"method={method}", *LONG_TAIL)
    marc: Any = posthoc.load(tmp_path)
    with np.load(tmp_path / "stage1" / "predictions_test.npz") as before:
        scores, y, weight = before["scores"], before["y_true"], before["weight"]
    norms = np.linalg.norm(weight, axis=1)  # of a cosine head: its scale
    expected = reference.marc_margins(scores, y, norms, marc.omega_, marc.beta_)
    report = classgap.audit(tmp_path / "predictions_test.npz")
    np.testing.assert_allclose(report.per_class["average_margin"], expected, rtol=1e-3, atol=1e-4)
    stage1 = classgap.audit(tmp_path / "stage1" / "predictions_test.npz")
    assert stage1.samples is not None
    assert stage1.samples.margin_norms is None


@pytest.mark.parametrize("tau", [None, 0.7])
def test_tau_normalisation_is_chosen_on_the_validation_set_and_served_by_the_network(
    tmp_path: Path, tau: float | None
) -> None:
    given = ["data.val_fraction=0", f"stage.tau={tau}"] if tau is not None else []
    result = run(tmp_path, "stage=tau_norm", *LONG_TAIL, *given)
    first, final = weights(tmp_path / "stage1"), weights(tmp_path)
    assert all(torch.equal(first[k], final[k]) for k in first if not k.startswith("3."))
    weight, bias = first["3.weight"].numpy(), first["3.bias"].numpy()
    norms = np.linalg.norm(weight, axis=1, keepdims=True)
    if tau is None:
        with np.load(tmp_path / "stage1" / "predictions_val.npz") as held_out:
            raw, y = held_out["scores"] - bias, held_out["y_true"]
        grid = [round(0.1 * i, 1) for i in range(21)]
        accuracy = [np.mean([((raw / norms.T**t).argmax(1) == k)[y == k].mean() for k in np.unique(y)]) for t in grid]
        tau = grid[int(np.argmax(accuracy))]
        assert max(accuracy) > min(accuracy)
    np.testing.assert_allclose(final["3.weight"].numpy(), weight / norms**tau, rtol=1e-5)
    np.testing.assert_allclose(final["3.bias"].numpy(), 0, atol=1e-6)
    served = result.test.features @ final["3.weight"].numpy().T
    np.testing.assert_allclose(served, result.test.scores, rtol=1e-3, atol=1e-3)
    assert [record["epoch"] for record in result.history] == [0]


def test_a_fitted_stage_sees_augmented_samples_as_often_as_asked(tmp_path: Path) -> None:

    settings = [*SMALL, "data.augment=crop", "stage=marc", "stage.passes=3", "epochs=1"]
    trainer: Any = start(TrainConfig().override(settings), tmp_path, accelerator="cpu")
    trainer.run()
    scores, _, y = trainer._training_outputs(3)
    assert len(y) == 3 * 130
    assert not torch.equal(scores[:130].sort(0).values, scores[130:260].sort(0).values)


@pytest.mark.parametrize("method", ["cross_entropy", "mr2"])
def test_the_dial_is_fitted_to_the_validation_set_and_served_by_the_network(tmp_path: Path, method: str) -> None:
    settings = ["stage=gap_dial", "stage.strength=3", "stage.ridge=0.1", f"method={method}", *LONG_TAIL]
    result = run(tmp_path, *settings)
    with np.load(tmp_path / "stage1" / "predictions_val.npz") as held_out:
        counts = {"class_counts": held_out["train_counts"]}
        dial = posthoc.GapDial(strength=3.0, ridge=0.1).fit(held_out["scores"], held_out["y_true"], **counts)
    with np.load(tmp_path / "stage1" / "predictions_test.npz") as before:
        np.testing.assert_allclose(dial.transform(before["scores"]), result.test.scores, rtol=1e-3, atol=1e-3)
        assert not np.array_equal(before["y_pred"], result.test.y_pred)
    final = weights(tmp_path)
    served = result.test.features @ final["3.weight"].T.numpy() + final["3.bias"].numpy()
    np.testing.assert_allclose(served, result.test.scores, rtol=1e-3, atol=1e-3)


def test_a_refit_trains_on_all_samples_under_the_dial_of_the_first_run(tmp_path: Path) -> None:
    settings = ["stage.strength=3", "stage.ridge=0.1", "method=mr2"]
    refit = run(tmp_path / "refit", "stage=gap_dial", "stage.refit=true", *settings)
    held_out = run(tmp_path / "held_out", "stage=gap_dial", *settings)
    dial = posthoc.load(tmp_path / "refit")
    assert np.array_equal(dial.offset_, posthoc.load(tmp_path / "held_out").offset_)
    # the network before the dial, taken out of the one that is served
    final = weights(tmp_path / "refit")
    weight, bias = (final[f"3.{name}"].numpy() for name in ("weight", "bias"))
    before = refit.test.features @ (weight / dial.scale_[:, None]).T + (bias - dial.offset_) / dial.scale_
    np.testing.assert_allclose(dial.transform(before), refit.test.scores, rtol=1e-3, atol=1e-3)
    assert np.abs(dial.offset_).max() > 0.05
    # which was trained on what the other one held out as well, and has nothing left to validate on
    more = refit.test.train_counts - held_out.test.train_counts
    assert np.array_equal(more, np.bincount(held_out.val.y_true))
    assert not np.allclose(refit.test.features, held_out.test.features, atol=1e-2)
    assert refit.val is None
    assert len(refit.history) == len(read_log(tmp_path / "refit" / "stage2" / "stage1" / "log.jsonl")) == 3


@pytest.mark.parametrize("refit", ["true", "false"])
def test_the_dial_says_that_it_needs_held_out_samples(tmp_path: Path, refit: str) -> None:
    with pytest.raises(InputError, match=r"set data\.val_fraction above 0"):
        run(tmp_path / "run", "stage=gap_dial", "data.val_fraction=0", f"stage.refit={refit}")
    assert not (tmp_path / "run").exists()
