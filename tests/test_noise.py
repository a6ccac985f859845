"""The noise correction is held to simulations whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from classgap.measure.statistics.metrics import evaluate
from classgap.measure.statistics.noise import Spread, corrected, homogeneity

NAMES = ("worst", "gap", "std")


def _regime(name: str, num_classes: int):
    even = np.full(num_classes, 100)
    uneven = np.round(100 * np.exp(np.linspace(-1, 1, num_classes))).astype(int)
    fixed = np.random.default_rng(5)
    return {
        "no gap": (np.full(num_classes, 0.7), even),
        "small gap": (np.linspace(0.65, 0.75, num_classes), even),
        "large gap": (np.linspace(0.3, 0.97, num_classes), even),
        "one broken class": (np.r_[np.full(num_classes - 1, 0.85), 0.4], even),
        "unequal supports": (fixed.beta(8, 2.5, num_classes), fixed.permutation(uneven)),
        "no gap, unequal, near 1": (np.full(num_classes, 0.95), fixed.permutation(uneven)),
    }[name]


@pytest.mark.parametrize("num_classes", [10, 100])
@pytest.mark.parametrize(
    "regime",
    ["no gap", "small gap", "large gap", "one broken class", "unequal supports", "no gap, unequal, near 1"],
)
def test_correction_removes_bias_and_intervals_cover(regime, num_classes):
    truth, support = _regime(regime, num_classes)
    target = evaluate(truth, NAMES)
    rng = np.random.default_rng(0)
    observed, values, covered = [], [], []
    for _ in range(100 if num_classes == 10 else 60):
        hits = rng.binomial(support, truth)
        value, low, high = corrected(hits, support, confidence=0.95, rng=rng, names=NAMES)
        assert ((low <= value) & (value <= high)).all()
        observed.append(evaluate(hits / support, NAMES))
        values.append(value)
        covered.append((low <= target + 1e-12) & (target <= high + 1e-12))
    before, after = (np.abs(np.mean(v, axis=0) - target) for v in (observed, values))
    # What is left at most: half of a substantial bias, or a hundredth. A gap cannot be estimated below 0, hence 0.05.
    assert (after <= np.maximum(0.5 * before, [0.02, 0.02, 0.01])).all(), (before, after)
    assert (after < 0.05).all(), after
    assert (np.mean(covered, axis=0) >= 0.88).all(), np.mean(covered, axis=0)


def test_many_samples_need_no_correction():
    truth, support = np.linspace(0.4, 0.9, 10), np.full(10, 200_000)
    hits = np.random.default_rng(0).binomial(support, truth)
    value, low, high = corrected(hits, support, confidence=0.95, rng=np.random.default_rng(0), names=NAMES)
    np.testing.assert_allclose(value, evaluate(truth, NAMES), atol=0.004)
    assert (high - low < 0.015).all()


def test_a_broken_class_is_kept_apart_from_the_others():
    support = np.full(20, 200)
    hits = np.r_[np.full(19, 170), 60]
    spread = Spread.estimate(hits, support, 0.95)
    assert spread.bulk.tolist() == [True] * 19 + [False]
    assert spread.shrunk(hits, support)[-1] == pytest.approx(0.3, abs=0.01)


def test_shrunk_accuracies_have_the_true_spread():
    rng = np.random.default_rng(0)
    truth = rng.normal(0.7, 0.05, 400)
    support = np.full(400, 60)
    hits = rng.binomial(support, truth)
    shrunk = Spread.estimate(hits, support, 0.95).shrunk(hits, support)
    assert np.std(hits / support) > 0.07
    assert np.std(shrunk) == pytest.approx(0.05, abs=0.008)


@pytest.mark.parametrize(
    ("hits", "support"), [((5,), (9,)), ((9, 9), (9, 9)), ((0, 0, 0), (1, 1, 1)), ((1, 0), (1, 1))]
)
def test_tiny_inputs_stay_in_range(hits, support):
    value, low, high = corrected(
        np.array(hits), np.array(support), confidence=0.9, rng=np.random.default_rng(0), names=NAMES
    )
    assert np.isfinite([value, low, high]).all()
    assert (low >= 0).all()
    assert (high <= 1).all()


def test_homogeneity_is_pearson_where_counts_are_large():
    hits, support = np.array([80, 60, 75]), np.array([100, 100, 100])
    statistic, p_value, method = homogeneity(hits, support, np.random.default_rng(0))
    expected = chi2_contingency([hits, support - hits], correction=False)
    assert statistic == pytest.approx(expected.statistic)
    assert p_value == pytest.approx(2 * expected.pvalue)
    assert method.startswith("chi-square and")


@pytest.mark.parametrize("size", [6, 200])
def test_homogeneity_keeps_its_level(size):
    rng = np.random.default_rng(0)
    support = np.full(15, size)
    rejected = [homogeneity(rng.binomial(support, 0.9), support, rng, draws=199)[1] <= 0.05 for _ in range(300)]
    assert 0.01 <= np.mean(rejected) <= 0.075


def test_homogeneity_finds_one_broken_class_among_a_thousand():
    rng = np.random.default_rng(0)
    support = np.full(1000, 50)
    hits = rng.binomial(support, 0.8)
    assert homogeneity(hits, support, rng)[1] > 0.05
    hits[3] = 20
    assert homogeneity(hits, support, rng)[1] < 1e-4
    tiny = np.full(40, 8)
    assert homogeneity(np.r_[np.full(39, 7), 0], tiny, rng)[1] < 0.01


def test_nothing_to_test():
    for hits in ((5, 5), (0, 0)):
        assert homogeneity(np.array(hits), np.array([5, 5]), np.random.default_rng(0))[1] == 1.0
    assert homogeneity(np.array([3]), np.array([5]), np.random.default_rng(0))[2] == "no variation to test"
