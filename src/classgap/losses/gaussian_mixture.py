"""Large-margin Gaussian mixture loss: classes are learned means in feature space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.checks import InputError, number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.distances import squared_distances
from classgap.losses.options import LossOptions
from classgap.losses.tensor_checks import check_num_features, check_width
from classgap.registry import Float, method


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

    When to use: compact, Gaussian-like classes are wanted, e.g. to recognise unusual inputs by their distance.
    Expect: on balanced data accuracy near that of cross-entropy, with compact classes; on long tails no help by
    itself, as it does not use counts and rare means are learned from few samples.
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
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.alpha, self.lam = number("alpha", alpha, low=0.0), number("lam", lam, low=0.0)
        self.num_features = check_num_features(num_features, self.name)
        self.means = nn.Parameter(torch.empty(num_classes, num_features))
        nn.init.kaiming_normal_(self.means)

    def per_sample(self, batch: LossBatch) -> Tensor:
        assert batch.features is not None  # declared in needs
        distances, target = self._distances(batch.features), batch.target
        own = distances.gather(1, target[:, None])
        scores = -distances.scatter_add(1, target[:, None], self.alpha * own)
        losses = F.cross_entropy(scores, target, reduction="none") + self.lam * own.squeeze(1)
        return losses + (batch.logits * 0.0).sum(
            1
        )  # the unused head stays in the graph, as DistributedDataParallel expects

    def compute_empty(self, batch: LossBatch) -> Tensor:
        return super().compute_empty(batch) + (self.means * 0.0).sum()

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Minus the distance to each class mean."""
        if features is None:
            raise InputError(f"{self.name} ranks classes by the distance to its means: call scores(logits, features)")
        check_width(features, self.num_features)
        return -self._distances(features)

    def _distances(self, features: Tensor) -> Tensor:
        return half_squared_distances(features, self.means.to(features.dtype))
