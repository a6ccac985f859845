"""Cross-entropy, the baseline of all comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
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
        self, num_classes: int, *, label_smoothing: float = 0.0, class_counts: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.label_smoothing = number("label_smoothing", label_smoothing, low=0.0, high=1.0)

    @property
    def is_mean_of_samples(self) -> bool:
        """:meth:`compute` is the same mean in one call."""
        return True

    def compute(self, batch: LossBatch) -> Tensor:
        target = batch.target if batch.target.dim() == 1 else batch.target.to(batch.logits.dtype)
        return F.cross_entropy(batch.logits, target, label_smoothing=self.label_smoothing)

    def per_sample(self, batch: LossBatch) -> Tensor:
        return F.cross_entropy(batch.logits, batch.target, label_smoothing=self.label_smoothing, reduction="none")
