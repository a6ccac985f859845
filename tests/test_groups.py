"""Groups of classes under each ranking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classgap.measure.statistics import groups
from classgap.measure.statistics.groups import by_frequency, cross_fit, membership, third_sizes, thirds
from classgap.measure.statistics.intervals import mean_interval
from reference import metrics as reference

maybe_accuracy = st.one_of(st.just(np.nan), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))


@given(st.lists(maybe_accuracy, min_size=1, max_size=12), st.sampled_from(["first", "last"]))
def test_thirds_match_reference(values, remainder):
    found = thirds(np.array(values), remainder)
    expected = reference.thirds([None if np.isnan(v) else v for v in values], remainder)
    for group, members in enumerate(expected):
        assert sorted(members) == np.flatnonzero(found == group).tolist()
    assert ((found == -1) == np.isnan(values)).all()


def test_sizes_of_published_tables():
    assert third_sizes(100) == (34, 33, 33)
    assert third_sizes(100, "last") == (33, 33, 34)
    assert third_sizes(1000) == (334, 333, 333)
    assert third_sizes(2) == (1, 0, 1)
    assert third_sizes(1) == (1, 0, 0)
    assert third_sizes(0) == (0, 0, 0)


def test_frequency_thresholds_are_those_of_the_literature():
    counts = np.array([19, 20, 100, 101])
    assert by_frequency(counts).tolist() == [2, 1, 1, 0]
    assert by_frequency(counts, few=20, many=99).tolist() == [2, 1, 0, 0]


def test_membership_skips_absent_classes_and_empty_groups():
    weight = membership(np.array([0, 0, 2, -1]), np.array([True, False, True, False]))
    np.testing.assert_array_equal(weight, [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])


def _cells(correct, support):
    num_classes = len(support)
    right = np.repeat([1.0, 0.0], num_classes)
    return np.tile(np.arange(num_classes), 2), np.concatenate([correct, support - correct]), right, right[:, None]


def test_cross_fit_of_counts_equals_splitting_rows():
    rng = np.random.default_rng(1)
    y_true = np.repeat(np.arange(6), 30)
    right = rng.random(180) < np.linspace(0.9, 0.5, 6)[y_true]
    correct = np.bincount(y_true, weights=right).astype(int)
    ours = cross_fit(*_cells(correct, np.full(6, 30)), 6, rng=rng, splits=400).means[:, 0]
    expected = reference.cross_fitted_thirds(y_true.tolist(), right.tolist(), 6, splits=200, seed=0)
    np.testing.assert_allclose(ours, expected, atol=0.012)


def test_cross_fit_shows_no_gap_where_there_is_none():
    """The own ranking shows 10 points between easy and hard when all classes are equal; the cross-fitted none."""
    rng = np.random.default_rng(2)
    own, cross = [], []
    for _ in range(60):
        support = np.full(12, 50)
        correct = rng.binomial(support, 0.7)
        own.append(np.ptp([g.mean() for g in np.split(np.sort(correct / support), 3)]))
        means = cross_fit(*_cells(correct, support), 12, rng=rng, splits=10).means[:, 0]
        cross.append(means[0] - means[2])
    assert np.mean(own) > 0.1
    assert abs(np.mean(cross)) < 0.02


@pytest.mark.parametrize("truth", [np.full(20, 0.7), np.linspace(0.5, 0.95, 20)], ids=["no gap", "large gap"])
def test_cross_fitted_thirds_have_intervals_that_cover(truth):
    """The target: the average of the estimate, i.e. the accuracy of the classes that look hardest on half the samples."""
    rng = np.random.default_rng(0)
    support = np.full(20, 50)
    values, bounds = [], []
    for _ in range(150):
        hits = rng.binomial(support, truth)
        fit = cross_fit(*_cells(hits, support), 20, rng=rng, splits=20)
        values.append(fit.means[:, 0])
        bounds.append(mean_interval(fit.means[:, 0], fit.squared, hits, support, 0.95))
    low, high = np.moveaxis(bounds, 1, 0)
    target = np.mean(values, axis=0)
    assert (((low <= target) & (target <= high)).mean(0) >= 0.9).all()


def test_cross_fit_with_single_samples_and_absent_classes():
    fit = cross_fit(*_cells(np.array([1, 0, 3, 0]), np.array([1, 1, 4, 0])), 4, rng=np.random.default_rng(0))
    assert np.isfinite(fit.means).all()
    assert fit.squared[:, 3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(
        fit.squared.sum(), 3
    )  # each third is one class, and every class is scored in every split


def test_cross_fit_of_single_samples_ranks_without_looking():
    """With one sample per class nothing is left to rank by: the thirds are fixed, not those that came out worst."""
    rng = np.random.default_rng(0)
    hard = [cross_fit(*_cells(rng.binomial(1, 0.7, 30), np.ones(30, int)), 30, rng=rng).means[2, 0] for _ in range(200)]
    assert np.mean(hard) == pytest.approx(0.7, abs=0.03)


def test_every_ranking_is_explained_in_one_line():
    assert set(groups.RANKINGS) == {"own", "reference", "cross", "frequency"}
    assert all("\n" not in text and len(text) < 140 for text in groups.RANKINGS.values())
