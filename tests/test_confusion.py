"""The count matrix: the same counts whatever the route and storage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from classgap.checks import InputError
from classgap.predictions import confusion
from classgap.predictions.confusion import Confusion
from reference import metrics as reference

codes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60)


@given(codes)
def test_matches_sklearn(pairs):
    y_true, y_pred = np.array(pairs).T
    ours = Confusion.from_codes(y_true, y_pred, 6)
    np.testing.assert_array_equal(ours.counts, confusion_matrix(y_true, y_pred, labels=range(6)))
    expected = reference.class_accuracies(y_true, y_pred, 6)
    np.testing.assert_allclose(ours.accuracy, [np.nan if a is None else a for a in expected])
    precision, _, f1, support = precision_recall_fscore_support(y_true, y_pred, labels=range(6), zero_division=0)
    np.testing.assert_array_equal(ours.support, support)
    np.testing.assert_allclose(np.nan_to_num(ours.precision), precision)
    np.testing.assert_allclose(ours.f1[support > 0], f1[support > 0])


def test_absent_class_is_nan_not_zero():
    c = Confusion.from_codes(np.array([0, 0]), np.array([0, 2]), 3)
    assert np.isnan(c.accuracy[[1, 2]]).all()
    assert np.isnan(c.f1[[1, 2]]).all()
    assert np.isnan(c.precision[1])
    assert c.precision[2] == 0


@given(codes, st.booleans())
def test_pairs_may_stand_for_several_samples(pairs, sparse):
    y_true, y_pred = np.array(pairs).T
    repeats = np.arange(len(pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confusion, "DENSE_LIMIT", 3 if sparse else 2048)
        found = Confusion.from_codes(y_true, y_pred, 6, repeats)
        each = Confusion.from_codes(np.repeat(y_true, repeats), np.repeat(y_pred, repeats), 6)
    np.testing.assert_array_equal(found.support, each.support)
    np.testing.assert_array_equal(found.correct, each.correct)
    np.testing.assert_array_equal(found.predicted, each.predicted)


def test_sparse_storage_gives_the_same_numbers(monkeypatch):
    rng = np.random.default_rng(0)
    y_true, y_pred = rng.integers(0, 40, (2, 500))
    dense = Confusion.from_codes(y_true, y_pred, 41)
    monkeypatch.setattr(confusion, "DENSE_LIMIT", 10)
    sparse = Confusion.from_codes(y_true, y_pred, 41)
    assert not isinstance(sparse.counts, np.ndarray)
    for name in ("support", "predicted", "correct", "accuracy", "precision", "f1"):
        np.testing.assert_array_equal(getattr(sparse, name), getattr(dense, name))
    assert sparse.worst_pairs(20) == dense.worst_pairs(20)
    np.testing.assert_array_equal(Confusion.from_counts(dense.counts).support, dense.support)


def test_ten_thousand_classes_stay_small():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10_000, 50_000)
    c = Confusion.from_codes(y, np.roll(y, 1), 10_000)
    assert c.counts.nnz <= 50_000
    assert c.num_samples == 50_000


def test_worst_pairs_by_count_then_share():
    c = Confusion.from_counts([[5, 3, 0], [3, 0, 0], [1, 0, 9]])
    first, second, third = c.worst_pairs(3)
    assert (first.true, first.predicted, first.count, first.share, first.reverse) == (1, 0, 3, 1.0, 3)
    assert (second.true, second.predicted) == (0, 1)
    assert (third.true, third.predicted, third.count) == (2, 0, 1)
    assert Confusion.from_counts(np.eye(3, dtype=int)).worst_pairs(5) == []


def test_counts_may_be_sparse_or_whole_floats():
    matrix = np.array([[2.0, 1.0], [0.0, 3.0]])
    for given_ in (matrix, csr_array(matrix), matrix.astype(np.int32)):
        np.testing.assert_array_equal(Confusion.from_counts(given_).counts, matrix)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 2, 3]], "square"),
        (np.zeros((0, 0)), "square"),
        ([[1, -1], [0, 1]], "whole numbers >= 0"),
        ([[1, np.nan], [0, 1]], "whole numbers >= 0"),
        ([["a", "b"], ["c", "d"]], "whole numbers >= 0"),
        ([[0.5, 0.5], [0, 1]], "before normalising"),
    ],
)
def test_refuses_what_is_no_count_matrix(counts, message):
    with pytest.raises(InputError, match=message):
        Confusion.from_counts(counts)
