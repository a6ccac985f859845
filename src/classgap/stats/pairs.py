"""A batch sorted by class, and the pairs of samples that share a class: O(N log N + pairs), never N²."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 2**22  # numbers held at once while forming differences: 16 MB in float32


class ClassRuns(NamedTuple):
    """A batch sorted by label; a class is a run of consecutive rows."""

    labels: Tensor
    """:math:`(N,)` labels, ascending."""
    order: Tensor
    """:math:`(N,)` where each sorted row was in the batch."""
    position: Tensor
    """:math:`(N,)` 0, 1, 2, …"""
    start: Tensor
    """:math:`(N,)` position of the first row of the same class."""
    size: Tensor
    """:math:`(N,)` number of rows of the same class."""


class ClassPairs(NamedTuple):
    """All unordered pairs of rows with equal labels."""

    runs: ClassRuns
    first: Tensor
    """:math:`(P,)` rows of the batch."""
    second: Tensor
    """:math:`(P,)` rows of the batch."""
    second_sorted: Tensor
    """:math:`(P,)` sorted position of ``second``."""
    squared_distance: Tensor
    """:math:`(P,)` between the features of the two."""


def class_runs(target: Tensor) -> ClassRuns:
    """Sort a batch by class."""
    labels, order = torch.sort(target, stable=True)
    start = torch.searchsorted(labels, labels)
    size = torch.searchsorted(labels, labels, right=True).sub_(start)
    return ClassRuns(labels, order, torch.arange(labels.shape[0], device=target.device), start, size)


def class_pairs(features: Tensor, target: Tensor) -> ClassPairs:
    """Pairs of the same class and their distances, from explicit differences in chunks of bounded memory.

    Example:
        >>> pairs = class_pairs(torch.tensor([[0.0], [5.0], [2.0], [3.0]]), torch.tensor([7, 3, 7, 7]))
        >>> pairs.first, pairs.second, pairs.squared_distance
        (tensor([0, 0, 2]), tensor([2, 3, 3]), tensor([4., 9., 1.]))
    """
    runs = class_runs(target)
    earlier = runs.position - runs.start  # every row pairs with the rows of its class before it
    second = torch.repeat_interleave(runs.position, earlier)
    # The pairs of one row are consecutive: counting from the first of them gives the position of the partner.
    shift = runs.position - earlier.cumsum(0)
    first = torch.arange(second.shape[0], device=target.device).add_(shift.index_select(0, second))
    rows, partners = runs.order.index_select(0, first), runs.order.index_select(0, second)
    return ClassPairs(runs, rows, partners, second, squared_distances(features, rows, partners))


def squared_distances(features: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Squared distance between rows ``first[i]`` and ``second[i]``."""
    parts = [_differences(features, i, j).square_().sum(1) for i, j in _chunks(features, first, second)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def add_along_pairs(features: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    r"""Gradient of :math:`\frac12\sum_p w_p\|\phi_{i_p}-\phi_{j_p}\|^2`: each pair moves its two rows apart by ``weight``."""
    result = torch.zeros_like(features)
    for i, j, w in _chunks(features, first, second, weight):
        apart = _differences(features, i, j).mul_(w[:, None])
        result.index_add_(0, i, apart).index_add_(0, j, apart, alpha=-1)
    return result


def _differences(features: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return features.index_select(0, first).sub_(features.index_select(0, second))


def _chunks(features: Tensor, *per_pair: Tensor) -> list[tuple[Tensor, ...]]:
    step = max(1, _CHUNK // max(1, features.shape[1]))
    if per_pair[0].shape[0] <= step:
        return [per_pair]
    return list(zip(*(torch.split(part, step) for part in per_pair), strict=True))
