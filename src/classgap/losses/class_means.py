"""A running mean vector for each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from classgap.batchstats import all_reduce_sum, class_sums


class ClassMeans(nn.Module):
    """A running mean vector for each class, the same on every rank. The first batch of a class is taken as it is."""

    mean: Tensor
    seen: Tensor

    def __init__(self, num_classes: int, num_features: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("mean", torch.zeros(num_classes, num_features))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.bool))

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor, *, step: float, shrink: bool = False) -> None:
        r"""Move the means of classes in the batch of all ranks a share of the way to their batch mean, where it is finite.

        Args:
            step: The share. With ``shrink`` it is multiplied by :math:`b/(1+b)` for :math:`b` samples of the class.
        """
        sums, counts = all_reduce_sum(*class_sums(features.detach().to(self.mean.dtype), labels, self.num_classes))
        present = (counts > 0) & torch.isfinite(sums).all(1)
        share = step * counts / (1 + counts) if shrink else torch.full_like(counts, step)
        share = torch.where(self.seen, share, 1.0) * present
        batch_mean = torch.where(present[:, None], sums / counts.clamp_min(1.0)[:, None], 0.0)
        self.mean.lerp_(batch_mean, share[:, None])
        self.seen.logical_or_(present)

    @torch.no_grad()
    def replace(self, sums: Tensor, counts: Tensor) -> None:
        """Take the means of a whole pass; classes absent from it keep theirs. Sums and counts are those of this rank."""
        sums, counts = all_reduce_sum(sums, counts)
        present = (counts > 0) & torch.isfinite(sums).all(1)
        self.mean.copy_(torch.where(present[:, None], sums / counts.clamp_min(1.0)[:, None], self.mean))
        self.seen.logical_or_(present)
