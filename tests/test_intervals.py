"""Intervals: against definitions, and by how often they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from classgap.measure.statistics.estimating import estimate_metrics
from classgap.measure.statistics.intervals import bootstrap_accuracy, clopper_pearson, mean_interval, wilson, z_value
from reference import metrics as reference


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_matches_its_definition(case):
    hits, size = case
    low, high = wilson(np.array([hits / size]), np.array([size]), 0.95)
    np.testing.assert_allclose([low[0], high[0]], reference.wilson(hits, size, z_value(0.95)), atol=1e-7)
    assert 0 <= low[0] <= hits / size <= high[0] <= 1


def test_wilson_of_an_absent_class_is_nan():
    low, high = wilson(np.array([np.nan]), np.array([0]), 0.95)
    assert np.isnan(low[0])
    assert np.isnan(high[0])


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_exact_bounds_are_those_of_scipy(case):
    hits, size = case
    expected = binomtest(hits, size).proportion_ci(0.95, method="exact")
    found = [clopper_pearson(np.array([hits]), np.array([size]), 0.025, upper=upper)[0] for upper in (False, True)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_mean_of_classes_alike_is_the_exact_interval_nearly(hits):
    """With equal weights it is Clopper and Pearson's, wider only for what a class's pseudo-sample adds."""
    support, correct = np.full(len(hits), 12), np.array(hits)
    value = np.array([correct.sum() / support.sum()])
    low, high = mean_interval(value, np.full((1, len(hits)), len(hits) ** -2.0), correct, support, 0.95)
    expected = binomtest(int(correct.sum()), int(support.sum())).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose([low[0], high[0]], expected, atol=0.02)


def test_flawless_classes_are_not_certain():
    weight = np.full((1, 4), 1 / 4)
    low, high = mean_interval(np.array([1.0]), weight**2, np.full(4, 10), np.full(4, 10), 0.95)
    assert low[0] == pytest.approx(0.025 ** (1 / 40), abs=2e-3)
    assert high[0] == 1


def test_one_error_in_a_heavy_sample_leaves_room():
    """Three classes of 100 and seven of one sample at 98 %: one error among the seven is no surprise."""
    support = np.repeat([100, 1], [3, 7])
    correct = support - (np.arange(10) == 9)
    value = np.array([np.mean(correct / support)])
    low, high = mean_interval(value, np.full((1, 10), 0.01), correct, support, 0.95)
    assert low[0] < value[0] < 0.98 < high[0]


@pytest.mark.parametrize(("truth", "support"), [((0.9, 0.6, 0.3), (30, 30, 30)), ((0.99, 0.95, 0.9), (200, 40, 10))])
def test_mean_interval_covers(truth, support):
    rng = np.random.default_rng(0)
    weight = np.full((1, 3), 1 / 3)
    covered = []
    for _ in range(1500):
        hits = rng.binomial(support, truth)
        value = np.array([np.mean(hits / np.array(support))])
        low, high = mean_interval(value, weight**2, hits, np.array(support), 0.95)
        covered.append(low[0] <= np.mean(truth) <= high[0])
    assert 0.935 < np.mean(covered) < 0.995


def test_bootstrap_of_counts_is_the_bootstrap_of_rows():
    rng = np.random.default_rng(0)
    right = rng.random(80) < 0.7
    rows = right[rng.integers(0, 80, (4000, 80))].mean(1)
    low, high = bootstrap_accuracy(np.array([right.sum()]), np.array([80]), n_boot=4000)
    np.testing.assert_allclose([low[0], high[0]], np.quantile(rows, [0.025, 0.975]), atol=0.013)


def test_bootstrap_skips_absent_classes_and_repeats_with_its_seed():
    correct, support = np.array([5, 0, 7]), np.array([9, 0, 7])
    low, high = bootstrap_accuracy(correct, support, seed=3)
    assert np.isnan(low[1])
    assert np.isnan(high[1])
    np.testing.assert_array_equal(low, bootstrap_accuracy(correct, support, seed=3)[0])


def _estimated(correct: list[int], support: list[int]) -> dict:
    rng = np.random.default_rng(0)
    return estimate_metrics(np.array(correct), np.array(support), confidence=0.95, draws=100, rng=rng).metrics


def test_no_error_seen_does_not_mean_no_spread():
    """Classes at .96, .98 and 1 make no error in 30 samples each with probability .16; the deviation was then taken for 0."""
    found = _estimated([30, 30, 30], [30, 30, 30])
    assert found["std"].high > 0.0163
    assert found["gini"].high > 0.0091


def test_a_class_of_five_right_by_luck_is_no_inequality():
    found = _estimated([30, 5], [50, 5])
    assert found["gini"].low == 0
    assert found["std"].low < 0.05


def test_one_sample_that_is_right_may_belong_to_a_bad_class():
    """The truth .1 for the last class makes the harmonic mean .33."""
    found = _estimated([950, 90, 8, 3, 1], [1000, 100, 10, 3, 1])
    assert found["harmonic_mean"].low < 0.33
    assert found["geometric_mean"].low < 0.55
