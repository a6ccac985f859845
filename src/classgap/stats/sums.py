"""Sums by class, by scatter: never a loop over classes."""

from __future__ import annotations

from torch import Tensor

from classgap.stats.collectives import all_reduce_with_gradient


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


def total_scatter(features: Tensor) -> Tensor:
    r"""Mean :math:`\|\phi_i - \bar\phi\|^2` over the batch of all ranks, differentiated.

    Example:
        >>> total_scatter(torch.tensor([[0.0], [2.0]]))
        tensor(1.)
    """
    samples = all_reduce_with_gradient(features.new_tensor(float(features.shape[0])))
    mean = all_reduce_with_gradient(features.sum(0)) / samples
    return all_reduce_with_gradient((features - mean).square().sum()) / samples
