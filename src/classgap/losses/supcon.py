"""Supervised contrastive learning: samples of a class attract each other, compared with all other samples of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.checks import number, whole
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.options import UnweightedOptions
from classgap.losses.partners import gathered
from classgap.losses.projection import mlp_projection
from classgap.losses.tensor_checks import check_num_features, check_views
from classgap.registry import Float, method


def supervised_contrast(embeddings: Tensor, target: Tensor, *, temperature: float = 0.07) -> Tensor:
    r"""Supervised contrastive loss of each row against all others.

    .. math:: \ell_i = -\frac1{|P(i)|}\sum_{p\in P(i)} \ln\frac{e^{s_{ip}/\tau}}{\sum_{a\ne i} e^{s_{ia}/\tau}}

    with :math:`P(i)` the other rows of the same class and :math:`s` the inner product.

    Args:
        embeddings: :math:`(N, d)`, of unit length.
    Shape:
        target :math:`(N,)`; returns :math:`(N,)`, 0 for the only row of a class.
    Example:
        >>> supervised_contrast(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([3, 3]))
        tensor([0., 0.])

    Reference: Khosla et al., *Supervised contrastive learning*, NeurIPS 2020, arXiv:2004.11362, eq. (2).
    """
    itself = torch.eye(len(target), dtype=torch.bool, device=target.device)
    similarity = embeddings @ embeddings.T / temperature
    positive = (target[:, None] == target[None]) & ~itself
    # −inf would become nan in the gradient of a row that has no other row to be compared with.
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
    Pitfalls: needs several views (cost times that number) and large batches; under imbalance frequent classes dominate the
    contrast (see ``bcl``); the projection must be in the optimiser.

    Args:
        num_features: Feature dimension.
        weight: Weight of the contrast.
        ce_weight: Weight of cross-entropy, which is averaged over all views.
        temperature: Temperature of the similarities.
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
        **options: Unpack[UnweightedOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.weight, self.ce_weight = number("weight", weight, low=0.0), number("ce_weight", ce_weight, low=0.0)
        self.temperature = number("temperature", temperature, low=0.0, open_low=True)
        self.views = whole("views", views, low=1)
        self.num_features = check_num_features(num_features, self.name)
        self.projection = mlp_projection(num_features, projection_dim)

    def compute(self, batch: LossBatch) -> Tensor:
        assert batch.features is not None  # declared in needs
        check_views(batch.logits, self.views)
        embeddings = _embed(self.projection, batch.features)
        embeddings, labels = gathered(embeddings, batch.labels, self.across_ranks)
        contrast = supervised_contrast(embeddings, labels, temperature=self.temperature).mean()
        classification = mean_cross_entropy(batch.logits, batch.target)
        self.last = {"classification": classification.detach(), "contrast": contrast.detach()}
        return self.ce_weight * classification + self.weight * contrast.to(batch.logits.dtype)

    compute_empty = compute


def _embed(project: nn.Module, rows: Tensor) -> Tensor:
    """Rows projected onto the unit sphere, in the precision of the projection."""
    return F.normalize(project(rows.to(next(project.parameters()).dtype)), dim=1)
