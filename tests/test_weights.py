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
from classgap.measure.statistics.noise import homogeneity
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
    assert "class '2' has only samples of weight 0; its accuracy is nan, and averages exclude it" in report.notes
    worst = str(report.hardest(1)["name"][0])
    assert worst == str(np.nanargmin(report.per_class["accuracy"]))
    assert f"({worst})" in repr(report)  # named as the worst class
    assert "| – |" not in report.to_markdown().partition("### Hardest 3 classes")[2].partition("###")[0]


def test_few_effective_samples_are_noted():
    weight = np.where(np.arange(600) < 20, 1000.0, 1.0)
    notes = audit(Y, PRED, sample_weight=weight).notes
    assert any("fewer than 10 effective samples" in note for note in notes)
    assert not any("fewer than 10" in note for note in audit(Y, PRED).notes)


@pytest.mark.parametrize("equal", [True, False])
def test_rounding_to_whole_samples_does_not_move_the_means(equal):
    """300 classes with 3 samples of weight 0.9 to 1, which are worth a little less than 3 samples."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(300), 3)
    held = []
    for _ in range(12):
        truth = np.full(300, 0.8) if equal else rng.uniform(0.5, 0.95, 300)
        pred = np.where(rng.random(900) < truth[y], y, (y + 1) % 300)
        report = audit(y, pred, sample_weight=rng.uniform(0.9, 1, 900), n_boot=100)
        held.append([report.balanced.low <= truth.mean() <= report.balanced.high])
        held[-1] += [report.hard.low <= np.sort(truth)[:100].mean() <= report.hard.high]
        assert report.balanced.low < report.balanced.value < report.balanced.high
        corrected = [report.metrics[f"{name}_corrected"].value for name in ("worst", "worst_decile", "hard")]
        assert sorted(corrected) == corrected
        assert corrected[-1] <= report.balanced.value
    assert np.mean(held, axis=0).min() >= 0.8


def test_whole_numbers_keep_the_mean_and_stay_next_to_the_exact_ones():
    rng = np.random.default_rng(0)
    y, weight = rng.integers(0, 50, 400), rng.lognormal(0, 1, 400)
    found = weigh(y, np.where(rng.random(400) < 0.7, y, (y + 1) % 50), weight, 50, 0.95)
    used = found.size > 0
    assert (np.abs(found.correct - np.nan_to_num(found.accuracy) * found.support) < 1).all()
    assert (found.correct <= found.support).all()
    mean = (found.correct[used] / found.support[used]).mean()
    assert mean == pytest.approx(found.accuracy[used].mean(), abs=1 / used.sum())


@pytest.mark.parametrize(("number", "per_class"), [(300, 5), (100, 30)])
def test_rounding_does_not_make_equal_classes_differ(number, per_class):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(number), per_class)
    claims = 0
    for _ in range(60):
        pred = np.where(rng.random(len(y)) < 0.85, y, (y + 1) % number)
        heavy = np.where(rng.random(len(y)) < 0.1, 10.0, 1.0)
        found = weigh(y, pred, heavy if per_class == 30 else rng.lognormal(0, 0.5, len(y)), number, 0.95)
        claims += homogeneity(found.correct, found.support, rng, draws=199, inflation=found.inflation)[1] < 0.05
    assert claims <= 6


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
