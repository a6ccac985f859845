"""Intervals: against definitions, and by how often they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classgap.measure.statistics.intervals import bootstrap_accuracy, mean_interval, observed_intervals, wilson, z_value
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate
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


def test_mean_of_one_class_is_its_wilson_interval_nearly():
    one = np.ones((1, 1))
    low, high = mean_interval(np.array([0.8]), one, np.array([400]), np.array([500]), 0.95)
    expected = wilson(np.array([0.8]), np.array([500]), 0.95)
    np.testing.assert_allclose([low, high], expected, atol=1e-3)


def test_flawless_classes_are_not_certain():
    weight = np.full((1, 4), 1 / 4)
    low, high = mean_interval(np.array([1.0]), weight**2, np.full(4, 10), np.full(4, 10), 0.95)
    np.testing.assert_allclose([low, high], wilson(np.array([1.0]), np.array([40]), 0.95))
    assert low[0] < 0.95


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
    assert 0.925 < np.mean(covered) < 0.99


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


@pytest.mark.parametrize("truth", [np.full(20, 0.7), np.linspace(0.4, 0.95, 20)], ids=["no gap", "large gap"])
def test_observed_metrics_cover_what_test_sets_of_this_size_show(truth):
    rng = np.random.default_rng(0)
    support = np.full(20, 80)
    average = evaluate(rng.binomial(support, truth, size=(4000, 20)) / support).mean(0)
    covered = []
    for _ in range(150):
        value, low, high = observed_intervals(
            rng.binomial(support, truth), support, confidence=0.95, n_boot=300, rng=rng
        )
        assert (low <= value).all()
        assert (value <= high).all()
        covered.append((low <= average) & (average <= high))
    coverage = dict(zip(FROM_ACCURACY, np.mean(covered, axis=0), strict=True))
    assert min(coverage.values()) > 0.88, coverage
