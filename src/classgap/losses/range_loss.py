"""Range loss: a bound on the widest pairs of a class and on the distance between the two closest classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from classgap.checks import number, whole
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.distances import squared_distances
from classgap.losses.options import LossOptions
from classgap.losses.partners import gathered
from classgap.registry import Float, Int, method


def range_terms(features: Tensor, target: Tensor, *, k: int = 2, margin: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Intra-class range and inter-class hinge of a batch.

    .. math:: \sum_c \frac{k}{\sum_{j\le k} 1/D_{c,j}}, \qquad
       \max\big(0,\; m - \min_{c\ne c'} \tfrac12\|\bar\phi_c - \bar\phi_{c'}\|^2\big)

    with :math:`D_{c,j}` the :math:`k` largest squared distances inside class :math:`c` (all of them if there are fewer). Both
    are 0 where no pair exists.

    Shape:
        features :math:`(N, d)`, target :math:`(N,)`; returns two scalars.
    Example:
        >>> phi = torch.tensor([[0.0], [2.0], [10.0]])
        >>> range_terms(phi, torch.tensor([0, 0, 1]), k=1, margin=50.0)
        (tensor(4.), tensor(9.5000))
    """
    same = target[:, None] == target[None]
    # Each class is known by its first row, so that cost follows the batch and not the number of classes.
    slot = same.int().argmax(1)
    first, second, found = _widest_pairs(features.detach(), same, slot, k)
    distances = (features[first] - features[second]).square().sum(-1).clamp_min(1e-6)
    inverse = torch.where(found, 1 / distances, 0.0).sum(1)
    intra = torch.where(found.any(1), found.sum(1) / inverse.clamp_min(1e-30), 0.0).sum()
    return intra, _closest_centres_hinge(features, slot, margin)


def _widest_pairs(features: Tensor, same: Tensor, slot: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the ``k`` most distant pairs of each class, ``(N, k)`` with a mask; a class sits in the slot of its first row."""
    rows = features.shape[0]
    candidate = torch.where(same.triu(1), squared_distances(features, features), -1.0).flatten()
    owner = slot.repeat_interleave(rows)  # the class of a pair (i, j) is that of i
    pairs = torch.arange(rows * rows, device=features.device)
    chosen = []
    for _ in range(k):
        widest = candidate.new_full((rows,), -1.0).scatter_reduce(0, owner, candidate, "amax")
        hit = torch.where((candidate == widest[owner]) & (candidate >= 0), pairs, rows * rows)
        pair = hit.new_full((rows,), rows * rows).scatter_reduce(0, owner, hit, "amin")
        chosen.append(pair)
        candidate = torch.where(pairs == pair[owner], -1.0, candidate)
    pair = torch.stack(chosen, 1)
    found = pair < rows * rows
    pair = torch.where(found, pair, 0)
    return pair // rows, pair % rows, found


def _closest_centres_hinge(features: Tensor, slot: Tensor, margin: float) -> Tensor:
    rows = features.shape[0]
    sums = torch.zeros_like(features).index_add(0, slot, features)
    counts = features.new_zeros(rows).index_add(0, slot, features.new_ones(rows))
    centres = sums / counts.clamp_min(1.0)[:, None]
    present = counts > 0
    other = (present[:, None] & present[None]).triu(1)
    gaps = torch.where(other, squared_distances(centres.detach(), centres.detach()), torch.inf)
    closest = gaps.view(1, -1).argmin(1)
    gap = (centres[closest // rows] - centres[closest % rows]).square().sum() / 2
    return torch.where(other.any(), (margin - gap).clamp_min(0.0), 0.0)


@method(
    "range",
    kind="loss",
    family="compact",
    paper="arXiv:1611.08976",
    needs=("features",),
    space={
        "alpha": Float(1e-5, 0.1, default=1e-3, log=True),
        "beta": Float(1e-5, 0.1, default=1e-3, log=True),
        "margin": Float(1.0, 1e4, default=100.0, log=True),
        "k": Int(1, 4, default=2),
    },
    reduces_to=("cross_entropy", {"alpha": 0.0, "beta": 0.0}),
)
class RangeLoss(ClassLoss):
    r"""Cross-entropy plus a bound on the widest pairs inside a class and on the gap between the two closest classes.

    The harmonic mean of the :math:`k` largest squared distances of each class in the batch is reduced, and the two nearest
    class centres of the batch are pushed :math:`m` apart. Every class counts once, whatever its number of samples.

    When to use: long-tailed data with batches that hold several samples of a class (P × Q sampling).
    Expect: on balanced data a small change, since few pairs decide; on long tails the same for a classifier: the
    published gains are in the verification of faces.
    Pitfalls: the defaults suit squared distances of order 100. Values for faces, whose distances are of order :math:`10^4`, are
    margin 2e4 with weights of 5e-5 and 1e-4 (as others quote the paper) or 1e-4 and 1e-3 (a public Caffe layer). A few outliers
    determine the gradient.

    Args:
        alpha: Weight of the intra-class range.
        beta: Weight of the inter-class hinge.
        margin: Wanted half squared distance :math:`m` between class centres.
        k: Widest pairs of each class; 2 in the same layer.
    Reference: Zhang et al., *Range loss for deep face recognition with long-tailed training data*, ICCV 2017.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        alpha: float = 1e-3,
        beta: float = 1e-3,
        margin: float = 100.0,
        k: int = 2,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.alpha, self.beta = number("alpha", alpha, low=0.0), number("beta", beta, low=0.0)
        self.margin = number("margin", margin, low=0.0)
        self.k = whole("k", k, low=1)

    def compute(self, batch: LossBatch) -> Tensor:
        assert batch.features is not None  # declared in needs
        rows, labels = gathered(batch.features, batch.labels, self.across_ranks)
        intra, inter = range_terms(rows, labels, k=self.k, margin=self.margin)
        self.last = {"intra": intra.detach(), "inter": inter.detach()}
        return mean_cross_entropy(batch.logits, batch.target) + self.alpha * intra + self.beta * inter

    compute_empty = compute
