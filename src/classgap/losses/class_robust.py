"""Base of the robust losses: a weighted sum of class means, weights chosen from the current class losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.state import read_state


class ClassRobustLoss(ClassLoss):
    r"""Base of losses :math:`\sum_k v_k \ell_k` over class means :math:`\ell_k` of the cross-entropy in a batch.

    A subclass implements :meth:`mixture`. Class means are those of the batch of all ranks.
    """

    def mixture(self, means: Tensor, present: Tensor) -> Tensor:
        """:math:`(K,)` coefficients for the class means, 0 for classes that are absent; may write state."""
        raise NotImplementedError(f"{type(self).__name__} must implement mixture")

    def compute(self, batch: LossBatch) -> Tensor:
        losses, labels, shares = losses_by_label(batch.logits, batch.target)
        sums, counts = class_loss_sums(losses, labels, shares, self.num_classes)
        if self.across_ranks:
            sums, counts = all_reduce_sum(sums, counts)
        present = counts > 0
        counts = torch.where(present, counts, 1)
        mixture = read_state(self.mixture(sums / counts, present)).to(losses.dtype)
        coefficients = torch.where(present, mixture, 0)
        # Written as a mean over samples, whose average over ranks is the loss of the whole batch.
        weights = coefficients / counts * (counts * present).sum()
        return (weights[labels] * shares * losses).sum() / max(1, len(batch))

    compute_empty = compute  # a rank without samples still takes part in the collectives


def losses_by_label(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy for each label a row may have, the labels, and the share of the row each has."""
    if target.dim() == 1:
        losses = F.cross_entropy(logits, target, reduction="none")
        return losses, target, torch.ones_like(losses)
    rows, labels = target.nonzero(as_tuple=True)
    losses = F.cross_entropy(logits[rows], labels, reduction="none")
    return losses, labels, target[rows, labels].to(losses.dtype)


def class_loss_sums(losses: Tensor, labels: Tensor, shares: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    zeros = losses.new_zeros(num_classes)
    return zeros.index_add(0, labels, losses.detach() * shares), zeros.index_add(0, labels, shares)
