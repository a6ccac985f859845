"""Class weights from counts, and what losses that use them share: whether a mean divides by samples or by weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.options import LossOptions

WeightNorm = Literal["batch", "weights"]


def effective_number_weights(class_counts: Tensor, beta: float = 0.9999) -> Tensor:
    r"""Class weights by effective number of samples, with mean 1.

    .. math:: w_k \propto \frac{1-\beta}{1-\beta^{n_k}}

    Args:
        beta: 0 gives equal weights, 1 inverse counts.
    Shape:
        class_counts :math:`(K,)`; returns :math:`(K,)` of float64.
    Example:
        >>> effective_number_weights(torch.tensor([300, 100]), beta=1.0)
        tensor([0.5000, 1.5000], dtype=torch.float64)

    Reference: Cui et al., *Class-balanced loss based on effective number of samples*, CVPR 2019, arXiv:1901.05555, eq. (2).
    """
    counts = torch.as_tensor(class_counts).double()
    if beta == 1:
        weights = 1 / counts
    elif beta == 0:
        weights = torch.ones_like(counts)
    else:
        weights = -1 / torch.expm1(counts * math.log(beta))
    return weights / weights.mean()


class ClassWeightedLoss(ClassLoss):
    """Base of losses in which a sample is weighted by its class.

    A subclass implements :meth:`unweighted`; :meth:`class_weights` may depend on the epoch.

    Args:
        beta: Parameter of :func:`effective_number_weights`.
        weight_norm: What the mean divides by: ``"batch"``, the number of samples, as equations are written; or ``"weights"``, the
            sum of their weights (over all ranks), as ``torch.nn.functional.cross_entropy(weight=…)`` does. They differ
            whenever the classes in a batch do.
    """

    weights_classes = True
    balanced_weights: Tensor | None

    def __init__(
        self,
        num_classes: int,
        *,
        beta: float,
        weight_norm: WeightNorm,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.beta = number("beta", beta, low=0.0, high=1.0)
        one_of("weight_norm", weight_norm, get_args(WeightNorm))
        self.weight_norm: WeightNorm = weight_norm
        weights = None if self.class_counts is None else effective_number_weights(self.class_counts, beta).float()
        self.register_buffer("balanced_weights", weights, persistent=False)

    @property
    def has_sample_losses(self) -> bool:
        """:meth:`compute` is the weighted mean of :meth:`per_sample`."""
        return True

    @property
    def is_mean_of_samples(self) -> bool:
        """Only without class weights."""
        return self.class_weights(None) is None

    def class_weights(self, epoch: int | None) -> Tensor | None:
        """:math:`(K,)` weights with mean 1, or none."""
        return self.balanced_weights

    def unweighted(self, batch: LossBatch) -> Tensor:
        """:math:`(N,)` losses for hard labels, before weighting."""
        raise NotImplementedError(f"{type(self).__name__} must implement unweighted")

    def per_sample(self, batch: LossBatch) -> Tensor:
        losses, weights = self.unweighted(batch), self.class_weights(batch.epoch)
        return losses if weights is None else losses * weights.to(losses.dtype)[batch.target]

    def compute(self, batch: LossBatch) -> Tensor:
        loss = super().compute(batch)
        return loss / self._mean_weight(batch).to(loss.dtype)

    def compute_empty(self, batch: LossBatch) -> Tensor:
        if self.reduction == "mean":
            self._mean_weight(batch)
        return super().compute_empty(batch)

    def _mean_weight(self, batch: LossBatch) -> Tensor:
        """Average weight of a sample in the batch of all ranks; dividing by it makes a mean over samples one over weights."""
        weights, target = self.class_weights(batch.epoch), batch.target
        if weights is None or self.weight_norm == "batch":
            return torch.ones((), device=target.device)
        of_sample = weights[target] if target.dim() == 1 else target.to(weights.dtype) @ weights
        total, samples = of_sample.sum(), torch.ones_like(of_sample).sum()
        if self.across_ranks:
            total, samples = all_reduce_sum(total, samples)
        return total / samples
