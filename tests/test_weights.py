"""Sample weights: weighted accuracies, intervals at the effective number of samples, and refusals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from classgap import Predictions, audit, compare, fix
from classgap.checks import InputError
from classgap.cli import main
from classgap.measure.statistics.intervals import wilson
from classgap.measure.statistics.weighted import effective_size, weigh

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 4, 600)
PRED = np.where(RNG.random(600) < 0.8, Y, (Y + 1) % 4)
WEIGHT = RNG.lognormal(0, 1, 600)


def test_matches_scikit_learn():
    report = audit(Y, PRED, sample_weight=WEIGHT)
    assert report.overall.value == pytest.approx(accuracy_score(Y, PRED, sample_weight=WEIGHT))
    for column, score in (("accuracy", recall_score), ("precision", precision_score), ("f1", f1_score)):
        assert report.per_class[column] == pytest.approx(score(Y, PRED, average=None, sample_weight=WEIGHT))
    assert report.worst.value == report.per_class["accuracy"].min()
    assert report.balanced.value == pytest.approx(report.per_class["accuracy"].mean())
    assert report.groups["own"]["hard"].value == report.hard.value
    assert (report.per_class["support"] == np.bincount(Y)).all()
    assert (report.per_class["effective_support"] < report.per_class["support"]).all()
    for estimate in report.metrics.values():
        assert np.isnan(estimate.value) or estimate.low <= estimate.value <= estimate.high
    assert any("sample weights" in note for note in report.notes)


def test_equal_weights_change_nothing():
    plain, weighted = audit(Y, PRED), audit(Y, PRED, sample_weight=np.full(600, 3.0))
    assert weighted.homogeneity.p_value == plain.homogeneity.p_value
    for name, estimate in plain.metrics.items():
        found = weighted.metrics[name]
        assert (found.value, found.low, found.high) == pytest.approx(
            (estimate.value, estimate.low, estimate.high), nan_ok=True
        )


def test_every_input(tmp_path, monkeypatch, capsys):
    frame = pl.DataFrame({"label": Y, "pred": PRED, "w": WEIGHT})
    frame.write_csv(tmp_path / "a.csv")
    np.savez(tmp_path / "a.npz", label=Y, pred=PRED, w=WEIGHT)
    wanted = audit(Y, PRED, sample_weight=WEIGHT).worst
    for given in (frame, frame.to_pandas(), str(tmp_path / "a.csv"), str(tmp_path / "a.npz")):
        assert audit(given, sample_weight="w").worst.value == pytest.approx(wanted.value)
    monkeypatch.setattr("sys.argv", ["classgap", "audit", str(tmp_path / "a.csv"), "--sample-weight", "w"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert f"{100 * wanted.value:.1f} %" in capsys.readouterr().out


def test_unusable():
    with pytest.raises(InputError, match="sample_weight must be at least 0 and not all 0"):
        audit(Y, PRED, sample_weight=np.where(Y == 0, -1.0, 1.0))
    with pytest.raises(InputError, match="sample_weight must hold a finite number"):
        audit(Y, PRED, sample_weight=np.where(Y == 0, np.nan, 1.0))
    with pytest.raises(InputError, match="sample_weight must have one entry per sample"):
        audit(Y, PRED, sample_weight=[1.0])
    with pytest.raises(InputError, match=r"slices \(by\) cannot be combined with sample_weight"):
        audit(Y, PRED, sample_weight=WEIGHT, by={"site": Y})
    weighted = audit(Y, PRED, sample_weight=WEIGHT)
    with pytest.raises(InputError, match="compare does not support sample weights"):
        compare(weighted, audit(Y, Y))
    scores = np.eye(4)[PRED] + RNG.random((600, 4))
    with pytest.raises(InputError, match="fix does not support sample weights"):
        fix(Predictions.from_arrays(Y, scores=scores, scores_kind="logits", sample_weight=WEIGHT))


def test_class_without_weight_is_absent():
    report = audit(Y, PRED, sample_weight=(Y != 2).astype(float))
    assert np.isnan(report.per_class["accuracy"][2])
    assert report.balanced.value == pytest.approx(report.per_class["accuracy"][[0, 1, 3]].mean())


@pytest.mark.parametrize("kind", ["independent", "heavy samples are wrong more often"])
def test_intervals_hold_in_simulation(kind):
    rng = np.random.default_rng(1)
    held = []
    y = np.repeat(np.arange(10), 40)
    for _ in range(60):
        heavy = rng.random(400) < 0.2
        weight = np.where(heavy, 5.0, 1.0)
        chance = np.where(heavy, 0.5, 0.85) if kind != "independent" else np.full(400, 0.8)
        truth = 0.8 if kind == "independent" else (0.2 * 5 * 0.5 + 0.8 * 0.85) / (0.2 * 5 + 0.8)
        right = rng.random(400) < chance
        found = weigh(y, np.where(right, y, (y + 1) % 10), weight, 10, 0.95)
        low, high = wilson(found.accuracy, found.size, 0.95)
        held += ((low <= truth) & (truth <= high)).tolist()
    assert np.mean(held) >= 0.92


def test_effective_size_is_kishs_for_balanced_weights():
    right, weight = np.array([1.0, 1, 0, 0]), np.array([3.0, 1, 3, 1])
    assert effective_size(right, weight, np.zeros(4, int), 1) == pytest.approx([64 / 20])
