"""Margins between classes, added to the logits of a linear head: the primitive all margin losses share, EQL and Seesaw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss, Reduction, reduce
from classgap.losses.state import settled
from classgap.registry import Choice, Float, method

EQLForm = Literal["softmax", "sigmoid", "delta"]
# Share below which a class counts as rare: the classification port of the softmax form, and the detection code.
_RARE: dict[EQLForm, float] = {"softmax": 5e-3, "sigmoid": 1.77e-3, "delta": 0.0}


def margin_ce(logits: Tensor, target: Tensor, margins: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    r"""Cross-entropy in which class :math:`j` must lose by a margin: what all margin losses here are made of.

    .. math:: \ell_i = \ln\Big[1 + \sum_{j\ne y_i}\exp(\Delta_{ij} - \Delta_{iy_i} + z_{ij} - z_{iy_i})\Big]

    Args:
        margins: :math:`\Delta`; only differences from the entry of the target matter. :math:`-\infty` takes a class out of the
            comparison (never the target).
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, margins :math:`(K,)` or :math:`(N, K)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> margin_ce(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.0, 1.0]))
        tensor(1.3133)

    Reference: Jitkrittum et al., arXiv:2204.13208, eq. (3).
    """
    return reduce(F.cross_entropy(logits + margins.to(logits.dtype), target, reduction="none"), reduction)


def replace_at(matrix: Tensor, target: Tensor, values: Tensor) -> Tensor:
    """A copy of ``matrix`` with ``values`` at the target of each row.

    Example:
        >>> replace_at(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([5.0]))
        tensor([[0., 5.]])
    """
    return matrix.scatter(1, target[:, None], values[:, None])


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

    Every sample of a frequent class lowers the logits of all others, and a rare class hardly ever gets the chance to rise.
    EQL leaves classes whose share of the training set is below ``threshold`` out of the comparison, except for their own
    samples.

    When to use: long tails with hundreds of classes.
    Expect: on balanced data, and wherever no class is below the threshold, the softmax form is cross-entropy; on long
    tails a moderate gain for the classes below it.
    Pitfalls: with very many classes (:math:`1/K` below ``threshold``) all are rare. The ``"sigmoid"`` form is made for
    detection: without background samples nothing ever pushes rare classes down, and they win everywhere. The ``"delta"``
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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        one_of("form", form, get_args(EQLForm))
        self.form: EQLForm = form
        self.gamma = number("gamma", gamma, low=0.0, high=1.0)
        self.threshold = number("threshold", _RARE[form] if threshold is None else threshold, low=0.0, high=1.0)
        self.coefficient = number("coefficient", coefficient, low=0.0)
        rare = self.log_prior < (math.log(self.threshold) if self.threshold else -math.inf)
        self.register_buffer("rare", rare, persistent=False)

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
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


def seesaw_margins(logits: Tensor, target: Tensor, counts: Tensor, *, p: float, q: float) -> Tensor:
    r"""Offsets :math:`\ln(M_{yj} C_{ij})` of the Seesaw loss, without gradient.

    :math:`M_{yj} = (N_j/N_y)^p` lightens the pressure on classes rarer than the true one, and
    :math:`C_{ij} = (\sigma_{ij}/\sigma_{iy})^q` restores it where such a class scores higher than the truth.

    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, counts :math:`(K,)`; returns :math:`(N, K)`, 0 at the target.
    Example:
        >>> seesaw_margins(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([100.0, 1.0]), p=0.5, q=2.0).exp()
        tensor([[1.0000, 0.1000]])

    Reference: Wang et al., *Seesaw loss for long-tailed instance segmentation*, CVPR 2021, arXiv:2008.10032, eq. (5), (6).
    """
    log_counts = counts.to(logits.dtype).clamp_min(1).log()
    mitigation = p * (log_counts - log_counts[target, None]).clamp_max(0)
    log_scores = logits.detach().log_softmax(1)
    of_target = log_scores.gather(1, target[:, None]).clamp_min(math.log(1e-2))  # a floor, as in the authors' code
    return mitigation + q * (log_scores - of_target).clamp_min(0)


@method(
    "seesaw",
    kind="loss",
    family="margin",
    paper="arXiv:2008.10032",
    space={"p": Float(0.2, 1.5, default=0.8), "q": Float(0.5, 3.0, default=2.0)},
    reduces_to=("cross_entropy", {"p": 0.0, "q": 0.0}),
)
class SeesawLoss(ClassLoss):
    r"""Seesaw: less pressure on rare classes, restored where a rare class is wrongly preferred.

    .. math:: \ell = \ln\sum_j M_{yj} C_{ij} e^{z_{ij}} - z_{iy}

    Wrong classes rarer than the true one are pushed down less (mitigation), but a wrong class that scores above the truth is
    pushed as hard as its lead (compensation). Class counts are those seen so far in training, so none need be known.

    When to use: long tails, also when counts are unknown or drift.
    Expect: on balanced data mitigation vanishes, and the compensation of errors is left as a loss for hard samples; on long
    tails a clear gain for rare classes.
    Pitfalls: with a class-balanced sampler the running counts become equal and mitigation fades: use ``counts="training"``.
    The compensation weights errors by up to :math:`100^q`, so label noise costs more than under cross-entropy.

    Args:
        p: Strength of the mitigation.
        q: Strength of the compensation.
        counts: ``"running"`` (labels seen so far, kept in the state) or ``"training"`` (``class_counts``).
    """

    stop_gradient = True

    seen_counts: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        p: float = 0.8,
        q: float = 2.0,
        counts: Literal["running", "training"] = "running",
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.p = number("p", p, low=0.0)
        self.q = number("q", q, low=0.0)
        one_of("counts", counts, ("running", "training"))
        if counts == "training" and class_counts is None:
            raise InputError(
                "counts='training' needs class_counts, the number of training samples of each class; "
                "or use counts='running'"
            )
        self.counts = counts
        self.register_buffer("seen_counts", torch.zeros(num_classes))

    @torch.no_grad()
    def update_from_labels(self, target: Tensor) -> None:
        if target.dim() == 1:
            batch = self.seen_counts.new_zeros(self.num_classes).index_add_(
                0, target, torch.ones_like(target, dtype=self.seen_counts.dtype)
            )
        else:
            batch = target.to(self.seen_counts.dtype).sum(0)
        self.seen_counts += all_reduce_sum(batch)[0]

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        counts = settled(self.seen_counts)
        if self.counts == "training" and self.class_counts is not None:
            counts = self.class_counts
        margins = seesaw_margins(logits, target, counts, p=self.p, q=self.q)
        return margin_ce(logits, target, margins, reduction="none")
