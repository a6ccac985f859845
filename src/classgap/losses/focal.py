"""Focal loss: samples that are already classified well count less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.options import LossOptions, Reduction, reduce
from classgap.registry import Float, method


def focal_cross_entropy(logits: Tensor, target: Tensor, *, gamma: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    r"""Cross-entropy times :math:`(1-p_y)^\gamma`.

    Args:
        gamma: How fast well-classified samples lose weight; 0 gives cross-entropy.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> focal_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0)
        tensor(0.3466)

    Reference: Lin et al., *Focal loss for dense object detection*, ICCV 2017, arXiv:1708.02002, eq. (4), softmax form.
    """
    losses = F.cross_entropy(logits, target, reduction="none")
    # 1 − p without cancellation; the floor keeps the slope of fractional powers finite at p = 1.
    missing = (-torch.expm1(-losses)).clamp_min(1e-12)
    return reduce(losses * missing.pow(gamma), reduction)


@method(
    "focal",
    kind="loss",
    family="reweight",
    paper="arXiv:1708.02002",
    space={"gamma": Float(0.25, 5.0, default=1.0, log=True)},
    reduces_to=("cross_entropy", {"gamma": 0.0}),
)
class FocalLoss(ClassLoss):
    r"""Focal loss: samples the model already gets right count less.

    .. math:: \ell = -(1-p_y)^\gamma \ln p_y

    Each sample's cross-entropy is multiplied by a power of the probability that the true class still lacks. Training therefore
    concentrates on hard samples of all classes.

    When to use: when errors, not class counts, are the problem, and as a regulariser of over-confidence. On long-tailed data it
    does little for the tail by itself; combine with class weights (``class_balanced``, ``kind="focal_softmax"``).
    Expect: on balanced data better calibrated scores and about the same accuracy; on long tails little for the tail.
    Pitfalls: mislabelled samples are the hardest of all and gain weight. The loss is smaller than cross-entropy, so the same
    learning rate means smaller steps. Probabilities come out under-confident for large ``gamma``.

    Args:
        gamma: How fast well-classified samples lose weight. 2 as published, with sigmoids and a weight of 0.25 for positives, for
            detection; 1 with the softmax, as here, in the code of LDAM and what follows it.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        gamma: float = 1.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.gamma = number("gamma", gamma, low=0.0)

    def per_sample(self, batch: LossBatch) -> Tensor:
        return focal_cross_entropy(batch.logits, batch.target, gamma=self.gamma, reduction="none")
