"""CMIC: predictions agree within a class and differ between classes, by conditional mutual information."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.class_means import ClassMeans
from classgap.losses.cross_entropy import mean_cross_entropy
from classgap.losses.options import LossOptions
from classgap.losses.partners import gathered
from classgap.losses.tensor_checks import check_state_size
from classgap.registry import Float, method


def concentration(log_probabilities: Tensor, target: Tensor, class_means: Tensor) -> Tensor:
    r"""Divergence of each prediction from the mean prediction of its class, :math:`\mathrm{KL}(P_i\,\|\,Q_{y_i})`.

    Its mean over the data is the conditional mutual information between input and prediction given the label.

    Shape:
        log_probabilities :math:`(N, K)`, target :math:`(N,)`, class_means :math:`(K, K)`; returns :math:`(N,)`.
    Example:
        >>> log_p = torch.tensor([[0.25, 0.75]]).log()
        >>> concentration(log_p, torch.tensor([0]), torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
        tensor([0.])
    """
    # A mean that underflowed to 0 would give an infinite divergence.
    reference = class_means.detach().to(log_probabilities.dtype)[target].clamp_min(1e-12).log()
    return (log_probabilities.exp() * (log_probabilities - reference)).sum(1)


def separation(log_probabilities: Tensor, target: Tensor, *, ceiling: float) -> Tensor:
    r"""Cross-entropy between predictions of samples with different labels, over all pairs.

    .. math:: \frac1{N^2}\sum_{i,j:\,y_i\ne y_j} \min\big(H(P_i, P_j),\, h\big), \qquad H(P, Q) = -\sum_k P_k\ln Q_k

    Args:
        ceiling: :math:`h`. Without it the term has no bound and training, which raises it, would diverge.
    """
    probabilities = log_probabilities.exp()
    cross = -(probabilities @ log_probabilities.T)
    different = target[:, None] != target[None]
    return (cross.clamp_max(ceiling) * different).sum() / max(1, len(target)) ** 2


@method(
    "cmic",
    kind="loss",
    family="information",
    paper="arXiv:2309.09123",
    space={"lam": Float(0.01, 1.0, default=0.7), "beta": Float(0.0, 0.5, default=0.2)},
    reduces_to=("cross_entropy", {"lam": 0.0, "beta": 0.0}),
)
class CMICLoss(ClassLoss):
    r"""Cross-entropy under an information constraint: predictions agree within a class and differ between classes.

    .. math:: L = \mathrm{CE} + \lambda\,\tfrac1N\sum_i\mathrm{KL}(P_i\|Q_{y_i})
       - \beta\,\tfrac1{N^2}\sum_{y_i\ne y_j} H(P_i, P_j)

    :math:`Q_k`, the mean prediction of class :math:`k`, is a running average that is not differentiated: the alternation of
    the paper, taken at every step.

    When to use: balanced data where output distributions of a class should be alike.
    Expect: on balanced data a small change, published as a gain for networks of all sizes; on long tails frequent
    classes dominate both terms, so it does not help the tail.
    Pitfalls: its state has :math:`K^2` numbers; the separation is unbounded below and therefore limited to twice
    :math:`\ln K` per pair; the published weights could not be found, so the defaults are only a start for tuning.

    Args:
        lam: Weight of the concentration.
        beta: Weight of the separation.
        decay: Share of the old :math:`Q_k` kept when class :math:`k` appears.
    Reference: Yang et al., *Conditional mutual information constrained deep learning for classification*, 2023.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        lam: float = 0.7,
        beta: float = 0.2,
        decay: float = 0.9,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.lam, self.beta = number("lam", lam, low=0.0), number("beta", beta, low=0.0)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        check_state_size(num_classes**2, f"a mean prediction of {num_classes} numbers for each class", self.name)
        self.means = ClassMeans(num_classes, num_classes)

    def compute(self, batch: LossBatch) -> Tensor:
        log_probabilities, labels = F.log_softmax(batch.logits, 1), batch.labels
        if self.updating:
            self.means.update(log_probabilities.detach().exp(), labels, step=1 - self.decay)
        inside = concentration(log_probabilities, labels, self.means.mean) * self.means.seen[labels]
        inside = inside.sum() / max(1, len(labels))
        rows, row_labels = gathered(log_probabilities, labels, self.across_ranks)
        between = separation(rows, row_labels, ceiling=2 * math.log(self.num_classes))
        self.last = {"concentration": inside.detach(), "separation": between.detach()}
        return mean_cross_entropy(batch.logits, batch.target) + self.lam * inside - self.beta * between

    compute_empty = compute
