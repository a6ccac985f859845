"""Gap metrics against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classgap.measure.statistics.metrics import CORRECTED, FROM_ACCURACY, METRICS, evaluate, label
from reference import metrics as reference

accuracies = st.lists(st.integers(0, 1000).map(lambda hits: hits / 1000), min_size=1, max_size=25)


@given(accuracies, st.sampled_from(["first", "last"]))
def test_match_reference(values, remainder):
    found = dict(zip(FROM_ACCURACY, evaluate(np.array(values), remainder=remainder), strict=True))
    expected = reference.metrics(values, remainder)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@given(accuracies, st.randoms())
def test_order_of_classes_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    np.testing.assert_allclose(evaluate(np.array(values)), evaluate(np.array(shuffled)))


@given(st.floats(0.01, 1), st.integers(3, 20))
def test_equal_classes_have_no_gap(value, count):
    found = dict(zip(FROM_ACCURACY, evaluate(np.full(count, value)), strict=True))
    for name in ("gap", "std", "gini"):
        assert found[name] == pytest.approx(0, abs=1e-9)
    for name in ("balanced", "easy", "hard", "worst", "harmonic_mean", "geometric_mean"):
        assert found[name] == pytest.approx(value)


def test_batches_equal_single_evaluations():
    rng = np.random.default_rng(0)
    batch = rng.random((4, 3, 11))
    for i in range(4):
        for j in range(3):
            np.testing.assert_array_equal(evaluate(batch)[i, j], evaluate(batch[i, j]))


def test_one_class_never_right():
    found = dict(zip(FROM_ACCURACY, evaluate(np.array([0.9, 0.8, 0.0])), strict=True))
    assert found["harmonic_mean"] == found["geometric_mean"] == found["worst"] == 0
    assert evaluate(np.zeros(4), ("gini",)).tolist() == [0]


def test_no_classes_give_nan():
    assert np.isnan(evaluate(np.empty(0))).all()


def test_table_is_complete():
    assert set(CORRECTED) < set(METRICS)
    assert label("gap_corrected") == "gap, corrected"
    with pytest.raises(KeyError, match="alone"):
        evaluate(np.ones(3), ("overall",))
