"""Nested collaborative learning: several networks that learn from the labels and from each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number, one_of, whole
from classgap.losses.batch import LossBatch
from classgap.losses.options import LossOptions
from classgap.losses.wrapper import WrapperLoss
from classgap.registry import Choice, Float, Int, method

HardForm = Literal["restrict", "zero"]


_FLOOR = 1e-9  # in the logarithms of the released distillation


def mutual_distillation(logits: Tensor, *, floor: float = 0.0) -> Tensor:
    r"""Disagreement of the experts on each sample.

    .. math:: \frac1{M-1}\sum_{i\ne j}\mathrm{KL}(p_j\,\|\,p_i)

    Args:
        floor: Added to :math:`p_i` inside the logarithm; the release of NCL has ``1e-9``, which bounds the disagreement.
    Shape:
        logits :math:`(N, M, K)`; returns :math:`(N,)`, 0 for a single expert.
    Example:
        >>> mutual_distillation(torch.tensor([[[1.0, 2.0], [1.0, 2.0]]]))
        tensor([0.])
    """
    experts = logits.shape[1]
    log_p = F.log_softmax(logits, 2)
    p = log_p.exp()
    log_q = (p + floor).log() if floor else log_p
    own = (p * log_p).sum((1, 2)) * (experts - 1)
    # Σ_{i≠j} Σ_k p_j ln p_i: all pairs minus the diagonal.
    cross = (p.sum(1) * log_q.sum(1)).sum(1) - (p * log_q).sum((1, 2))
    return (own - cross) / max(1, experts - 1)


def hard_categories(logits: Tensor, target: Tensor, size: int) -> Tensor:
    """:math:`(N, H)` class indices: the true class first, then those the first expert finds most likely."""
    ranking = logits[:, 0].detach().scatter(1, target[:, None], torch.inf)
    return ranking.topk(size, dim=1).indices


@method(
    "ncl",
    kind="loss",
    family="experts",
    paper="arXiv:2203.15359",
    needs=("class_counts", "experts"),
    space={
        "lam": Float(0.1, 2.0, default=0.6, log=True),
        "hard_share": Float(0.05, 1.0, default=0.3),
        "hard_form": Choice(("restrict", "zero"), default="restrict"),
        "experts": Int(2, 4, default=3),
    },
)
class NCLLoss(WrapperLoss):
    r"""Nested collaborative learning: experts learn from the labels and from each other, over all classes and over the hard ones.

    .. math:: L = \sum_m \big[\mathrm{BS}(z^m) + \mathrm{BS}_{\mathrm{hard}}(z^m)\big]
       + \lambda\,[\mathrm{D}(z) + \mathrm{D}_{\mathrm{hard}}(z)]

    BS is the balanced softmax, :math:`D` the mutual distillation of the balanced predictions, and the hard part restricts
    both to the true class and the :math:`H - 1` classes the first expert takes for it. A margin of the base is in the logits
    of all four terms.

    When to use: long-tailed data where several networks can be trained; test scores are the mean of the experts.
    Expect: on balanced data mostly what averaging several networks gives, so compare with an ensemble; on long tails
    that and balanced softmax.
    Pitfalls: :math:`M` times the cost; the sum over experts makes the loss about :math:`2M` times cross-entropy's, so lower
    the learning rate when comparing; the self-supervised branch of the paper is left out.

    Args:
        lam: Weight of the distillation.
        hard_share: :math:`H` as a share of the classes.
        hard_form: ``"restrict"`` removes other classes, as in the paper. ``"zero"`` computes what the release does: logit plus
            log count, set to 0 for the other classes, so that they stay in the softmax; and 1e-9 is added to probabilities
            inside the logarithms of both distillations.
        experts: Number of experts :math:`M`.
        base: The loss of a single expert. Its :meth:`~ClassLoss.margin_logits` enter the three other terms as well:
            ``base="dbm", base_params={"variant": "bs"}`` is DBM-NCL (with cosine heads).
        base_params: Its parameters.
    Shape:
        logits :math:`(N, M, K)`, target :math:`(N,)` or :math:`(N, K)`.
    Reference: Li et al., *Nested collaborative learning for long-tailed visual recognition*, CVPR 2022.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        lam: float = 0.6,
        hard_share: float = 0.3,
        hard_form: HardForm = "restrict",
        experts: int = 3,
        base: str = "balanced_softmax",
        base_params: Mapping[str, Any] | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, base=base, base_params=base_params, class_counts=class_counts, **options)
        self.lam = number("lam", lam, low=0.0)
        self.hard_share = number("hard_share", hard_share, low=0.0, high=1.0, open_low=True)
        one_of("hard_form", hard_form, get_args(HardForm))
        self.hard_form: HardForm = hard_form
        self.experts = whole("experts", experts, low=1)
        self.hard_size = min(num_classes, max(2, math.ceil(self.hard_share * num_classes)))

    def compute(self, batch: LossBatch) -> Tensor:
        alone = [self.base.loss(batch.expert(m)) for m in range(self.experts)]
        return torch.stack(alone).sum() + super().compute(batch)

    def per_sample(self, batch: LossBatch) -> Tensor:
        """All terms except the classification of the single experts over all classes."""
        logits, target = batch.logits, batch.target
        assert self.class_counts is not None  # declared in needs
        chosen = hard_categories(logits, target, self.hard_size)
        margins = [self.base.margin_logits(logits[:, m], target) for m in range(self.experts)]
        # Log counts, not log priors: the zeros of the "zero" form are small compared with them. The softmax is the same.
        balanced = torch.stack(margins, 1) + self.class_counts.to(logits.dtype).log()
        if self.hard_form == "restrict":
            hard = balanced.gather(2, chosen[:, None].expand(-1, self.experts, -1))
            hard_target, floor = torch.zeros_like(target), 0.0
        else:
            hard = balanced * torch.zeros_like(logits[:, 0]).scatter(1, chosen, 1.0)[:, None]
            hard_target, floor = target, _FLOOR
        labels = hard_target[:, None].expand(-1, self.experts)
        among_hard = F.cross_entropy(hard.transpose(1, 2), labels, reduction="none").sum(1)
        disagreement = mutual_distillation(balanced, floor=floor) + mutual_distillation(hard, floor=floor)
        return among_hard + self.lam * disagreement

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """The scores of the mean of the experts."""
        return super().scores(logits.mean(1), None if features is None else features.mean(1))
