"""Walking large arrays class by class and block by block, so that memory stays bounded whatever their length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]
Float64s: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

# Entries of one block: 32 MB in float64, large enough for BLAS and small enough for any machine.
BLOCK_ENTRIES = 1 << 22


def row_blocks(num_rows: int, width: int) -> Iterator[slice]:
    """Slices that cover ``num_rows`` rows of ``width`` entries in blocks of at most :data:`BLOCK_ENTRIES`."""
    step = max(1, BLOCK_ENTRIES // max(width, 1))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def rows_of_classes(y_true: Ints, num_classes: int) -> list[Ints]:
    """Row indices of every class, ascending; an absent class has none."""
    order = np.argsort(y_true, kind="stable")
    ends = np.cumsum(np.bincount(y_true, minlength=num_classes))
    return np.split(order, ends[:-1])


def class_blocks(features: Floats, rows: list[Ints]) -> Iterator[tuple[int, Ints, Float64s]]:
    """``(class, row indices, those rows in float64)`` for every class, a large class in several blocks."""
    for k, members in enumerate(rows):
        for block in row_blocks(len(members), features.shape[1]):
            yield k, members[block], features[members[block]].astype(np.float64)


def unit_rows(values: Float64s) -> Float64s:
    """Rows scaled to length 1; rows of zeros stay."""
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def group_sums(values: Floats, place: Ints, size: int) -> Float64s:
    """Sum of ``values`` in each of ``size`` groups; ``place`` says which group a value belongs to."""
    return np.bincount(place, weights=values, minlength=size).astype(np.float64, copy=False)


def class_means(values: Floats, y_true: Ints, num_classes: int) -> Float64s:
    """Mean of ``values`` over the samples of each class; nan where a class is absent."""
    return divide(group_sums(values, y_true, num_classes), np.bincount(y_true, minlength=num_classes))


def divide(numerator: Any, denominator: Any) -> Float64s:
    """``numerator / denominator`` with nan, and no warning, where the denominator is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom != 0)
    return result


def log_sum_exp(values: Float64s) -> Float64s:
    """Logarithm of the summed exponentials of each row; entries may be -inf as long as one in each row is not."""
    top = values.max(axis=1)
    return np.asarray(top + np.log(np.exp(values - top[:, None]).sum(axis=1)))
