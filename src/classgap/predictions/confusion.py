"""The K×K confusion matrix of counts (rows: true class, columns: predicted class)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from classgap.arrays import Float64s, Ints, divide
from classgap.checks import MOST_SAMPLES, InputError

# With more classes the matrix is sparse: a dense one takes 32 MB for 2048 classes and 800 MB for 10 000.
DENSE_LIMIT = 2048


def check_total(name: str, counts: Any) -> None:
    """Refuse numbers of samples whose sum cannot be computed exactly; it would wrap around to a negative number."""
    if (total := float(np.sum(counts, dtype=np.float64))) > MOST_SAMPLES:
        raise InputError(f"{name} must stand for at most {MOST_SAMPLES:.1g} samples in total, got {total:.1g}")


@dataclass(frozen=True)
class ConfusedPair:
    """``count`` samples of class ``true`` were predicted as ``predicted``.

    ``share`` is their share of class ``true``; ``reverse`` counts the samples confused in the other direction.
    """

    true: int
    predicted: int
    count: int
    share: float
    reverse: int


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of (true, predicted) pairs: ``counts`` is a dense array, or a SciPy CSR array beyond 2048 classes.

    Example:
        >>> c = Confusion.from_codes(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
        >>> c.accuracy
        array([0.5, 1. , nan])
        >>> c.worst_pairs(1)
        [ConfusedPair(true=0, predicted=1, count=1, share=0.5, reverse=0)]
    """

    counts: Any

    @classmethod
    def from_codes(cls, y_true: Ints, y_pred: Ints, num_classes: int, repeats: Ints | None = None) -> Confusion:
        """Count pairs of class indices in ``[0, num_classes)``; entry i stands for ``repeats[i]`` samples."""
        if num_classes > DENSE_LIMIT:
            from scipy.sparse import coo_array

            ones = np.ones(len(y_true), dtype=np.int64) if repeats is None else repeats
            return cls(coo_array((ones, (y_true, y_pred)), shape=(num_classes, num_classes)).tocsr())
        codes = y_true * np.int64(num_classes) + y_pred
        if repeats is None:
            counts = np.bincount(codes, minlength=num_classes**2)
        else:
            counts = np.zeros(num_classes**2, dtype=np.int64)
            np.add.at(counts, codes, repeats)
        return cls(counts.reshape(num_classes, num_classes))

    @classmethod
    def from_counts(cls, counts: Any) -> Confusion:
        """Confusion from a matrix of counts, dense or SciPy sparse, after checking it."""
        sparse = hasattr(counts, "tocsr")
        matrix: Any = counts.tocsr() if sparse else np.asarray(counts)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise InputError(f"counts must be a square (K, K) matrix, got shape {matrix.shape}")
        values: Any = matrix.data if sparse else matrix
        if values.dtype.kind not in "iufb" or (values.size and not (np.isfinite(values).all() and values.min() >= 0)):
            raise InputError("counts must hold whole numbers >= 0; rows are true classes, columns predicted ones")
        if values.dtype.kind == "f" and (values != np.rint(values)).any():
            raise InputError("counts must hold whole numbers, got fractions; pass counts before normalising")
        check_total("counts", values)
        matrix = matrix.astype(np.int64)
        if matrix.shape[0] > DENSE_LIMIT and not sparse:
            from scipy.sparse import csr_array

            matrix = csr_array(matrix)
        return cls(matrix.toarray() if sparse and matrix.shape[0] <= DENSE_LIMIT else matrix)

    @property
    def num_classes(self) -> int:
        return int(self.counts.shape[0])

    @cached_property
    def support(self) -> Ints:
        """Number of samples per true class."""
        return np.asarray(self.counts.sum(axis=1), dtype=np.int64).ravel()

    @cached_property
    def predicted(self) -> Ints:
        """Number of predictions per class."""
        return np.asarray(self.counts.sum(axis=0), dtype=np.int64).ravel()

    @cached_property
    def correct(self) -> Ints:
        """Number of correct predictions per class."""
        return np.asarray(self.counts.diagonal(), dtype=np.int64)

    @property
    def num_samples(self) -> int:
        return int(self.support.sum())

    @property
    def accuracy(self) -> Float64s:
        """Share of the samples of each true class that are predicted correctly (recall); nan for a class without samples."""
        return divide(self.correct, self.support)

    @property
    def precision(self) -> Float64s:
        """Share of the predictions of each class that are correct; nan for a class that is never predicted."""
        return divide(self.correct, self.predicted)

    @property
    def f1(self) -> Float64s:
        """Harmonic mean of recall and precision; nan for a class without samples, 0 for one without a correct prediction."""
        f1 = divide(2 * self.correct, self.support + self.predicted)
        f1[self.support == 0] = np.nan
        return f1

    def worst_pairs(self, count: int) -> list[ConfusedPair]:
        """The ``count`` most frequent confusions, by number of samples, then by share of the true class."""
        columns = (values[:count].tolist() for values in self.ordered_pairs())
        return [ConfusedPair(*pair) for pair in zip(*columns, strict=True)]

    def ordered_pairs(self) -> tuple[Ints, Ints, Ints, Float64s, Ints]:
        """The fields of :class:`ConfusedPair` as arrays, for all confusions in the order of :meth:`worst_pairs`."""
        true, predicted, count = self.off_diagonal()
        share = count / np.maximum(self.support[true], 1)
        key, reverse_key = true * self.num_classes + predicted, predicted * self.num_classes + true
        sorted_keys = np.argsort(key)
        place = np.minimum(np.searchsorted(key, reverse_key, sorter=sorted_keys), max(len(key) - 1, 0))
        found = sorted_keys[place] if len(key) else sorted_keys
        reverse = np.where(key[found] == reverse_key, count[found], 0)
        order = np.lexsort((predicted, true, -share, -count))
        return true[order], predicted[order], count[order], share[order], reverse[order]

    def off_diagonal(self) -> tuple[Ints, Ints, Ints]:
        """True class, predicted class and count of every confusion that occurs."""
        if isinstance(self.counts, np.ndarray):
            rows, columns = np.nonzero(self.counts)
            values = self.counts[rows, columns]
        else:
            triples = self.counts.tocoo()
            rows, columns, values = triples.row, triples.col, triples.data
        wrong = (rows != columns) & (values > 0)
        return rows[wrong].astype(np.int64), columns[wrong].astype(np.int64), values[wrong]
