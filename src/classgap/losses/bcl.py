"""Balanced contrastive learning: every class has the same weight in the contrast, and a prototype from the classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from classgap.checks import InputError, number, whole
from classgap.losses.batch import LossBatch
from classgap.losses.options import LossOptions
from classgap.losses.partners import gathered
from classgap.losses.projection import BatchNormProjection
from classgap.losses.tensor_checks import check_num_features, check_views
from classgap.losses.wrapper import WrapperLoss
from classgap.registry import Float, method

_LEAST_HIDDEN = 512


def balanced_contrast(embeddings: Tensor, target: Tensor, prototypes: Tensor, *, temperature: float = 0.1) -> Tensor:
    r"""Contrast in which every class has the same weight, whatever its number of samples in the batch.

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
    )  # the anchor is not counted in its own class
    log_partition = (similarity - size.log()).masked_fill(itself, -1e30).logsumexp(1)
    attraction = (similarity * positive).sum(1) / positive.sum(1)
    return log_partition - attraction


class ModuleReference:
    """A module that belongs to the model, not to the parameters and the state of the loss that refers to it.

    A deep copy of the loss refers to the same module, and a deep copy of model and loss together to the copied module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleReference:
        return ModuleReference(memo.get(id(self.module), self.module))


@method(
    "bcl",
    kind="loss",
    family="contrast",
    paper="arXiv:2207.09052",
    needs=("features", "encoder_features", "views", "class_counts", "head"),
    space={
        "alpha": Float(0.5, 4.0, default=2.0, log=True),
        "beta": Float(0.05, 2.0, default=0.6, log=True),
        "temperature": Float(0.05, 0.5, default=0.1, log=True),
    },
    reduces_to=("balanced_softmax", {"alpha": 1.0, "beta": 0.0, "views": 1}),
)
class BCLLoss(WrapperLoss):
    r"""Balanced contrastive learning: logit adjustment on one view, class-averaged contrast with prototypes on the others.

    .. math:: L = \alpha\,\mathrm{CE}(z + \ln\pi, y) + \beta\,L_{\mathrm{BCL}}

    Every class enters the contrast with the same weight and is present in every batch through its prototype: its row of the
    classifier's weights, projected. Features and weights have a projection each (linear, BatchNorm, ReLU, linear), as in the
    authors' code. ``classgap train`` supplies the classifier; a loop of your own does it once with :meth:`bind_head`::

        model = FeatureTap(network)                                    # returns logits and features
        criterion = BCLLoss(num_classes, num_features, class_counts=counts)
        criterion.bind_head(model.head)                                # prototypes are projections of its weights
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9)

        logits, features = model(torch.cat([view1, view2, view3]))
        loss = criterion(logits, target.repeat(3), features)

    When to use: long-tailed data and an augmentation strong enough for contrast; published with three views.
    Expect: on balanced data the effect of the contrast alone, as the adjustment vanishes; on long tails what logit
    adjustment gives, and better features where the views differ enough.
    Pitfalls: three forward passes per step; the parameters of the loss must be in the optimiser, where ``classgap train`` does
    not decay them, while the authors do; strategies that split the classifier's weights over processes (FSDP) are refused.

    Args:
        num_features: Feature dimension.
        alpha: Weight of the classification, on view 1.
        beta: Weight of the contrast: on views 2 and up, or on all rows with fewer than three views.
        temperature: Temperature of the similarities.
        projection_dim: Output width of the two projections; 128 in released code for CIFAR, 1024 for ImageNet.
        hidden_dim: Hidden width of the two projections. By default 512, or ``num_features`` if that is larger: the values of
            the released code for CIFAR and ImageNet.
        views: Views of each sample.
        base: The classification term; ``base="dbm", base_params={"variant": "bs"}`` is DBM-BCL (with a cosine head).
        base_params: Its parameters.
    Reference: Zhu et al., CVPR 2022; github.com/FlamieZhu/Balanced-Contrastive-Learning.
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
        hidden_dim: int | None = None,
        views: int = 3,
        base: str = "balanced_softmax",
        base_params: Mapping[str, Any] | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, base=base, base_params=base_params, class_counts=class_counts, **options)
        self.alpha, self.beta = number("alpha", alpha, low=0.0), number("beta", beta, low=0.0)
        self.temperature = number("temperature", temperature, low=0.0, open_low=True)
        self.views = whole("views", views, low=1)
        self.num_features = check_num_features(num_features, self.name)
        hidden = max(_LEAST_HIDDEN, num_features) if hidden_dim is None else whole("hidden_dim", hidden_dim, low=1)
        self.projection = BatchNormProjection(num_features, hidden, projection_dim)
        self.prototype_projection = BatchNormProjection(num_features, hidden, projection_dim)
        self._head: ModuleReference | None = None

    def bind_head(self, head: nn.Module) -> None:
        """Take prototypes from this classifier: a layer with ``weight`` of shape ``(num_classes, num_features)``."""
        self._rows(head)
        self._head = ModuleReference(head)

    def compute(self, batch: LossBatch) -> Tensor:
        features = batch.features
        assert features is not None  # declared in needs
        if self._head is None:
            raise InputError(
                f"{self.name} projects the classifier's weights to prototypes: call criterion.bind_head(model.head) with the "
                "last layer of the network (classgap.heads.FeatureTap finds it) before the first step"
            )
        prototypes = self.prototype_projection(self._rows(self._head.module), updating=self.updating)
        samples = check_views(batch.logits, self.views)
        classification = self.base.loss(batch.rows(slice(samples)))
        embeddings, labels = self._embeddings(features, batch.labels, samples if self.views >= 3 else 0)
        contrast = balanced_contrast(embeddings, labels, prototypes, temperature=self.temperature).mean()
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return self.alpha * classification + self.beta * contrast.to(batch.logits.dtype)

    compute_empty = compute

    def _embeddings(self, features: Tensor, labels: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Projections and labels of the rows of all ranks from ``start`` on; BatchNorm sees the rows before ``start`` as well."""
        before, _ = gathered(features[:start], labels[:start], self.across_ranks)
        rows, labels = gathered(features[start:], labels[start:], self.across_ranks)
        return self.projection(torch.cat((before, rows)), updating=self.updating)[len(before) :], labels

    def _rows(self, head: nn.Module) -> Tensor:
        weight, wanted = getattr(head, "weight", None), (self.num_classes, self.num_features)
        if not isinstance(weight, Tensor) or tuple(weight.shape) != wanted:
            found = f"weight of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else "no weight"
            raise InputError(
                f"{self.name} needs a classifier whose weight has shape {wanted}, one row for each class, but "
                f"{type(head).__name__} has {found}; bind the last layer, and use a strategy that does not split it (ddp)"
            )
        return weight
