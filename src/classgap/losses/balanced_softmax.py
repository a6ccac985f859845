"""Balanced softmax: logit adjustment with the published strength."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from classgap.losses.logit_adjusted import LogitAdjustedLoss
from classgap.losses.options import LossOptions
from classgap.registry import method


@method(
    "balanced_softmax",
    kind="loss",
    family="adjust",
    paper="arXiv:2007.10740",
    needs=("class_counts",),
    reduces_to=("logit_adjusted", {}),
)
class BalancedSoftmaxLoss(LogitAdjustedLoss):
    r"""Balanced softmax: each class's exponential is multiplied by its training count.

    .. math:: \ell(z, y) = -\ln \frac{n_y e^{z_y}}{\sum_j n_j e^{z_j}}

    Derived from label shift between a long-tailed training set and a balanced test set. It is logit adjustment with
    ``tau=1`` and nothing to tune.

    When to use: long-tailed training data and a test set, or a cost, that treats classes alike.
    Expect: on balanced data it is cross-entropy; on long tails what ``logit_adjusted`` gives.
    Pitfalls: as for ``logit_adjusted``; the authors' meta sampler is not part of it.
    """

    def __init__(
        self, num_classes: int, *, class_counts: Sequence[float] | Tensor | None = None, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(num_classes, tau=1.0, class_counts=class_counts, **options)
