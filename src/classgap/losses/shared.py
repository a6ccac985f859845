"""Pieces several families need: labels of soft targets, rows of all ranks, running class means, small projections."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.batchstats import all_reduce_sum, class_sums, gather_rows, gather_with_gradient
from classgap.checks import InputError


def hard_labels(target: Tensor) -> Tensor:
    """:math:`(N,)` labels; in class statistics and pairs a soft target counts for its most likely class."""
    return target if target.dim() == 1 else target.argmax(1)


def mean_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy divided by the batch size, for hard or soft targets; 0 with a graph on a rank without samples."""
    if logits.shape[0] == 0:
        return logits.sum()
    return F.cross_entropy(logits, target if target.dim() == 1 else target.to(logits.dtype))


def gathered(features: Tensor, labels: Tensor, training: bool) -> tuple[Tensor, Tensor]:
    """Rows of all ranks while training, with gradients, so that pairs form as on one device; this rank's own otherwise."""
    if not training:
        return features, labels
    return gather_with_gradient(features)[0], gather_rows(labels)


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """:math:`(N, M)` squared Euclidean distances, centred first so that large means do not cancel."""
    centre = right.detach().mean(0)
    left, right = left - centre, right - centre
    product = left @ right.T
    return (left.square().sum(1)[:, None] + right.square().sum(1)[None] - 2 * product).clamp_min(0.0)


def check_num_features(num_features: int, method: str) -> int:
    """The feature dimension, which a method with own parameters or class vectors must know at construction."""
    if isinstance(num_features, bool) or not isinstance(num_features, int) or num_features < 1:
        raise InputError(
            f"{method} needs num_features, the feature dimension d as a whole number, got {num_features!r}"
        )
    return num_features


def projection(num_features: int, width: int) -> nn.Sequential:
    """Two layers that map features into the space where they are compared."""
    return nn.Sequential(nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, width))


def check_views(logits: Tensor, views: int) -> int:
    """Samples in a view-major batch."""
    if logits.shape[0] % views:
        raise InputError(
            f"a loss with views={views} needs the rows of all views one after the other, got {logits.shape[0]} rows, "
            f"which {views} does not divide; concatenate the views or build the loss with views=1"
        )
    return logits.shape[0] // views


class ModuleReference:
    """A module that belongs to the model: no part of the parameters and the state of the loss that refers to it.

    A deep copy of the loss refers to the same module, and a deep copy of model and loss together to the copied module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleReference:
        return ModuleReference(memo.get(id(self.module), self.module))


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
        r"""Move the means of classes in the batch of all ranks a share of the way to their batch mean.

        Args:
            step: The share. With ``shrink`` it is multiplied by :math:`b/(1+b)` for :math:`b` samples of the class.
        """
        self.check_width(features)
        sums, counts = all_reduce_sum(*class_sums(features.detach().to(self.mean.dtype), labels, self.num_classes))
        share = step * counts / (1 + counts) if shrink else torch.full_like(counts, step)
        share = torch.where(self.seen, share, 1.0) * (counts > 0)
        batch_mean = sums / counts.clamp_min(1.0)[:, None]
        self.mean.lerp_(batch_mean, share[:, None])
        self.seen.logical_or_(counts > 0)

    @torch.no_grad()
    def replace(self, sums: Tensor, counts: Tensor) -> None:
        """Take the means of a whole pass; classes absent from it keep theirs. Sums and counts are those of this rank."""
        sums, counts = all_reduce_sum(sums, counts)
        present = counts > 0
        self.mean.copy_(torch.where(present[:, None], sums / counts.clamp_min(1.0)[:, None], self.mean))
        self.seen.logical_or_(present)

    def check_width(self, features: Tensor) -> None:
        """Features must have the dimension the means were built for."""
        if features.shape[1] != self.mean.shape[1]:
            raise InputError(
                f"features must have the {self.mean.shape[1]} columns the loss was built for, got {features.shape[1]}; "
                f"pass num_features={features.shape[1]}"
            )
