"""Output and logit margins, expected calibration errors."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from classgap import arrays, audit
from classgap.checks import InputError
from classgap.measure.diagnostics import calibration, margins
from reference import geometry as reference


def scores_and_labels(seed=0, n=60, k=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k)) * 2, rng.integers(0, k, n)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_margins_match_loop_reference(kind):
    logits, y = scores_and_labels()
    scores = logits if kind == "logits" else np.array([reference.softmax(row) for row in logits])
    found = margins.describe(scores, y, 5, kind=kind)
    expected = reference.margins(logits, y)
    np.testing.assert_allclose(found.output.samples, expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(found.logit.samples, expected[:, 1], atol=1e-9)
    for k in range(5):
        own = expected[y == k, 1]
        assert found.logit.mean[k] == pytest.approx(own.mean())
        assert found.logit.variance[k] == pytest.approx(own.var())
        np.testing.assert_allclose(found.logit.quantiles[k], np.quantile(own, margins.QUANTILES))


def test_negative_margins_are_the_errors():
    logits, y = scores_and_labels()
    found = margins.describe(logits, y, 5, kind="logits")
    assert found.summary()["negative_share"] == (logits.argmax(1) != y).mean()
    np.testing.assert_array_equal(found.output.samples < 0, logits.argmax(1) != y)


def test_logit_margins_ignore_a_shift_of_each_row():
    logits, y = scores_and_labels()
    shifted = logits + np.random.default_rng(1).normal(size=(len(logits), 1)) * 50
    a, b = (margins.describe(z, y, 5, kind="logits") for z in (logits, shifted))
    np.testing.assert_allclose(a.logit.samples, b.logit.samples, atol=1e-9)
    np.testing.assert_allclose(a.output.samples, b.output.samples, atol=1e-9)


def test_histograms_hold_every_sample_of_each_class():
    logits, y = scores_and_labels(n=500)
    logits[0] *= 1e4  # an outlier lands in an outer bin
    found = margins.describe(logits, y, 5, kind="logits")
    for distribution in (found.output, found.logit):
        np.testing.assert_array_equal(distribution.counts.sum(axis=1), np.bincount(y, minlength=5))


def test_extreme_and_equal_logits_stay_finite():
    found = margins.describe(np.array([[1e30, -1e30], [0.0, 0.0]]), np.array([0, 1]), 2, kind="logits")
    np.testing.assert_allclose(found.output.samples, [1.0, 0.0])
    constant = margins.describe(np.zeros((4, 3)), np.array([0, 1, 2, 0]), 3, kind="logits")
    assert (constant.logit.mean == 0).all()


def test_probability_zero_gives_a_finite_logit_margin():
    found = margins.describe(np.eye(3, dtype=np.float32), np.array([1, 1, 2]), 3, kind="probabilities")
    assert np.isfinite(found.logit.samples).all()
    assert found.logit.samples[0] < -80


def test_absent_class_is_nan_and_aggregates_skip_it():
    logits, y = scores_and_labels()
    y[y == 2] = 1
    found = margins.describe(logits, y, 5, kind="logits")
    assert all(np.isnan(column[2]) for column in found.columns().values())
    assert all(np.isfinite(value) for value in found.summary().values())
    assert np.isnan(calibration.describe(calibration.softmax(logits), y).per_true_class[2])
    assert np.isnan(calibration.describe(calibration.softmax(logits), y).classwise[2])


@pytest.mark.parametrize(
    ("scores", "y", "kind", "message"),
    [
        (np.zeros((3, 2)), [0, 1], "logits", "one entry per row, 3, got 2"),
        (np.zeros((2, 3)), [0, 1], "logits", r"scores must have shape \(2, 2\), got \(2, 3\)"),
        (np.zeros((2, 2)), [0, 2], "logits", r"class indices in \[0, 2\), got values from 0 to 2"),
        (np.array([[np.nan, 0.0]]), [0], "logits", "nan or infinite"),
        (np.array([[0.5, 0.6]]), [0], "probabilities", "row 0 sums to 1.1"),
        (np.array([[2.0, -1.0]]), [0], "probabilities", "from -1 to 2"),
        (np.zeros((2, 2)), [0, 1], "logit", "did you mean 'logits'"),
        (np.zeros((2, 2)), [0.0, 1.0], "logits", "vector of integers"),
        (np.zeros((2, 2)), np.eye(2, dtype=int), "logits", "one-hot"),
        (np.array([["a", "b"]]), [0], "logits", "numeric matrix"),
    ],
)
def test_bad_scores_are_named(scores, y, kind, message):
    with pytest.raises(InputError, match=message):
        margins.describe(scores, np.asarray(y), 2, kind=kind)


def test_margins_need_a_rival():
    with pytest.raises(InputError, match="at least 2 classes"):
        margins.describe(np.zeros((2, 1)), np.zeros(2, int), 1, kind="logits")


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_ece_matches_loop_reference(bins):
    logits, y = scores_and_labels(n=200)
    p = np.array([reference.softmax(row) for row in logits])
    found = calibration.describe(p, y, bins=bins)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    assert found.ece == pytest.approx(reference.ece(confidence, correct, bins))
    for k in range(5):
        own = y == k
        assert found.per_true_class[k] == pytest.approx(reference.ece(confidence[own], correct[own], bins))
        assert found.classwise[k] == pytest.approx(reference.ece(p[:, k], y == k, bins))
        assert found.overconfidence[k] == pytest.approx(confidence[own].mean() - correct[own].mean())
    assert found.bin_counts.sum() == len(y)


@pytest.mark.parametrize("sample", [None, 100])
def test_log_loss_of_logits_is_not_rounded(sample):
    rng = np.random.default_rng(0)
    y, logits = rng.integers(0, 3, 200), 300 * rng.normal(size=(200, 3))
    frame = pl.DataFrame({"label": y, **{f"logit_{k}": logits[:, k] for k in range(3)}}).lazy()
    found = audit(frame, sample=sample)
    losses = np.array([reference_loss(row, label) for row, label in zip(logits, y, strict=True)])
    assert losses.max() > 500  # the probability is below every number of single precision
    assert found.calibration.summary()["log_loss"] == pytest.approx(losses.mean(), rel=1e-6)
    expected = [losses[y == k].mean() for k in range(3)]
    np.testing.assert_allclose(found.per_class["log_loss"], expected, rtol=1e-6)


def reference_loss(row, label):
    top = row.max()
    return top + np.log(sum(np.exp(value - top) for value in row)) - row[label]


def test_one_hot_and_right_is_perfectly_calibrated():
    y = np.arange(12) % 4
    found = calibration.describe(np.eye(4)[y], y)
    assert found.ece == found.adaptive_ece == 0
    assert (found.per_true_class == 0).all()
    assert (found.classwise == 0).all()


def test_one_hot_and_wrong_is_off_by_one():
    found = calibration.describe(np.eye(2)[[0, 1]], np.array([1, 0]))
    assert found.ece == found.adaptive_ece == 1
    np.testing.assert_array_equal(found.overconfidence, [1, 1])


def test_adaptive_bins_hold_equally_many():
    confidence = np.concatenate([np.full(50, 0.9), np.full(50, 0.99)])
    correct = np.concatenate([np.ones(45), np.zeros(5), np.ones(25), np.zeros(25)])
    assert calibration.expected_calibration_error(confidence, correct, bins=1) == pytest.approx(0.945 - 0.7)
    assert calibration.expected_calibration_error(confidence, correct, bins=2, adaptive=True) == pytest.approx(0.245)
    assert np.isnan(calibration.expected_calibration_error(np.array([]), np.array([])))


def test_calibrated_model_has_small_errors_and_a_sharpened_one_large():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(20000, 4)) * 1.5
    p = calibration.softmax(logits)
    y = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(max=3)
    assert calibration.describe(p, y).ece < 0.02
    assert calibration.describe(calibration.softmax(3 * logits), y).ece > 0.15
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("module", ["margins", "calibration"])
def test_block_size_does_not_matter(module, monkeypatch):
    logits, y = scores_and_labels(n=97)
    p = calibration.softmax(logits)

    def numbers():
        if module == "margins":
            return margins.describe(logits, y, 5, kind="logits").columns()
        return calibration.describe(p, y).columns()

    whole = numbers()
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 16)
    for name, column in numbers().items():
        np.testing.assert_allclose(column, whole[name], rtol=1e-12)


def test_half_precision_scores_are_accepted():
    logits, y = scores_and_labels()
    low = margins.describe(logits.astype(np.float16), y, 5, kind="logits")
    high = margins.describe(logits, y, 5, kind="logits")
    np.testing.assert_allclose(low.logit.mean, high.logit.mean, atol=1e-2)
    p = calibration.softmax(logits).astype(np.float16)
    assert calibration.describe(p, y).ece == pytest.approx(
        calibration.describe(calibration.softmax(logits), y).ece, abs=5e-3
    )
