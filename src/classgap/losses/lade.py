"""LADE: balanced softmax plus a regulariser that ties logits to log density ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor

from classgap.batchstats import gather_rows, gather_with_gradient
from classgap.checks import flag, number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.logit_adjusted import logit_adjusted_cross_entropy
from classgap.losses.options import LossOptions
from classgap.registry import Choice, Float, method

Importance = Literal["scored", "label"]


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
    pulls the logit there, so that the same model can be adapted to any test prior by adding its logarithm.

    When to use: long-tailed training and a test prior that is not uniform or not yet known.
    Expect: on balanced data cross-entropy plus a penalty that fixes the level of the logits, which changes few predictions; on
    long tails about what balanced softmax gives, with scores that can be adapted better to another prior.
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
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.alpha = number("alpha", alpha, low=0.0)
        self.lam = number("lam", lam, low=0.0)
        one_of("importance", importance, ("scored", "label"))
        self.importance: Importance = importance
        self.mask_absent = flag("mask_absent", mask_absent)

    def per_sample(self, batch: LossBatch) -> Tensor:
        return logit_adjusted_cross_entropy(batch.logits, batch.target, self.log_prior, reduction="none")

    def compute(self, batch: LossBatch) -> Tensor:
        loss = super().compute(batch) if len(batch) else batch.logits.sum()
        return loss + self.alpha * self._regularizer(batch.logits, batch.target) if self.alpha else loss

    compute_empty = compute  # a rank without samples still takes part in the collectives

    def _regularizer(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.across_ranks:  # a statistic of the batch of all ranks
            logits, target = gather_with_gradient(logits)[0], gather_rows(target)
        return lade_regularizer(
            logits, target, self.log_prior, lam=self.lam, importance=self.importance, mask_absent=self.mask_absent
        )
