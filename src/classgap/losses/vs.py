"""Vector scaling: every class has a scale and an offset, both from its frequency."""

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


def vector_scaling_cross_entropy(
    logits: Tensor, target: Tensor, scale: Tensor, offset: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    r"""Cross-entropy on :math:`z_j/\Delta_j + \iota_j`: each class has its own scale and offset.

    Args:
        scale: :math:`\Delta`, what column :math:`j` is divided by.
        offset: :math:`\iota`.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, scale and offset :math:`(K,)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> vector_scaling_cross_entropy(torch.tensor([[2.0, 2.0]]), torch.tensor([0]), torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor(0.3133)

    Reference: Kini et al., *Label-imbalanced and group-sensitive classification under overparameterization*, NeurIPS 2021,
    arXiv:2103.01550, eq. (2).
    """
    return margin_ce(logits / scale.to(logits.dtype), target, offset, reduction=reduction)


@method(
    "vs",
    kind="loss",
    family="adjust",
    paper="arXiv:2103.01550",
    needs=("class_counts",),
    space={"gamma": Float(0.0, 0.4, default=0.3), "tau": Float(0.5, 1.5, default=1.0)},
    reduces_to=("logit_adjusted", {"gamma": 0.0}),
)
class VSLoss(ClassLoss):
    r"""Vector scaling: logits are scaled down for rare classes, and shifted as in logit adjustment.

    .. math:: \ell(z, y) = -\ln\operatorname{softmax}(z/\Delta + \tau\ln\pi)_y, \qquad \Delta_j = (n_{\max}/n_j)^\gamma

    The shift acts early in training; the scale decides where the boundary lies once all training samples are classified
    correctly, because a rare class has to reach larger raw logits. Raw logits are used at test time.

    When to use: long tails with a model large enough to fit the training set, where additive shifts lose their effect.
    Expect: on balanced data it is cross-entropy; on long tails a larger shift to rare classes than logit adjustment's
    once the training set is fitted, and a larger loss of accuracy on frequent classes.
    Pitfalls: ``gamma`` acts through the ratio of counts, and the default can favour rare classes too much in short runs or with
    strong imbalance: try smaller values first. Probabilities of raw logits are not calibrated.

    Args:
        gamma: Strength of the scaling.
        tau: Strength of the shift.
    """

    class_counts: Tensor
    log_prior: Tensor
    scale: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        gamma: float = 0.3,
        tau: float = 1.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.gamma = number("gamma", gamma, low=0.0)
        self.tau = number("tau", tau)
        counts = self.class_counts.double()
        self.register_buffer("scale", (counts.max() / counts).pow(gamma).float(), persistent=False)

    def per_sample(self, batch: LossBatch) -> Tensor:
        offset = self.tau * self.log_prior
        return vector_scaling_cross_entropy(batch.logits, batch.target, self.scale, offset, reduction="none")
