"""Contrastive losses: samples of a class attract each other among all others of the batch.

Several views of a batch arrive view-major: rows of view 1, then of view 2, and so on; a loss has their number as ``views``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap._checks import InputError, number, one_of
from classgap.losses._base import ClassLoss, TrainingPass
from classgap.losses._composite import CompositeLoss
from classgap.losses._shared import (
    ClassMeans,
    check_num_features,
    gathered,
    hard_labels,
    mean_cross_entropy,
    projection,
    squared_distances,
)
from classgap.registry import Choice, Float, method
from classgap.stats import class_sums

Centroids = Literal["running", "epoch"]
EpsilonRule = Literal["learned", "count"]


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
        _check_views(logits, self.views)
        embeddings = _embed(self.projection, features)
        embeddings, labels = gathered(embeddings, hard_labels(target), self.training)
        contrast = supervised_contrast(embeddings, labels, temperature=self.temperature).mean()
        classification = mean_cross_entropy(logits, target)
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return self.ce_weight * classification + self.weight * contrast.to(logits.dtype)

    compute_empty = compute


def balanced_contrast(embeddings: Tensor, target: Tensor, prototypes: Tensor, *, temperature: float = 0.1) -> Tensor:
    r"""Contrast in which every class weighs the same, however many samples it has in the batch.

    .. math:: \ell_i = -\frac1{|P(i)|}\sum_{p\in P(i)}\Big[\frac{s_{ip}}\tau
       - \ln\sum_c \frac1{|c|}\sum_{a\in c,\,a\ne i} e^{s_{ia}/\tau}\Big]

    over the rows and one prototype for each class; :math:`|c|` counts both, without the anchor.

    Args:
        embeddings: :math:`(N, d)` of unit length.
        prototypes: :math:`(K, d)` of unit length, one for each class.
    Shape:
        returns :math:`(N,)`.
    Example:
        >>> same = torch.ones(1, 1)
        >>> balanced_contrast(same, torch.tensor([0]), same)
        tensor([0.])

    Reference: Zhu et al., *Balanced contrastive learning for long-tailed visual recognition*, CVPR 2022, eq. (8).
    """
    rows, num_classes = len(target), len(prototypes)
    labels = torch.cat((target, torch.arange(num_classes, device=target.device)))
    members = torch.cat((embeddings, prototypes))
    itself = torch.eye(rows, rows + num_classes, dtype=torch.bool, device=target.device)
    positive = (target[:, None] == labels[None]) & ~itself
    similarity = embeddings @ members.T / temperature
    counts = similarity.new_ones(num_classes).index_add(0, target, similarity.new_ones(rows))
    size = counts[labels] - (target[:, None] == labels[None]).to(
        counts.dtype
    )  # the anchor is no member of its own class
    log_partition = (similarity - size.log()).masked_fill(itself, -1e30).logsumexp(1)
    attraction = (similarity * positive).sum(1) / positive.sum(1)
    return log_partition - attraction


@method(
    "bcl",
    kind="loss",
    family="contrast",
    paper="arXiv:2207.09052",
    needs=("features", "encoder_features", "views", "class_counts"),
    space={
        "alpha": Float(0.5, 4.0, default=2.0, log=True),
        "beta": Float(0.05, 2.0, default=0.6, log=True),
        "temperature": Float(0.05, 0.5, default=0.1, log=True),
    },
    reduces_to=("balanced_softmax", {"alpha": 1.0, "beta": 0.0, "views": 1}),
)
class BCLLoss(CompositeLoss):
    r"""Balanced contrastive learning: logit adjustment on one view, class-averaged contrast with prototypes on the others.

    .. math:: L = \alpha\,\mathrm{CE}(z + \ln\pi, y) + \beta\,L_{\mathrm{BCL}}

    Every class enters the contrast with the same weight and is present in every batch through its prototype.

    When to use: long-tailed data and an augmentation strong enough for contrast; published with three views.
    Expect: on balanced data the effect of the contrast alone, as the adjustment vanishes; on long tails what logit
    adjustment gives, and better features where the views differ enough.
    Pitfalls: three forward passes a step; the prototypes are learned rows of the loss unless :meth:`bind_head` ties them to the
    classifier as in the release; own parameters must be in the optimiser.

    Args:
        num_features: Feature dimension.
        alpha: Weight of the classification, on view 1.
        beta: Weight of the contrast: on views 2 and up, or on all rows with fewer than three views.
        temperature: Of the similarities.
        projection_dim: Output width of the two projections.
        views: Views of each sample.
        base: The classification term; ``base="dbm", base_params={"variant": "bs"}`` is DBM-BCL (with a cosine head).
        base_params: Its parameters.
    Reference: Zhu et al., CVPR 2022.
    """

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        *,
        alpha: float = 2.0,
        beta: float = 0.6,
        temperature: float = 0.1,
        projection_dim: int = 128,
        views: int = 3,
        base: str = "balanced_softmax",
        base_params: Mapping[str, Any] | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, base=base, base_params=base_params, class_counts=class_counts)
        self.alpha, self.beta = number("alpha", alpha, low=0.0), number("beta", beta, low=0.0)
        self.temperature = number("temperature", temperature, low=0.0, open_low=True)
        self.views = int(number("views", views, low=1))
        width = check_num_features(num_features, self.name)
        self.projection = projection(width, projection_dim)
        self.prototype_projection = projection(width, projection_dim)
        self.class_rows: nn.Parameter | None = nn.Parameter(torch.empty(num_classes, width))
        nn.init.kaiming_uniform_(self.class_rows, a=5**0.5)
        self._head: list[nn.Module] = []  # in a list, so that the model's layer is no submodule of the loss

    def bind_head(self, head: nn.Module) -> None:
        """Make prototypes from the classifier's rows instead of own ones; call it before building the optimiser."""
        self._head = [head]
        self.class_rows = None

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        assert features is not None
        samples = _check_views(logits, self.views)
        rest = slice(samples if self.views >= 3 else 0, None)
        classification: Tensor = self.base(
            logits[:samples], target[:samples], features[:samples], None if index is None else index[:samples], epoch
        )
        embeddings = _embed(self.projection, features[rest])
        embeddings, labels = gathered(embeddings, hard_labels(target)[rest], self.training)
        contrast = balanced_contrast(embeddings, labels, self._prototypes(), temperature=self.temperature).mean()
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return self.alpha * classification + self.beta * contrast.to(logits.dtype)

    compute_empty = compute

    def _prototypes(self) -> Tensor:
        rows = self._head[0].weight if self.class_rows is None else self.class_rows
        assert isinstance(rows, Tensor)
        return _embed(self.prototype_projection, rows)


def robust_centroid_contrast(
    features: Tensor, target: Tensor, centroids: Tensor, epsilon: Tensor, *, temperature: float = 1.0
) -> Tensor:
    r"""Contrast of the samples of a batch around the centroid of each class present, in its worst case within a ball.

    .. math:: L_c = -\frac1{b_c}\sum_{i:\,y_i=c}\ln
       \frac{e^{-(d(\mu_c,\phi_i)+\varepsilon_c)/T}}{\sum_j e^{-(d(\mu_c,\phi_j)+\varepsilon_c 1[y_j=c])/T}}

    averaged over the classes present; the softmax runs over samples, not over classes. :math:`d` is Euclidean.

    Args:
        epsilon: :math:`(K,)` radii; 0 gives the plain contrast.
    Shape:
        features :math:`(N, d)`, target :math:`(N,)`, centroids :math:`(K, d)`; returns a scalar, 0 for a single sample.
    Example:
        >>> robust_centroid_contrast(torch.ones(1, 2), torch.tensor([0]), torch.zeros(3, 2), torch.ones(3))
        tensor(0.)

    Reference: Samuel & Chechik, *Distributional robustness loss for long-tail learning*, ICCV 2021, arXiv:2104.03066.
    """
    same = (target[:, None] == target[None]).to(features.dtype)
    own = centroids.detach().to(features.dtype)[target]
    distance = (squared_distances(own, features) + 1e-12).sqrt()
    scores = -(distance + epsilon.to(features.dtype)[target][:, None] * same) / temperature
    losses = scores.logsumexp(1) - scores.diagonal()
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
    away. One-stage form: centroids are running means, or means of a pass over the training data before each epoch.

    When to use: long-tailed data with weak features in the tail. What MR²'s tables call DRL.
    Expect: on balanced data a small change; on long tails little in one stage: the published gains come with
    ``stage=three_stage``.
    Pitfalls: samples of one class compete with each other, so classes can even widen; the radii are parameters and must be in
    the optimiser; the published figures use three stages (pre-train, features with a balanced sampler, classifier).

    Args:
        num_features: Feature dimension.
        weight: Weight :math:`w` of the contrast.
        temperature: :math:`T`.
        epsilon: First value (``"learned"``) or scale (``"count"``) of the radii.
        rule: ``"learned"`` radii, or ``"count"``: :math:`\varepsilon_c \propto 1/\sqrt{n_c}`, needs ``class_counts``.
        centroids: ``"running"`` means with ``decay``, or of a pass before each ``"epoch"``.
        decay: Share of the old centroid kept when a class appears.
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
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.weight = number("weight", weight, low=0.0)
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
            rows, labels, self.centroids.mean, self.epsilon, temperature=self.temperature
        )
        classification = mean_cross_entropy(logits, target)
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return classification + self.weight * contrast

    compute_empty = compute


def _embed(project: nn.Module, rows: Tensor) -> Tensor:
    """Rows projected onto the unit sphere, in the precision of the projection."""
    return F.normalize(project(rows.to(next(project.parameters()).dtype)), dim=1)


def _check_views(logits: Tensor, views: int) -> int:
    """Samples in a view-major batch."""
    if logits.shape[0] % views:
        raise InputError(
            f"a loss with views={views} needs the rows of all views one after the other, got {logits.shape[0]} rows, "
            f"which {views} does not divide; concatenate the views or build the loss with views=1"
        )
    return logits.shape[0] // views
