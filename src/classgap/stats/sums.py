"""Sums by class, by scatter: never a loop over classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from classgap.stats.collectives import all_reduce_with_gradient, gather_rows, is_distributed


def class_sums(values: Tensor, target: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum of ``values`` and number of samples for each class.

    Count first, divide last: sums and counts add up over batches and ranks, means do not.

    Shape:
        values :math:`(N, …)`, target :math:`(N,)`; returns :math:`(K, …)` and :math:`(K,)`.
    Example:
        >>> class_sums(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 2]), 3)
        (tensor([3., 0., 5.]), tensor([2., 0., 1.]))
    """
    sums = values.new_zeros(num_classes, *values.shape[1:]).index_add_(0, target, values)
    counts = values.new_zeros(num_classes).index_add_(0, target, values.new_ones(target.shape[0]))
    return sums, counts


class ClassScatter(NamedTuple):
    """Batch statistics of the ``U`` classes that occur in it."""

    classes: Tensor
    """:math:`(U,)` labels, ascending."""
    counts: Tensor
    """:math:`(U,)` samples of each."""
    means: Tensor
    """:math:`(U, d)` feature means."""
    scatter: Tensor
    r""":math:`(U,)` sums of :math:`\|\phi_i - m_k\|^2`."""
    second: Tensor
    r""":math:`(U,)` sums of :math:`\|\phi_i\|_p^2`."""


def squared_norms(features: Tensor, p: float) -> Tensor:
    r""":math:`\|\phi_i\|_p^2` of each row, for any :math:`p \ge 1` and infinity."""
    if p == 2:
        return features.square().sum(1)
    norms: Tensor = torch.linalg.vector_norm(features, ord=p, dim=1)
    return norms.square()


def class_scatter(features: Tensor, target: Tensor, *, p: float = 2.0) -> ClassScatter:
    """Statistics of the classes present in the batch of all ranks; costs O(N·d), whatever the number of classes.

    Deviations are taken from the class mean before squaring: the difference of moments would cancel when means are large.
    """
    classes, inverse, counts = torch.unique(target, return_inverse=True, return_counts=True)
    counts = counts.to(features.dtype)
    means = features.new_zeros(classes.shape[0], features.shape[1]).index_add_(0, inverse, features)
    means /= counts[:, None]
    deviations = (features - means[inverse]).square_().sum(1)
    sums = features.new_zeros(classes.shape[0], 2)
    sums.index_add_(0, inverse, torch.stack((deviations, squared_norms(features, p)), 1))
    local = ClassScatter(classes, counts, means, sums[:, 0], sums[:, 1])
    return _merge_ranks(local) if is_distributed() else local


def _merge_ranks(local: ClassScatter) -> ClassScatter:
    """Pool the ranks' statistics: exact also when a class is spread unevenly over ranks (parallel-axis theorem)."""
    labels, counts, means, scatter, second = (gather_rows(part) for part in local)
    classes, inverse = torch.unique(labels, return_inverse=True)
    pooled = means.new_zeros(classes.shape[0], means.shape[1]).index_add_(0, inverse, means * counts[:, None])
    total = counts.new_zeros(classes.shape[0]).index_add_(0, inverse, counts)
    pooled /= total[:, None]
    between = counts * (means - pooled[inverse]).square().sum(1)
    sums = counts.new_zeros(classes.shape[0], 2)
    sums.index_add_(0, inverse, torch.stack((scatter + between, second), 1))
    return ClassScatter(classes, total, pooled, sums[:, 0], sums[:, 1])


def total_scatter(features: Tensor) -> Tensor:
    r"""Mean :math:`\|\phi_i - \bar\phi\|^2` over the batch of all ranks, differentiated.

    Example:
        >>> total_scatter(torch.tensor([[0.0], [2.0]]))
        tensor(1.)
    """
    samples = all_reduce_with_gradient(features.new_tensor(float(features.shape[0])))
    mean = all_reduce_with_gradient(features.sum(0)) / samples
    return all_reduce_with_gradient((features - mean).square().sum()) / samples
