"""DRO-LT: a contrast around class centroids that may be wrong by a radius."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor, nn

from classgap.batchstats import class_sums
from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss, TrainingPass
from classgap.losses.batch import LossBatch
from classgap.losses.class_means import ClassMeans
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.distances import squared_distances
from classgap.losses.options import UnweightedOptions
from classgap.losses.partners import gathered
from classgap.losses.tensor_checks import check_num_features
from classgap.registry import Choice, Float, method

Centroids = Literal["running", "epoch"]


EpsilonRule = Literal["learned", "count"]


RobustForm = Literal["dro_lt", "elm"]


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
    r"""Distributional robustness for long tails: samples are contrasted around class centroids, which may be wrong by a radius.

    .. math:: L = \mathrm{CE} + w\,\tfrac1{|C|}\sum_{c\in C} L_c

    The centroid of a rare class is uncertain, so its samples must be the closest even if it lies :math:`\varepsilon_c` further
    away. One-stage form: centroids are running means, or means of a pass over the training data before each epoch. Distances
    are not squared, as in the authors' code; the ELM paper compares with a form that squares them, ``form="elm"``.

    When to use: long-tailed data with poor features of rare classes. The tables of MR² call it DRL.
    Expect: on balanced data a small change; on long tails little in one stage: the published gains come with
    ``stage=three_stage``.
    Pitfalls: samples of one class compete with each other, so classes can even become wider; the radii are parameters and must
    be in the optimiser; the published figures use three stages (pre-train, features with a balanced sampler, classifier),
    where the authors' code has ``weight=1``, centroids of a pass before each epoch, and weight decay on the radii.

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
        **options: Unpack[UnweightedOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.weight = number("weight", weight, low=0.0)
        one_of("form", form, get_args(RobustForm))
        self.form: RobustForm = form
        self.temperature = number("temperature", temperature, low=0.0, open_low=True)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        one_of("rule", rule, get_args(EpsilonRule))
        one_of("centroids", centroids, get_args(Centroids))
        radii = torch.full((num_classes,), float(number("epsilon", epsilon, low=0.0, high=1e9)))
        if rule == "learned":
            self.epsilon = nn.Parameter(radii)
        elif self.log_prior is None:
            raise InputError("rule='count' needs class_counts, the number of training samples of each class")
        else:
            uniform = self.log_prior.exp() * num_classes  # 1 for balanced data
            self.register_buffer("epsilon", radii / uniform.sqrt(), persistent=False)
        self.num_features = check_num_features(num_features, self.name)
        self.centroids = ClassMeans(num_classes, num_features)
        # A pass fixes the centroids for the epoch; batches then only add classes that were not in it.
        self.step = 1 - self.decay if centroids == "running" else 0.0
        self.every_epoch = centroids == "epoch"

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        if not self.every_epoch:
            return
        sums, counts = torch.zeros_like(self.centroids.mean), torch.zeros_like(self.centroids.mean[:, 0])
        for batch in training_pass():
            assert batch.features is not None  # declared in needs
            batch_sums, batch_counts = class_sums(batch.features.to(sums.dtype), batch.target, self.num_classes)
            sums, counts = sums + batch_sums, counts + batch_counts
        self.centroids.replace(sums, counts)

    def compute(self, batch: LossBatch) -> Tensor:
        features, labels = batch.features, batch.labels
        assert features is not None  # declared in needs
        if self.updating:
            self.centroids.update(features, labels, step=self.step)
        rows, labels = gathered(features, labels, self.across_ranks)
        contrast = robust_centroid_contrast(
            rows, labels, self.centroids.mean, self.epsilon, temperature=self.temperature, form=self.form
        )
        classification = mean_cross_entropy(batch.logits, batch.target)
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return classification + self.weight * contrast

    compute_empty = compute
