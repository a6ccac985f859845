"""The test that all classes are equally accurate: where it is Pearson's, what it finds, and its level."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from classgap.measure.statistics.noise import homogeneity


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
    assert 0.003 <= np.mean(rejected) <= 0.075  # with few samples the test is discrete: 0.015 for 6 per class


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
