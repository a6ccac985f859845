"""Samples of a paired comparison, grouped by class and by the runs that are correct: :class:`Cells`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from classgap.arrays import Float64s, Ints, divide, group_sums

_MAX_PACKED_RUNS = 40  # the pattern of hits and the class index share one 64-bit key


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples grouped by class and by the runs that are correct: ``count[i]`` samples of ``class_of[i]`` with ``right[i]``.

    ``right`` is ``(C, S)`` of 0 and 1; the first ``num_before`` columns are the runs before, the others those after.
    Cells are sorted by class.
    """

    class_of: Ints
    count: Ints
    right: Float64s
    num_before: int
    num_classes: int

    @classmethod
    def from_samples(cls, y_true: Ints, before: Sequence[Ints], after: Sequence[Ints], num_classes: int) -> Cells:
        """From predictions, one array per run."""
        hits = np.stack([pred == y_true for pred in (*before, *after)], axis=1)
        if hits.shape[1] > _MAX_PACKED_RUNS:  # too many patterns to share: every sample is a cell
            first, count = np.argsort(y_true, kind="stable"), np.ones(len(y_true), dtype=np.int64)
        else:
            pattern = hits @ (1 << np.arange(hits.shape[1], dtype=np.int64))
            keys = (y_true.astype(np.int64) << hits.shape[1]) | pattern  # class first: cells come out sorted by class
            _, first, count = np.unique(keys, return_index=True, return_counts=True)
        return cls(y_true[first], count, hits[first].astype(np.float64), len(before), num_classes)

    @classmethod
    def from_tables(cls, tables: Ints) -> Cells:
        """From one 2×2 table per class: ``tables[k, b, a]`` samples; b and a are 1 if *before* and *after* are correct."""
        num_classes = len(tables)
        class_of = np.repeat(np.arange(num_classes), 4)
        right = np.tile([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], (num_classes, 1))
        count = tables.transpose(0, 2, 1).reshape(-1)  # cells in the order of from_samples, so that both redraw alike
        keep = count > 0
        return cls(class_of[keep], count[keep], right[keep], 1, num_classes)

    @property
    def num_after(self) -> int:
        return int(self.right.shape[1]) - self.num_before

    @property
    def paired_once(self) -> bool:
        """One run per side."""
        return bool(self.right.shape[1] == 2)

    @cached_property
    def support(self) -> Ints:
        return self.class_sum(np.ones(len(self.count))).astype(np.int64)

    @cached_property
    def accuracy(self) -> Float64s:
        """``(K, S)`` class accuracies of every run; nan where a class is absent."""
        return np.stack([divide(self.class_sum(column), self.support) for column in self.right.T], axis=1)

    @property
    def before(self) -> Float64s:
        """``(C,)`` share of the runs before that are right."""
        return np.asarray(self.right[:, : self.num_before].mean(1))

    @property
    def after(self) -> Float64s:
        return np.asarray(self.right[:, self.num_before :].mean(1))

    @cached_property
    def seed_noise(self) -> Float64s:
        """``(K,)`` variance between runs of one side on the same sample, averaged over the class's samples."""
        sides = (self.right[:, : self.num_before], self.right[:, self.num_before :])
        squares = sum(((side - side.mean(1, keepdims=True)) ** 2).sum(1) for side in sides)
        return divide(self.class_sum(np.asarray(squares) / max(self.right.shape[1] - 2, 1)), self.support)

    def class_sum(self, value: Float64s) -> Float64s:
        """Sum over the samples of each class of a value given per cell."""
        return group_sums(self.count * value, self.class_of, self.num_classes)
