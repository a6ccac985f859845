"""The classes of a batch, and the pairs of samples that share one: O(N log N + pairs), never N²."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from classgap.batchstats.backend import Array, arrays_like, as_indices, as_tensor, library, to_numpy, view
from classgap.batchstats.sums import squared_norms

_CHUNK = 2**22  # numbers held at once while forming differences: 16 MB in float32


class BatchClasses(NamedTuple):
    """The classes of a batch."""

    classes: Array
    """:math:`(U,)` distinct labels, ascending."""
    size: Array
    """:math:`(U,)` number of rows of each."""
    slot: Array
    """:math:`(N,)` the position of the label of each row in ``classes``."""


class CentredRows(NamedTuple):
    """The rows of a batch whose class has at least two rows in it, minus the mean of their class."""

    position: Tensor
    """:math:`(M,)` their positions in the batch."""
    slot: Array
    """:math:`(M,)` the position of the class of each row in :attr:`BatchClasses.classes`."""
    size: Array
    """:math:`(M,)` number of rows of that class."""
    values: Tensor
    """:math:`(M, d)` the rows minus the mean of their class."""


class ClassPairs(NamedTuple):
    """All unordered pairs of rows with equal labels."""

    present: BatchClasses
    member: Array
    """:math:`(2P,)` rows of the batch: the first ones of all pairs, then the second ones."""
    squared_distance: Array
    """:math:`(P,)` between the features of the two."""
    difference: Array | None
    """:math:`(P, d)` first minus second; None if they would take too much memory."""

    @property
    def first(self) -> Array:
        """:math:`(P,)` rows of the batch."""
        return self.member[: len(self.squared_distance)]

    @property
    def second(self) -> Array:
        """:math:`(P,)` rows of the batch."""
        return self.member[len(self.squared_distance) :]


def batch_classes(target: Tensor) -> BatchClasses:
    """The distinct labels of a batch.

    Example:
        >>> batch_classes(torch.tensor([7, 3, 7]))
        BatchClasses(classes=array([3, 7]), size=array([1, 2]), slot=array([1, 0, 1]))
    """
    return BatchClasses(*arrays_like(target, *_sort(target)[:3]))


def class_means(rows: Tensor, slot: Tensor, size: Array) -> Tensor:
    """Mean of the rows of each slot, of which there are ``size``."""
    sums = rows.new_zeros(len(size), rows.shape[1]).index_add_(0, slot, rows)
    return sums.div_(as_tensor(size, rows)[:, None])


def centred_rows(rows: Tensor, present: BatchClasses) -> CentredRows:
    """The rows whose class has at least two rows in the batch, minus the mean of their class.

    With many classes these are few of the rows.

    Example:
        >>> centred = centred_rows(torch.tensor([[0.0], [5.0], [2.0]]), batch_classes(torch.tensor([7, 3, 7])))
        >>> centred.position, centred.values[:, 0]
        (tensor([0, 2]), tensor([-1.,  1.]))
    """
    shared = present.size > 1
    (place,) = library(shared).where(shared[present.slot])
    slot = present.slot[place]
    at, number = as_indices(place, (shared.cumsum(0) - 1)[slot])
    centred = rows.index_select(0, at)
    centred -= class_means(centred, number, present.size[shared]).index_select(0, number)
    return CentredRows(at, slot, present.size[slot], centred)


def class_pairs(features: Array, target: Tensor) -> ClassPairs:
    """Pairs of the same class and their distances, from explicit differences in chunks of bounded memory.

    Example:
        >>> pairs = class_pairs(torch.tensor([[0.0], [5.0], [2.0], [3.0]]), torch.tensor([7, 3, 7, 7]))
        >>> pairs.first, pairs.second, pairs.squared_distance
        (array([0, 0, 2]), array([2, 3, 3]), array([4., 9., 1.], dtype=float32))
    """
    classes, size, slot, order, position, earlier = _sort(target)
    second = position.repeat(earlier)  # every row pairs with the rows of its class before it
    # The pairs of one row are consecutive: counting from the first of them gives the position of the partner.
    first = np.arange(len(second)) + (position - earlier.cumsum())[second]
    *present, member = arrays_like(target, classes, size, slot, order[np.concatenate((first, second))])
    distance, difference = _distances(view(features), member[: len(second)], member[len(second) :])
    return ClassPairs(BatchClasses(*present), member, distance, difference)


def _sort(target: Tensor) -> tuple[Array, ...]:
    """Classes, sizes, slots, the order that sorts the batch, 0, 1, …, and how many of its class are before each sorted row.

    Labels are sorted on the host: how many classes and pairs there are has to be known there in any case.
    """
    labels = to_numpy(target)
    order = labels.argsort(kind="stable")
    labels = labels[order]
    new = np.ones(len(labels), bool)
    np.not_equal(labels[1:], labels[:-1], out=new[1:])
    begin, slot = new.nonzero()[0], np.empty_like(order)
    slot[order] = sorted_slot = new.cumsum() - 1
    position = np.arange(len(order))
    return labels[begin], np.bincount(sorted_slot), slot, order, position, position - begin[sorted_slot]


def _distances(rows: Array, first: Array, second: Array) -> tuple[Array, Array | None]:
    """Squared distance between rows ``first[i]`` and ``second[i]``; the differences too if they fit in one chunk."""
    chunks = _chunks(rows, len(first))
    if len(chunks) == 1:
        difference = _differences(rows, first, second)
        return squared_norms(difference), difference
    parts = [squared_norms(_differences(rows, first[part], second[part])) for part in chunks]
    return library(first).concatenate(parts), None


def add_along_pairs(
    features: Tensor, first: Array, second: Array, weight: Array, difference: Array | None = None
) -> Tensor:
    r"""Gradient of :math:`\frac12\sum_p w_p\|\phi_{i_p}-\phi_{j_p}\|^2`: each pair moves its two rows apart by ``weight``.

    ``difference``, where the caller has it, is overwritten.
    """
    result = torch.zeros_like(features)
    for part in _chunks(features, len(first)):
        i, j = first[part], second[part]
        apart = torch.as_tensor(_differences(view(features), i, j) if difference is None else difference)
        apart *= as_tensor(weight[part][:, None], features)
        i, j = as_indices(i, j)
        result.index_add_(0, i, apart).index_add_(0, j, apart, alpha=-1)
    return result


def _differences(rows: Array, first: Array, second: Array) -> Array:
    if isinstance(rows, Tensor):
        first, second = as_indices(first, second)
        return rows.index_select(0, first).sub_(rows.index_select(0, second))
    difference = rows.take(first, 0)
    difference -= rows.take(second, 0)
    return difference


def _chunks(rows: Array, pairs: int) -> list[slice]:
    """Parts of the pairs whose differences may be held at once; one part if there are no pairs."""
    step = max(1, _CHUNK // max(1, rows.shape[1]))
    return [slice(start, start + step) for start in range(0, max(1, pairs), step)]
