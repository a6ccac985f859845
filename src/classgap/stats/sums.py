"""Sums by class, by scatter: never a loop over classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from classgap.stats.collectives import all_reduce_sum


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


def squared_norms(rows: Tensor, p: float = 2.0) -> Tensor:
    r""":math:`\|\phi_i\|_p^2` of each row.

    Example:
        >>> squared_norms(torch.tensor([[3.0, 4.0]]))
        tensor([25.])
    """
    norms: Tensor = torch.linalg.vector_norm(rows, ord=p, dim=1)
    return norms.square()


def total_scatter(features: Tensor, *, across_ranks: bool = True) -> Tensor:
    r"""Mean :math:`\|\phi_i - \bar\phi\|^2` over the batch (of all ranks), differentiated.

    Example:
        >>> total_scatter(torch.tensor([[0.0], [4.0], [0.0], [4.0]]))
        tensor(4.)
    """
    value: Tensor = _TotalScatter.apply(features, all_reduce_sum if across_ranks else _alone)
    return value


class _TotalScatter(torch.autograd.Function):
    """The gradient is :math:`2(\\phi_i - \\bar\\phi)/N`: autograd would go through the mean, which adds nothing."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, add: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        samples, mean = add(features.new_tensor(float(features.shape[0])), features.sum(0))
        centred = features - mean / samples
        ctx.save_for_backward(centred, samples)
        ctx.add = add
        return add(torch.linalg.vector_norm(centred).square())[0] / samples

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        centred, samples = ctx.saved_tensors
        return centred * (2 * ctx.add(grad)[0] / samples), None


def _alone(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors
