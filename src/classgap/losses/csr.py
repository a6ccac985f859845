"""Confusional spectral regularisation: extra weight on the dominant confusions of the training set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.checks import number, whole
from classgap.losses.base import ClassLoss, TrainingPass
from classgap.losses.batch import LossBatch
from classgap.losses.options import UnweightedOptions
from classgap.losses.tensor_checks import check_state_size
from classgap.registry import Float, Int, method

_AT_ONCE = 100  # steps of the iteration between two questions whether it has converged


def confusion_direction(confusion: Tensor, *, steps: int = 10_000) -> Tensor:
    r"""Weights from the leading singular pair of a non-negative confusion matrix, scaled to [0.01, 2.01].

    .. math:: G = u_1 v_1^\top, \qquad g = 2\,\frac{G - \min G}{\max G - \min G} + 0.01

    Power iteration from a positive start: both vectors stay non-negative, so their sign is unique. It ends when it has
    converged, after at most ``steps`` steps; two largest singular values that differ by less than about 0.1 % count as equal. A
    constant matrix, e.g. without any errors, gives weight 1 everywhere.

    Example:
        >>> confusion_direction(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        tensor([[0.0100, 2.0100],
                [0.0100, 0.0100]])
    """
    right = torch.full_like(confusion[0], 1 / math.sqrt(confusion.shape[1]))
    for _ in range(math.ceil(steps / _AT_ONCE)):
        before = right
        for _ in range(_AT_ONCE):
            right = F.normalize(confusion.T @ (confusion @ right), dim=0)
        if float((right - before).abs().max()) <= 64 * torch.finfo(right.dtype).eps:
            break
    left = F.normalize(confusion @ right, dim=0)
    outer = torch.outer(left, right)
    low, high = outer.min(), outer.max()
    scaled = 2 * (outer - low) / (high - low).clamp_min(1e-12) + 0.01
    return torch.where(high > low, scaled, torch.ones_like(scaled))


@method(
    "csr",
    kind="loss",
    family="information",
    paper="ICLR 2025 (confusional spectral regularization)",
    space={
        "weight": Float(0.05, 1.0, default=0.3),
        "slack": Float(0.0, 0.5, default=0.1),
        "warmup": Int(0, 100, default=0),
    },
    reduces_to=("cross_entropy", {"weight": 0.0}),
)
class ConfusionalSpectralLoss(ClassLoss):
    r"""Cross-entropy with extra weight on the confusions that dominate the spectrum of the training confusion matrix.

    .. math:: L = \tfrac1N\sum_i \big[(1-w) + w\, g_{\hat y_i y_i}\big]\,\mathrm{CE}_i

    Before each epoch a pass over the training data counts errors (with the true logit lowered by a share of its size, so that
    samples close to the boundary count) and takes :math:`g` from the leading singular pair, see :func:`confusion_direction`.
    The clean-data form: no adversarial examples.

    When to use: a few pairs of classes make most of the errors, and the model is already trained (fine-tuning).
    Expect: on balanced data fewer errors between the classes that are confused most, and about the same overall; on
    long tails some gain, since the leading confusions are of rare classes with frequent ones.
    Pitfalls: an extra pass over the data each epoch; without :meth:`start_epoch` the weights stay 1 and this is cross-entropy.

    Args:
        weight: Share :math:`w` of the weighted part.
        slack: Share of its size by which the true logit is lowered when errors are counted.
        warmup: Epochs of plain cross-entropy first.
    Reference: Jin et al., *Enhancing robust fairness via confusional spectral regularization*, ICLR 2025.
    """

    pair_weight: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        weight: float = 0.3,
        slack: float = 0.1,
        warmup: int = 0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[UnweightedOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.weight = number("weight", weight, low=0.0, high=1.0)
        self.slack = number("slack", slack, low=0.0)
        self.warmup = whole("warmup", warmup, low=0)
        check_state_size(num_classes**2, f"a weight for each pair of {num_classes} classes", self.name)
        self.register_buffer("pair_weight", torch.ones(num_classes, num_classes))

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        if epoch < self.warmup or not self.weight:
            return
        shape = (self.num_classes, self.num_classes)
        errors = torch.zeros(shape, dtype=torch.float64, device=self.pair_weight.device)
        totals = torch.zeros(self.num_classes, dtype=torch.float64, device=self.pair_weight.device)
        for batch in training_pass():
            logits, target = batch.logits, batch.target
            true = logits.gather(1, target[:, None])
            predicted = logits.scatter(1, target[:, None], true - self.slack * true.abs()).argmax(1)
            wrong = (predicted != target).to(errors.dtype)
            errors.view(-1).index_add_(0, predicted * self.num_classes + target, wrong)
            totals.index_add_(0, target, torch.ones_like(wrong))
        errors, totals = all_reduce_sum(errors, totals)
        self.pair_weight.copy_(confusion_direction(errors / totals.clamp_min(1.0)))

    def per_sample(self, batch: LossBatch) -> Tensor:
        logits, target = batch.logits, batch.target
        losses = F.cross_entropy(logits, target, reduction="none")
        weight = self.pair_weight.to(logits.dtype)[logits.detach().argmax(1), target]
        return ((1 - self.weight) + self.weight * weight) * losses
