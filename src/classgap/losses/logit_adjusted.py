"""Logit adjustment: the log-prior of the classes is added to the logits during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from classgap.checks import number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.logit_margin import margin_ce
from classgap.losses.options import LossOptions, Reduction
from classgap.registry import Float, method


def logit_adjusted_cross_entropy(
    logits: Tensor, target: Tensor, log_prior: Tensor, *, tau: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    r"""Cross-entropy on logits shifted by the class log-prior.

    .. math:: \ell(z, y) = -\ln \operatorname{softmax}(z + \tau \ln \pi)_y

    Args:
        log_prior: :math:`\ln\pi`; a constant added to it changes nothing, so log counts do as well.
        tau: Strength of the shift; 0 gives plain cross-entropy.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, log_prior :math:`(K,)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> logit_adjusted_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.25, 0.75]).log())
        tensor(1.3863)

    Reference: Menon et al., *Long-tail learning via logit adjustment*, ICLR 2021, arXiv:2007.07314, eq. (10).
    """
    return margin_ce(logits, target, tau * log_prior, reduction=reduction)


@method(
    "logit_adjusted",
    kind="loss",
    family="adjust",
    paper="arXiv:2007.07314",
    needs=("class_counts",),
    space={"tau": Float(0.1, 3.0, default=1.0, log=True)},
    reduces_to=("cross_entropy", {"tau": 0.0}),
)
class LogitAdjustedLoss(ClassLoss):
    r"""Logit adjustment: the class log-prior is added to the logits while training, and left out at test time.

    .. math:: \ell(z, y) = -\ln \operatorname{softmax}(z + \tau \ln \pi)_y

    The model then need not encode how frequent classes are, and its raw logits rank classes as if all were equally likely.
    With ``tau=1`` this is consistent for the balanced error.

    When to use: the first method to try on long-tailed data: strong, without extra cost, one parameter.
    Expect: on balanced data it is cross-entropy; on long tails a large gain for rare classes and a loss for frequent
    ones; the result that other methods should be compared with.
    Pitfalls: do not subtract the prior again at test time, and do not combine with a class-balanced sampler, which removes the
    prior a second time. Rare classes gain and frequent classes lose.

    Args:
        tau: Strength of the shift.
    """

    log_prior: Tensor  # class_counts are declared as a need, so it exists

    def __init__(
        self,
        num_classes: int,
        *,
        tau: float = 1.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.tau = number("tau", tau)

    def per_sample(self, batch: LossBatch) -> Tensor:
        return logit_adjusted_cross_entropy(batch.logits, batch.target, self.log_prior, tau=self.tau, reduction="none")
