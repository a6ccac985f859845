"""Contrastive losses: samples of a class attract each other among all others of the batch.

Several views of a batch arrive view-major: rows of view 1, then of view 2, and so on; a loss has their number as ``views``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.batchstats import class_sums
from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss, TrainingPass
from classgap.losses.shared import (
    ClassMeans,
    check_num_features,
    check_views,
    gathered,
    hard_labels,
    mean_cross_entropy,
    projection,
    squared_distances,
)
from classgap.registry import Choice, Float, method

Centroids = Literal["running", "epoch"]
EpsilonRule = Literal["learned", "count"]
RobustForm = Literal["dro_lt", "elm"]


def supervised_contrast(embeddings: Tensor, target: Tensor, *, temperature: float = 0.07) -> Tensor:
    r"""Supervised contrastive loss of each row against all others.

    .. math:: \ell_i = -\frac1{|P(i)|}\sum_{p\in P(i)} \ln\frac{e^{s_{ip}/\tau}}{\sum_{a\ne i} e^{s_{ia}/\tau}}

    with :math:`P(i)` the other rows of the same class and :math:`s` the inner product.

    Args:
        embeddings: :math:`(N, d)`, of unit length.
    Shape:
        target :math:`(N,)`; returns :math:`(N,)`, 0 for a row that is alone with its label.
    Example:
        >>> supervised_contrast(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([3, 3]))
        tensor([0., 0.])

    Reference: Khosla et al., *Supervised contrastive learning*, NeurIPS 2020, arXiv:2004.11362, eq. (2).
    """
    itself = torch.eye(len(target), dtype=torch.bool, device=target.device)
    similarity = embeddings @ embeddings.T / temperature
    positive = (target[:, None] == target[None]) & ~itself
    # −inf would turn into nan in the gradient of a row with nothing to compare to.
    log_partition = similarity.masked_fill(itself, -1e30).logsumexp(1)
    partners = positive.sum(1)
    attraction = (similarity * positive).sum(1) / partners.clamp_min(1)
    return torch.where(partners > 0, log_partition - attraction, 0.0)


@method(
    "supcon",
    kind="loss",
    family="contrast",
    paper="arXiv:2004.11362",
    needs=("features", "encoder_features", "views"),
    space={
        "weight": Float(0.05, 5.0, default=1.0, log=True),
        "temperature": Float(0.03, 0.5, default=0.07, log=True),
    },
    reduces_to=("cross_entropy", {"weight": 0.0}),
)
class SupConLoss(ClassLoss):
    """Cross-entropy plus supervised contrast: samples of a class, in several views, attract each other on the sphere.

    Features pass a two-layer projection, which belongs to the loss, before they are compared. Joint training by default;
    ``ce_weight=0`` is the first stage of the original two (then train a linear head on frozen features).

    When to use: enough samples of a class in a batch, strong augmentation, balanced or mildly imbalanced data.
    Expect: on balanced data better features after long training with strong views, little without; on long tails
    frequent classes gain first.
    Pitfalls: needs several views (cost times that number) and large batches; under imbalance head classes own the contrast
    (see ``bcl``); the projection must be in the optimiser.

    Args:
        num_features: Feature dimension.
        weight: Weight of the contrast.
        ce_weight: Weight of cross-entropy, which is averaged over all views.
        temperature: Of the similarities.
        projection_dim: Output width of the projection.
        views: Views of each sample.
    Reference: Khosla et al., NeurIPS 2020.
    """

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        *,
        weight: float = 1.0,
        ce_weight: float = 1.0,
        temperature: float = 0.07,
        projection_dim: int = 128,
        views: int = 2,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.weight, self.ce_weight = number("weight", weight, low=0.0), number("ce_weight", ce_weight, low=0.0)
        self.temperature = number("temperature", temperature, low=0.0, open_low=True)
        self.views = int(number("views", views, low=1))
        self.projection = projection(check_num_features(num_features, self.name), projection_dim)

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        check_views(logits, self.views)
        embeddings = _embed(self.projection, features)
        embeddings, labels = gathered(embeddings, hard_labels(target), self.training)
        contrast = supervised_contrast(embeddings, labels, temperature=self.temperature).mean()
        classification = mean_cross_entropy(logits, target)
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return self.ce_weight * classification + self.weight * contrast.to(logits.dtype)

    compute_empty = compute


def robust_centroid_contrast(
    features: Tensor,
    target: Tensor,
    centroids: Tensor,
    epsilon: Tensor,
    *,
    temperature: float = 1.0,
    form: RobustForm = "dro_lt",
) -> Tensor:
    r"""Contrast of the samples of a batch around the centroid of each class present, in its worst case within a ball.

    .. math:: L_c = -\frac1{b_c}\sum_{i:\,y_i=c}\ln
       \frac{e^{-(d(\mu_c,\phi_i)+\varepsilon_c)/T}}{\sum_j e^{-(d(\mu_c,\phi_j)+\varepsilon_c 1[y_j=c])/T}}

    averaged over the classes present; the softmax runs over samples, not over classes. :math:`d` is the Euclidean distance, not
    its square: the authors' code takes it so, and the radius stands for the triangle inequality
    :math:`|d(\mu,\phi) - d(\hat\mu,\phi)| \le \varepsilon`, which squares do not obey.

    Args:
        epsilon: :math:`(K,)` radii; 0 gives the plain contrast.
        form: ``"dro_lt"`` as above. ``"elm"`` is what the ELM paper writes for the same method, eq. (5): squared distances, and
            the average over samples instead of classes.
    Shape:
        features :math:`(N, d)`, target :math:`(N,)`, centroids :math:`(K, d)`; returns a scalar, 0 for a single sample.
    Example:
        >>> robust_centroid_contrast(torch.ones(1, 2), torch.tensor([0]), torch.zeros(3, 2), torch.ones(3))
        tensor(0.)

    Reference: Samuel & Chechik, *Distributional robustness loss for long-tail learning*, ICCV 2021, arXiv:2104.03066;
    github.com/dvirsamuel/DRO-LT.
    """
    same = (target[:, None] == target[None]).to(features.dtype)
    own = centroids.detach().to(features.dtype)[target]
    distance = squared_distances(own, features)
    if form == "dro_lt":
        distance = (distance + 1e-12).sqrt()
    scores = -(distance + epsilon.to(features.dtype)[target][:, None] * same) / temperature
    losses = scores.logsumexp(1) - scores.diagonal()
    if form == "elm":
        return losses.mean()
    share = 1 / same.sum(1)  # of its class; these sum to the number of classes present
    return (losses * share).sum() / share.sum()


@method(
    "dro_lt",
    kind="loss",
    family="contrast",
    paper="arXiv:2104.03066",
    needs=("features",),
    space={
        "weight": Float(0.01, 2.0, default=0.1, log=True),
        "temperature": Float(0.1, 10.0, default=1.0, log=True),
        "rule": Choice(("learned", "count"), default="learned"),
    },
    reduces_to=("cross_entropy", {"weight": 0.0}),
)
class DROLTLoss(ClassLoss):
    r"""Distributional robustness for long tails: samples gather at class centroids that may be off by a radius.

    .. math:: L = \mathrm{CE} + w\,\tfrac1{|C|}\sum_{c\in C} L_c

    The centroid of a rare class is uncertain, so its samples must be the closest even if it lies :math:`\varepsilon_c` further
    away. One-stage form: centroids are running means, or means of a pass over the training data before each epoch. Distances
    are not squared, as in the authors' code; the ELM paper compares with a form that squares them, ``form="elm"``.

    When to use: long-tailed data with weak features in the tail. What MR²'s tables call DRL.
    Expect: on balanced data a small change; on long tails little in one stage: the published gains come with
    ``stage=three_stage``.
    Pitfalls: samples of one class compete with each other, so classes can even widen; the radii are parameters and must be in
    the optimiser; the published figures use three stages (pre-train, features with a balanced sampler, classifier), where the
    authors' code has ``weight=1``, centroids of a pass before each epoch, and weight decay on the radii.

    Args:
        num_features: Feature dimension.
        weight: Weight :math:`w` of the contrast.
        temperature: :math:`T`.
        epsilon: First value (``"learned"``) or scale (``"count"``) of the radii.
        rule: ``"learned"`` radii, or ``"count"``: :math:`\varepsilon_c \propto 1/\sqrt{n_c}`, needs ``class_counts``.
        centroids: ``"running"`` means with ``decay``, or of a pass before each ``"epoch"``.
        decay: Share of the old centroid kept when a class appears.
        form: ``"dro_lt"``, as in the authors' code; ``"elm"``, eq. (5) of the ELM paper, which calls this one-stage DRO-LT with
            ``rule="count"``: squared distances, averaged over samples instead of classes.
    Reference: Samuel & Chechik, ICCV 2021.
    """

    epsilon: Tensor

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        *,
        weight: float = 0.1,
        temperature: float = 1.0,
        epsilon: float = 1.0,
        rule: EpsilonRule = "learned",
        centroids: Centroids = "running",
        decay: float = 0.9,
        form: RobustForm = "dro_lt",
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.weight = number("weight", weight, low=0.0)
        one_of("form", form, get_args(RobustForm))
        self.form: RobustForm = form
        self.temperature = number("temperature", temperature, low=0.0, open_low=True)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        one_of("rule", rule, get_args(EpsilonRule))
        one_of("centroids", centroids, get_args(Centroids))
        radii = torch.full((num_classes,), number("epsilon", epsilon, low=0.0))
        if rule == "learned":
            self.epsilon = nn.Parameter(radii)
        elif self.log_prior is None:
            raise InputError("rule='count' needs class_counts, the number of training samples of each class")
        else:
            uniform = self.log_prior.exp() * num_classes  # 1 for balanced data
            self.register_buffer("epsilon", radii / uniform.sqrt(), persistent=False)
        self.centroids = ClassMeans(num_classes, check_num_features(num_features, self.name))
        # A pass fixes the centroids for the epoch; batches then only introduce classes it did not meet.
        self.step = 1 - self.decay if centroids == "running" else 0.0
        self.every_epoch = centroids == "epoch"

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        if not self.every_epoch:
            return
        sums, counts = torch.zeros_like(self.centroids.mean), torch.zeros_like(self.centroids.mean[:, 0])
        for _, target, features, _ in training_pass():
            batch_sums, batch_counts = class_sums(features.to(sums.dtype), target, self.num_classes)
            sums, counts = sums + batch_sums, counts + batch_counts
        self.centroids.replace(sums, counts)

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        self.centroids.check_width(features)
        labels = hard_labels(target)
        if self.updating:
            self.centroids.update(features, labels, step=self.step)
        rows, labels = gathered(features, labels, self.training)
        contrast = robust_centroid_contrast(
            rows, labels, self.centroids.mean, self.epsilon, temperature=self.temperature, form=self.form
        )
        classification = mean_cross_entropy(logits, target)
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return classification + self.weight * contrast

    compute_empty = compute


def _embed(project: nn.Module, rows: Tensor) -> Tensor:
    """Rows projected onto the unit sphere, in the precision of the projection."""
    return F.normalize(project(rows.to(next(project.parameters()).dtype)), dim=1)
