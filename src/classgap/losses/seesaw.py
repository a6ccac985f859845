"""Seesaw loss: smaller gradients on rare wrong classes, except where they are preferred to the true class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.logit_margin import margin_ce
from classgap.losses.options import LossOptions
from classgap.losses.state import read_state, write_state
from classgap.registry import Float, method


def seesaw_margins(logits: Tensor, target: Tensor, counts: Tensor, *, p: float, q: float) -> Tensor:
    r"""Offsets :math:`\ln(M_{yj} C_{ij})` of the Seesaw loss, without gradient.

    :math:`M_{yj} = (N_j/N_y)^p` reduces the gradient on classes rarer than the true one, and
    :math:`C_{ij} = (\sigma_{ij}/\sigma_{iy})^q` increases it where a wrong class scores higher than the true one.

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
    r"""Seesaw: smaller gradients on rare wrong classes, except where a wrong class is preferred.

    .. math:: \ell = \ln\sum_j M_{yj} C_{ij} e^{z_{ij}} - z_{iy}

    Wrong classes rarer than the true one are pushed down less (mitigation), but a wrong class that scores above the true class
    is pushed down more, in proportion to its lead (compensation). Class counts are those seen so far in training, so none need
    be known.

    When to use: long tails, also when counts are unknown or change.
    Expect: on balanced data mitigation vanishes, and the compensation of errors is left as a loss for hard samples; on long
    tails a clear gain for rare classes.
    Pitfalls: with a class-balanced sampler the running counts become equal and mitigation disappears: use ``counts="training"``.
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
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
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
        write_state(self.seen_counts, self.seen_counts + all_reduce_sum(batch)[0])

    def per_sample(self, batch: LossBatch) -> Tensor:
        counts = read_state(self.seen_counts)
        if self.counts == "training" and self.class_counts is not None:
            counts = self.class_counts
        margins = seesaw_margins(batch.logits, batch.target, counts, p=self.p, q=self.q)
        return margin_ce(batch.logits, batch.target, margins, reduction="none")
