"""Equalization loss: rare classes are left out of the comparison on samples of other classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.logit_margin import margin_ce, replace_at
from classgap.losses.options import LossOptions, Reduction, reduce
from classgap.registry import Choice, Float, method

EQLForm = Literal["softmax", "sigmoid", "delta"]


# Share below which a class counts as rare: the classification port of the softmax form, and the detection code.
_RARE: dict[EQLForm, float] = {"softmax": 5e-3, "sigmoid": 1.77e-3, "delta": 0.0}


def equalization_cross_entropy(
    logits: Tensor, target: Tensor, keep: Tensor, *, sigmoid: bool = False, reduction: Reduction = "mean"
) -> Tensor:
    r"""Cross-entropy in which wrong classes count with weights.

    .. math::
        \ell_i = \ln\sum_j w_{ij} e^{z_{ij}} - z_{iy_i} \qquad\text{or}\qquad
        \ell_i = \sum_j w_{ij}\,\mathrm{bce}(z_{ij}, [j=y_i])

    Args:
        keep: Weights :math:`w` in [0, 1] of the wrong classes; the target counts fully whatever its entry.
        sigmoid: The second form, one binary decision for each class.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, keep :math:`(K,)` or :math:`(N, K)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> equalization_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0.0, 1.0, 0.0]))
        tensor(0.6931)

    Reference: Tan et al., *Equalization loss for long-tailed object recognition*, CVPR 2020, arXiv:2003.05176.
    """
    keep = replace_at(keep.to(logits.dtype).expand_as(logits), target, torch.ones_like(logits[:, 0]))
    if not sigmoid:
        return margin_ce(logits, target, keep.log(), reduction=reduction)
    towards = replace_at(-logits, target, logits.gather(1, target[:, None])[:, 0])
    return reduce((keep * F.softplus(-towards)).sum(1), reduction)


@method(
    "eql",
    kind="loss",
    family="margin",
    paper="arXiv:2003.05176",
    needs=("class_counts",),
    space={
        "form": Choice(get_args(EQLForm), default="softmax"),
        "gamma": Float(0.5, 1.0, default=0.9),
        "coefficient": Float(0.1, 10.0, default=1.0, log=True),
    },
    reduces_to=("cross_entropy", {"gamma": 0.0}),
)
class EQLLoss(ClassLoss):
    r"""Equalization loss: rare classes are not pushed down by samples of other classes.

    Every sample of a frequent class lowers the logits of all others, and a rare class is seldom pushed up.
    EQL leaves classes whose share of the training set is below ``threshold`` out of the comparison, except for their own
    samples.

    When to use: long tails with hundreds of classes.
    Expect: on balanced data, and wherever no class is below the threshold, the softmax form is cross-entropy; on long
    tails a moderate gain for the classes below it.
    Pitfalls: with very many classes (:math:`1/K` below ``threshold``) all are rare. The ``"sigmoid"`` form is made for
    detection: without background samples nothing pushes rare classes down, and they are predicted everywhere. The ``"delta"``
    form, in which the papers that compare margins write EQL, is a different loss: a margin :math:`\Delta_{yj} = c\,\pi_j`, equal
    for all classes when these are balanced.

    Args:
        form: ``"softmax"`` drops each rare wrong class with probability ``gamma``; ``"sigmoid"`` (detection) drops the binary
            terms of rare wrong classes; ``"delta"`` adds :math:`c\,\pi_j` to the wrong logits.
        gamma: Probability of dropping, drawn for each sample and class while training; in evaluation mode the loss uses the
            expectation :math:`w = 1 - \gamma`. 0.9 in public versions for classification.
        threshold: Share :math:`\lambda` of the training set below which a class is rare; by default 0.005 for ``"softmax"``, as
            in the same versions, and 0.00177 for ``"sigmoid"``, as in the authors' code for LVIS. The paper tunes both for
            each data set.
        coefficient: :math:`c` of the ``"delta"`` form.
    """

    log_prior: Tensor  # class_counts are declared as a need, so it exists
    rare: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        form: EQLForm = "softmax",
        gamma: float = 0.9,
        threshold: float | None = None,
        coefficient: float = 1.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        one_of("form", form, get_args(EQLForm))
        self.form: EQLForm = form
        self.gamma = number("gamma", gamma, low=0.0, high=1.0)
        self.threshold = number("threshold", _RARE[form] if threshold is None else threshold, low=0.0, high=1.0)
        self.coefficient = number("coefficient", coefficient, low=0.0)
        rare = self.log_prior < (math.log(self.threshold) if self.threshold else -math.inf)
        self.register_buffer("rare", rare, persistent=False)

    def per_sample(self, batch: LossBatch) -> Tensor:
        logits, target = batch.logits, batch.target
        if self.form == "delta":
            margins = (self.coefficient * self.log_prior.exp()).to(logits.dtype).expand_as(logits)
            margins = replace_at(margins, target, torch.zeros_like(margins[:, 0]))
            return margin_ce(logits, target, margins, reduction="none")
        if self.form == "sigmoid":
            keep = (~self.rare).to(logits.dtype)
        elif self.training:
            keep = 1 - (self.rare & (torch.rand_like(logits) < self.gamma)).to(logits.dtype)
        else:
            keep = 1 - self.gamma * self.rare.to(logits.dtype)
        return equalization_cross_entropy(logits, target, keep, sigmoid=self.form == "sigmoid", reduction="none")
