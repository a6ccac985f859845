"""Losses that shape the features themselves: pulled to class centres, kept within a range, or spread over the sphere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.shared import (
    ClassMeans,
    check_num_features,
    gathered,
    hard_labels,
    mean_cross_entropy,
    squared_distances,
)
from classgap.registry import Choice, Float, Int, method

Pairs = Literal["different", "all"]


def center_pull(features: Tensor, target: Tensor, centers: Tensor) -> Tensor:
    r"""Half the squared distance of each sample to the centre of its class, :math:`\tfrac12\|\phi_i - c_{y_i}\|^2`.

    Shape:
        features :math:`(N, d)`, target :math:`(N,)`, centers :math:`(K, d)`; returns :math:`(N,)`.
    Example:
        >>> center_pull(torch.tensor([[3.0, 0.0]]), torch.tensor([1]), torch.tensor([[9.0, 9.0], [1.0, 0.0]]))
        tensor([2.])
    """
    return (features - centers.detach().to(features.dtype)[target]).square().sum(1) / 2


@method(
    "center",
    kind="loss",
    family="compact",
    paper="ECCV 2016 (center loss)",
    needs=("features",),
    space={"lam": Float(1e-4, 0.1, default=0.003, log=True), "rate": Float(0.1, 1.0, default=0.5)},
    reduces_to=("cross_entropy", {"lam": 0.0}),
)
class CenterLoss(ClassLoss):
    r"""Cross-entropy plus a pull of every feature towards the running centre of its class.

    .. math:: L = \mathrm{CE} + \lambda\,\tfrac1N\sum_i \tfrac12\|\phi_i - c_{y_i}\|^2

    Centres are no parameters: they follow the batch means, :math:`c_k \leftarrow c_k + \alpha\frac{b_k}{1+b_k}(m_k - c_k)`,
    and start at the first batch mean of their class. What MR²'s tables call DFL.

    When to use: features of a class are scattered and the head is linear; it makes classes compact.
    Expect: on balanced data tighter classes and at most a small change in accuracy; on long tails the same, for the
    head's preference for frequent classes remains.
    Pitfalls: the pull is not relative to the feature scale, so features and :math:`\lambda` must be tuned together; the paper
    sums over the batch where this, as most code, divides by its size; the tail is pulled to centres made of few samples.

    Args:
        num_features: Feature dimension :math:`d`.
        lam: Weight :math:`\lambda` of the pull; 0.003 as quoted of the paper, whose own text could not be checked.
        rate: Step :math:`\alpha` of the centres; 0.5 likewise, and in most code.
    Reference: Wen et al., *A discriminative feature learning approach for deep face recognition*, ECCV 2016.
    """

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        *,
        lam: float = 0.003,
        rate: float = 0.5,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.lam = number("lam", lam, low=0.0)
        self.rate = number("rate", rate, low=0.0, high=1.0)
        self.centers = ClassMeans(num_classes, check_num_features(num_features, self.name))

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        self.centers.check_width(features)
        labels = hard_labels(target)
        if self.updating:
            self.centers.update(features, labels, step=self.rate, shrink=True)
        # A class met only in evaluation has no centre to be pulled to.
        pull = center_pull(features, labels, self.centers.mean) * self.centers.seen[labels]
        classification, pull = mean_cross_entropy(logits, target), pull.sum() / max(1, logits.shape[0])
        self.last = {"classification": classification.detach(), "pull": pull.detach()}
        return classification + self.lam * pull

    compute_empty = compute


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
    class centres of the batch are pushed :math:`m` apart. Every class counts once, however frequent.

    When to use: long-tailed data with batches that hold several samples of a class (P × Q sampling).
    Expect: on balanced data a small change, since few pairs decide; on long tails the same for a classifier: the
    published gains are in the verification of faces.
    Pitfalls: the defaults suit squared distances of order 100. Values for faces, whose distances are of order :math:`10^4`, are
    margin 2e4 with weights of 5e-5 and 1e-4 (quoted of the paper) or 1e-4 and 1e-3 (a public Caffe layer). A few outliers
    decide the gradient.

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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.alpha, self.beta = number("alpha", alpha, low=0.0), number("beta", beta, low=0.0)
        self.margin = number("margin", margin, low=0.0)
        self.k = int(number("k", k, low=1))

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        rows, labels = gathered(features, hard_labels(target), self.training)
        intra, inter = range_terms(rows, labels, k=self.k, margin=self.margin)
        self.last = {"intra": intra.detach(), "inter": inter.detach()}
        return mean_cross_entropy(logits, target) + self.alpha * intra + self.beta * inter

    compute_empty = compute


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

    When to use: features of different classes crowd into a cone, as under heavy imbalance.
    Expect: on balanced data a small change; on long tails directions that crowd less, while the head's preference for
    frequent classes remains.
    Pitfalls: it knows nothing of the class structure beyond equal or not; with ``pairs="all"`` it also pushes apart samples of
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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.weight = number("weight", weight, low=0.0)
        one_of("pairs", pairs, get_args(Pairs))
        self.pairs: Pairs = pairs

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        rows, labels = gathered(features, hard_labels(target), self.training)
        penalty = spreadout_penalty(rows, labels, pairs=self.pairs)
        self.last = {"spreadout": penalty.detach()}
        return mean_cross_entropy(logits, target) + self.weight * penalty

    compute_empty = compute


def half_squared_distances(features: Tensor, means: Tensor) -> Tensor:
    r""":math:`D_{ik} = \tfrac12\|\phi_i - \mu_k\|^2` of every sample to every class mean.

    Example:
        >>> half_squared_distances(torch.tensor([[2.0]]), torch.tensor([[0.0], [3.0]]))
        tensor([[2.0000, 0.5000]])
    """
    return squared_distances(features, means) / 2


@method(
    "lgm",
    kind="loss",
    family="compact",
    paper="arXiv:1803.02988",
    needs=("features",),
    space={"alpha": Float(0.0, 1.0, default=0.1), "lam": Float(1e-3, 1.0, default=0.01, log=True)},
)
class GaussianMixtureLoss(ClassLoss):
    r"""Large-margin Gaussian mixture: classes are learned means, and a sample belongs to the nearest.

    .. math:: L_i = -\ln\operatorname{softmax}\big(-D_{ik}(1 + \alpha\,1[k = y_i])\big)_{y_i} + \lambda D_{iy_i},
       \qquad D_{ik} = \tfrac12\|\phi_i - \mu_k\|^2

    The means are parameters of the loss and replace the last layer, whose output is not used: rank classes by
    :meth:`scores`.

    When to use: compact, Gaussian-like classes are wanted, e.g. to recognise strange inputs by their distance.
    Expect: on balanced data accuracy near that of cross-entropy, with compact classes; on long tails no help by
    itself, as it knows no counts and rare means are learned from few samples.
    Pitfalls: distances grow with :math:`d`, so early logits are large: keep features small and raise :math:`\alpha` late; the
    means need the optimiser (``criterion.parameters()``) and often twice its learning rate.

    Args:
        num_features: Feature dimension :math:`d`.
        alpha: Margin :math:`\alpha`: how much closer than any other the true mean must be.
        lam: Weight :math:`\lambda` of the likelihood.
    Reference: Wan et al., *Rethinking feature distribution for loss functions in image classification*, CVPR 2018.
    """

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        *,
        alpha: float = 0.1,
        lam: float = 0.01,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.alpha, self.lam = number("alpha", alpha, low=0.0), number("lam", lam, low=0.0)
        self.means = nn.Parameter(torch.empty(num_classes, check_num_features(num_features, self.name)))
        nn.init.kaiming_normal_(self.means)

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        distances = self._distances(features)
        own = distances.gather(1, target[:, None])
        scores = -distances.scatter_add(1, target[:, None], self.alpha * own)
        losses = F.cross_entropy(scores, target, reduction="none") + self.lam * own.squeeze(1)
        return losses + (logits * 0.0).sum(1)  # the unused head stays in the graph, as DistributedDataParallel expects

    def compute_empty(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        return super().compute_empty(logits, target, features, index, epoch) + (self.means * 0.0).sum()

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Minus the distance to each class mean."""
        if features is None:
            raise InputError(f"{self.name} ranks classes by the distance to its means: call scores(logits, features)")
        return -self._distances(features)

    def _distances(self, features: Tensor) -> Tensor:
        if features.shape[1] != self.means.shape[1]:
            raise InputError(
                f"features must have the {self.means.shape[1]} columns the loss was built for, got {features.shape[1]}; "
                f"pass num_features={features.shape[1]}"
            )
        return half_squared_distances(features, self.means.to(features.dtype))
