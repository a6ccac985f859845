"""Counts of samples and of correct predictions per class and slice: :class:`SliceCounts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Ints
from classgap.checks import InputError, printable

MISSING = "(missing)"
MAX_SLICES = 1000


@dataclass(frozen=True, eq=False)
class SliceCounts:
    """Counts of one column: ``correct[k, s]`` of ``support[k, s]`` samples of class k in slice s are predicted correctly.

    Example:
        >>> table = SliceCounts.from_samples("site", np.array(["B", "A", ""]), np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
        >>> table.names, table.support.tolist(), table.correct.tolist()
        (('(missing)', 'A', 'B'), [[0, 1, 1], [1, 0, 0]], [[0, 0, 1], [1, 0, 0]])
    """

    names: tuple[str, ...]
    correct: Ints
    support: Ints

    @classmethod
    def from_samples(
        cls,
        column: str,
        values: NDArray[Any],
        y_true: Ints,
        y_pred: Ints,
        num_classes: int,
        repeats: Ints | None = None,
    ) -> SliceCounts:
        """Count samples; ``values`` is the slice of each sample, ``column`` its name in messages.

        Args:
            repeats: Number of samples that each entry stands for; by default 1.
        """
        distinct, code = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
        names = slice_names(column, distinct)
        place, size = y_true * len(names) + code.reshape(-1), num_classes * len(names)
        support, correct = np.zeros((2, size), dtype=np.int64)
        right, each = y_pred == y_true, np.ones(len(place), dtype=np.int64) if repeats is None else repeats
        np.add.at(support, place, each)
        np.add.at(correct, place[right], each[right])
        return cls(names, correct.reshape(num_classes, -1), support.reshape(num_classes, -1))


def slice_names(column: str, distinct: NDArray[Any]) -> tuple[str, ...]:
    """Names of the distinct values of a column as reports show them; a missing value is a slice of its own."""
    if len(distinct) > MAX_SLICES:
        raise InputError(
            f"the column {column!r} must define at most {MAX_SLICES} slices, but it has {len(distinct):,} distinct values; "
            "group them first, e.g. numbers into ranges"
        )
    values = distinct.tolist()
    if distinct.dtype.kind == "f":
        names = tuple(MISSING if v != v else f"{v:.10g}" for v in values)
    else:
        names = tuple(MISSING if v == "" else printable(str(v)) for v in values)
    return names if len(set(names)) == len(names) else tuple(map(repr, values))
