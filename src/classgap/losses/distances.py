"""Distances between rows of two matrices."""

from __future__ import annotations

from torch import Tensor


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """:math:`(N, M)` squared Euclidean distances, centred first so that large means do not cancel."""
    centre = right.detach().mean(0)
    left, right = left - centre, right - centre
    product = left @ right.T
    return (left.square().sum(1)[:, None] + right.square().sum(1)[None] - 2 * product).clamp_min(0.0)
