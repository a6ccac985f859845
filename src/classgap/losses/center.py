"""Center loss: features are pulled to the running mean of their class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from classgap.checks import number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.class_means import ClassMeans
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.options import LossOptions
from classgap.losses.tensor_checks import check_num_features
from classgap.registry import Float, method


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

    Centres are not parameters: they follow the batch means, :math:`c_k \leftarrow c_k + \alpha\frac{b_k}{1+b_k}(m_k - c_k)`,
    and start at the first batch mean of their class. What MR²'s tables call DFL.

    When to use: features of a class are scattered and the head is linear; it makes classes compact.
    Expect: on balanced data tighter classes and at most a small change in accuracy; on long tails the same, since
    the preference of the head for frequent classes remains.
    Pitfalls: the pull is not relative to the feature scale, so features and :math:`\lambda` must be tuned together; the paper
    sums over the batch where this, as most code, divides by its size; the tail is pulled to centres made of few samples.

    Args:
        num_features: Feature dimension :math:`d`.
        lam: Weight :math:`\lambda` of the pull; 0.003 as others quote the paper, whose text could not be checked.
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
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.lam = number("lam", lam, low=0.0)
        self.rate = number("rate", rate, low=0.0, high=1.0)
        self.num_features = check_num_features(num_features, self.name)
        self.centers = ClassMeans(num_classes, num_features)

    def compute(self, batch: LossBatch) -> Tensor:
        features, labels = batch.features, batch.labels
        assert features is not None  # declared in needs
        if self.updating:
            self.centers.update(features, labels, step=self.rate, shrink=True)
        # A class that was never in a training batch has no centre.
        pull = center_pull(features, labels, self.centers.mean) * self.centers.seen[labels]
        classification, pull = mean_cross_entropy(batch.logits, batch.target), pull.sum() / max(1, len(batch))
        self.last = {"classification": classification.detach(), "pull": pull.detach()}
        return classification + self.lam * pull

    compute_empty = compute
