"""Spread-out regularisation: feature directions of different classes are pushed apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.options import UnweightedOptions
from classgap.losses.partners import gathered
from classgap.registry import Choice, Float, method

Pairs = Literal["different", "all"]


def spreadout_penalty(features: Tensor, target: Tensor, *, pairs: Pairs = "different") -> Tensor:
    r"""How far the directions of features are from those of random points on the sphere.

    .. math:: M_1^2 + \max(0,\; M_2 - 1/d)

    with :math:`M_1, M_2` the mean and mean square of :math:`\hat\phi_i^\top\hat\phi_j` over pairs :math:`i \ne j`.

    Args:
        pairs: ``"different"`` uses pairs of different classes (the original), ``"all"`` every pair (as ELM writes it).
    Shape:
        features :math:`(N, d)`, target :math:`(N,)`; returns a scalar, 0 without pairs.
    Example:
        >>> spreadout_penalty(torch.eye(3), torch.arange(3))
        tensor(0.)

    Reference: Zhang et al., *Learning spread-out local feature descriptors*, ICCV 2017.
    """
    directions = F.normalize(features, dim=1)
    cosines = directions @ directions.T
    apart = ~torch.eye(len(features), dtype=torch.bool, device=features.device)
    if pairs == "different":
        apart = target[:, None] != target[None]
    count = apart.sum().clamp_min(1)
    first = (cosines * apart).sum() / count
    second = (cosines.square() * apart).sum() / count
    return first.square() + (second - 1 / features.shape[1]).clamp_min(0.0)


@method(
    "spreadout",
    kind="loss",
    family="compact",
    paper="ICCV 2017 (spread-out)",
    needs=("features",),
    space={
        "weight": Float(0.01, 10.0, default=1.0, log=True),
        "pairs": Choice(("different", "all"), default="different"),
    },
    reduces_to=("cross_entropy", {"weight": 0.0}),
)
class SpreadoutLoss(ClassLoss):
    """Cross-entropy plus a push of feature directions apart, towards a uniform spread over the sphere.

    Mean and second moment of the cosine between samples of different classes are drawn to those of random directions,
    0 and 1/d. Feature norms are free.

    When to use: features of different classes point in similar directions, as under heavy imbalance.
    Expect: on balanced data a small change; on long tails directions that differ more, while the preference of the head for
    frequent classes remains.
    Pitfalls: it only uses whether two samples have the same class; with ``pairs="all"`` it also pushes apart samples of
    one class.

    Args:
        weight: Weight of the penalty.
        pairs: See :func:`spreadout_penalty`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        weight: float = 1.0,
        pairs: Pairs = "different",
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[UnweightedOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.weight = number("weight", weight, low=0.0)
        one_of("pairs", pairs, get_args(Pairs))
        self.pairs: Pairs = pairs

    def compute(self, batch: LossBatch) -> Tensor:
        assert batch.features is not None  # declared in needs
        rows, labels = gathered(batch.features, batch.labels, self.across_ranks)
        penalty = spreadout_penalty(rows, labels, pairs=self.pairs)
        self.last = {"spreadout": penalty.detach()}
        return mean_cross_entropy(batch.logits, batch.target) + self.weight * penalty

    compute_empty = compute
