"""Losses that shift or scale logits by what is known of class frequencies: logit adjustment and its relatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from classgap.batchstats import gather_rows, gather_with_gradient
from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss, Reduction
from classgap.losses.logit_margins import margin_ce
from classgap.registry import Choice, Float, method

Importance = Literal["scored", "label"]


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

    When to use: the first thing to try on long-tailed data; strong, free of cost, one parameter.
    Expect: on balanced data it is cross-entropy; on long tails a large gain for rare classes, paid for by frequent
    ones, and the figure every other method has to beat.
    Pitfalls: do not subtract the prior again at test time, and do not combine with a class-balanced sampler, which removes the
    prior a second time. Gains for the tail are paid for by the head.

    Args:
        tau: Strength of the shift.
    """

    log_prior: Tensor  # class_counts are declared as a need, so it exists

    def __init__(
        self, num_classes: int, *, tau: float = 1.0, class_counts: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.tau = number("tau", tau)

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        return logit_adjusted_cross_entropy(logits, target, self.log_prior, tau=self.tau, reduction="none")


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

    def __init__(self, num_classes: int, *, class_counts: Sequence[float] | Tensor | None = None) -> None:
        super().__init__(num_classes, tau=1.0, class_counts=class_counts)


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

    The shift acts early in training; the scale decides where the boundary goes once every training sample is right, because
    a rare class has to reach larger raw logits. Raw logits are used at test time.

    When to use: long tails with a model large enough to fit the training set, where additive shifts lose their effect.
    Expect: on balanced data it is cross-entropy; on long tails a larger shift to rare classes than logit adjustment's
    once the training set is fitted, and a larger loss at the head.
    Pitfalls: ``gamma`` acts through the ratio of counts, and the default can tip the balance over to the tail on short runs or
    strong imbalance: tune it down first. Probabilities of raw logits are not calibrated.

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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.gamma = number("gamma", gamma, low=0.0)
        self.tau = number("tau", tau)
        counts = self.class_counts.double()
        self.register_buffer("scale", (counts.max() / counts).pow(gamma).float(), persistent=False)

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        return vector_scaling_cross_entropy(logits, target, self.scale, self.tau * self.log_prior, reduction="none")


def lade_regularizer(
    logits: Tensor,
    target: Tensor,
    log_prior: Tensor,
    *,
    lam: float = 0.1,
    importance: Importance = "scored",
    mask_absent: bool = False,
) -> Tensor:
    r"""How far logits are from log density ratios, by the regularised Donsker–Varadhan bound of each class.

    .. math::
        R = -\sum_k \pi_k\,(T_k - S_k - \lambda S_k^2), \qquad
        T_k = \operatorname*{mean}_{i:\,y_i=k} z_{ik}, \qquad S_k = \ln \frac1N \sum_i \omega_{ik} e^{z_{ik}}

    Args:
        lam: :math:`\lambda`, weight of the square that fixes the constant the bound leaves open.
        importance: ``"scored"`` uses :math:`\omega_{ik} = 1/(K\pi_k)` as the authors' code does, ``"label"`` the paper's
            :math:`\omega_{ik} = 1/(K\pi_{y_i})`.
        mask_absent: Leave out classes without a sample in the batch; otherwise their :math:`T_k` is 0.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` or :math:`(N, K)`, log_prior :math:`(K,)`; returns a scalar.
    Example:
        >>> lade_regularizer(torch.full((2, 2), 3.0), torch.tensor([0, 1]), torch.tensor([0.5, 0.5]).log())
        tensor(0.9000)

    Reference: Hong et al., *Disentangling label distribution for long-tailed visual recognition*, CVPR 2021, arXiv:2012.00321.
    """
    samples, classes = logits.shape
    log_prior = log_prior.to(logits.dtype)
    labels = torch.nn.functional.one_hot(target, classes) if target.dim() == 1 else target
    labels = labels.to(logits.dtype)
    counts = labels.sum(0)
    mean = (labels * logits).sum(0) / torch.where(counts > 0, counts, 1)
    if importance == "scored":
        density = logits.logsumexp(0) - log_prior
    else:
        density = (logits + (labels @ (-log_prior).exp()).log()[:, None]).logsumexp(0)
    density = density - math.log(samples * classes)
    bound = mean - density - lam * density.square()
    weights = log_prior.exp() * (counts > 0) if mask_absent else log_prior.exp()
    return -(weights * bound).sum()


@method(
    "lade",
    kind="loss",
    family="adjust",
    paper="arXiv:2012.00321",
    needs=("class_counts",),
    space={
        "alpha": Float(0.005, 1.0, default=0.1, log=True),
        "lam": Float(0.01, 1.0, default=0.1, log=True),
        "importance": Choice(("scored", "label"), default="scored"),
    },
    reduces_to=("balanced_softmax", {"alpha": 0.0}),
)
class LADELoss(ClassLoss):
    r"""LADE: balanced softmax plus a term that ties logits to density ratios, free of the training prior.

    .. math:: L = \mathrm{BS}(z, y) + \alpha R(z, y)

    Balanced softmax fixes differences of logits only. The regulariser estimates each class's log density ratio on the batch and
    pulls the logit there, so that the same model can be moved to any test prior by adding its logarithm.

    When to use: long-tailed training and a test prior that is not uniform or not yet known.
    Expect: on balanced data cross-entropy with a hold on the level of the logits, which changes few predictions; on
    long tails about what balanced softmax gives, with scores that move better to another prior.
    Pitfalls: the regulariser is a statistic of the whole batch: noisy for small batches and for classes that are seldom in
    one. In the code, as here by default, an absent class enters with a mean logit of 0.

    Args:
        alpha: Weight of the regulariser. The authors run 0.1 on CIFAR-100-LT, 0.05 on ImageNet-LT and iNaturalist 2018, 0.005 on
            Places-LT.
        lam: Weight of its square, see :func:`lade_regularizer`. 0.1 is the default of their code; they run 0.01 on CIFAR-100-LT
            and 0.5 on ImageNet-LT.
        importance: How samples are re-weighted to a uniform prior: by that of the class that is ``"scored"``, as in their
            code, or of the ``"label"``, as importance sampling asks for.
        mask_absent: Leave classes without a sample in the batch out of the regulariser.
    """

    log_prior: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        alpha: float = 0.1,
        lam: float = 0.1,
        importance: Importance = "scored",
        mask_absent: bool = False,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.alpha = number("alpha", alpha, low=0.0)
        self.lam = number("lam", lam, low=0.0)
        one_of("importance", importance, ("scored", "label"))
        self.importance: Importance = importance
        self.mask_absent = mask_absent

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        return logit_adjusted_cross_entropy(logits, target, self.log_prior, reduction="none")

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        loss = super().compute(logits, target, features, index, epoch) if logits.shape[0] else logits.sum()
        return loss + self.alpha * self._regularizer(logits, target) if self.alpha else loss

    compute_empty = compute  # a rank without samples still takes part in the collectives

    def _regularizer(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.training:  # a statistic of the batch of all ranks
            logits, target = gather_with_gradient(logits)[0], gather_rows(target)
        return lade_regularizer(
            logits, target, self.log_prior, lam=self.lam, importance=self.importance, mask_absent=self.mask_absent
        )
