"""Cross-entropy, the baseline of all comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.options import IGNORED, Reduction, UnsmoothedOptions
from classgap.registry import Float, method


def mean_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy divided by the batch size, for hard or soft targets; 0 with a graph on a rank without samples."""
    if logits.shape[0] == 0:
        return logits.sum()
    return F.cross_entropy(logits, target if target.dim() == 1 else target.to(logits.dtype))


@method(
    "cross_entropy",
    kind="loss",
    family="baseline",
    paper="—",
    space={"label_smoothing": Float(0.0, 0.3, default=0.0)},
)
class CrossEntropyLoss(ClassLoss):
    """Plain cross-entropy, optionally with label smoothing: the baseline every method is compared with.

    It fits the probability of the label given the input, frequent classes first because they have more samples. Smoothing
    moves a share of each target to all classes, which bounds how far logits are driven apart.

    When to use: first, always; the results of other methods mean nothing without it.
    Expect: on balanced data the reference; on long tails good overall accuracy where the test set has the same tail, and low
    accuracy of rare classes.
    Pitfalls: on long-tailed data its scores favour frequent classes: compare methods by per-class accuracy, not overall.

    Args:
        label_smoothing: Share of the target spread evenly over all classes.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        label_smoothing: float = 0.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[UnsmoothedOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, label_smoothing=label_smoothing, **options)

    @property
    def has_sample_losses(self) -> bool:
        """:meth:`compute` is the mean of :meth:`per_sample` in one call."""
        return True

    def smoothed(self, batch: LossBatch) -> LossBatch:
        """torch smooths the targets itself, without the matrix of probabilities."""
        return batch

    def compute(self, batch: LossBatch) -> Tensor:
        return self._torch(batch, "mean")

    def sample_losses(self, batch: LossBatch) -> Tensor:
        return self._torch(batch, "none", weight=self.class_weight)

    def per_sample(self, batch: LossBatch) -> Tensor:
        return self._torch(batch, "none")

    def _torch(self, batch: LossBatch, reduction: Reduction, weight: Tensor | None = None) -> Tensor:
        target = batch.target if batch.target.dim() == 1 else batch.target.to(batch.logits.dtype)
        return F.cross_entropy(
            batch.logits,
            target,
            weight=None if weight is None else weight.to(batch.logits.dtype),
            ignore_index=IGNORED if self.ignore_index is None else self.ignore_index,  # only inside torch.compile
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )
