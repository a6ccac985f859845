"""Class-balanced loss: class weights from the effective number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number, one_of
from classgap.losses.batch import LossBatch
from classgap.losses.class_weights import ClassWeightedLoss, WeightNorm
from classgap.losses.focal import focal_cross_entropy
from classgap.losses.logit_margin import replace_at
from classgap.losses.options import LossOptions, Reduction, reduce
from classgap.registry import Choice, Float, method

BalancedKind = Literal["softmax", "sigmoid", "focal_softmax", "focal_sigmoid"]


def sigmoid_cross_entropy(
    logits: Tensor, target: Tensor, *, gamma: float = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    r"""One binary decision for each class, summed over classes, each times :math:`(1-p_t)^\gamma`.

    Args:
        gamma: Focusing parameter; 0 gives plain binary cross-entropy.
        reduction: ``"mean"`` divides by the batch size, that is by the number of positives.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> sigmoid_cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
        tensor(1.3863)

    Reference: Cui et al., arXiv:1901.05555, eq. (9), (11).
    """
    towards = replace_at(-logits, target, logits.gather(1, target[:, None])[:, 0])
    losses = F.softplus(-towards)
    if gamma:
        losses = losses * torch.exp(-gamma * F.softplus(towards))
    return reduce(losses.sum(1), reduction)


@method(
    "class_balanced",
    kind="loss",
    family="reweight",
    paper="arXiv:1901.05555",
    needs=("class_counts",),
    space={
        "beta": Choice((0.9, 0.99, 0.999, 0.9999), default=0.9999),
        "kind": Choice(get_args(BalancedKind), default="softmax"),
        "gamma": Float(0.5, 2.0, default=1.0, log=True),
    },
    reduces_to=("cross_entropy", {"beta": 0.0}),
)
class ClassBalancedLoss(ClassWeightedLoss):
    r"""Class-balanced loss: classes are weighted inversely to their effective number of samples.

    .. math:: \ell = w_y\, \ell_0(z, y), \qquad w_k \propto \frac{1-\beta}{1-\beta^{n_k}}, \quad \tfrac1K\sum_k w_k = 1

    Rare classes get larger weights, but less than inverse counts would give them, because samples of a frequent class are
    partly redundant. The loss :math:`\ell_0` may be cross-entropy, focal, or their sigmoid forms.

    When to use: the simplest method against imbalance; best deferred (``drw``).
    Expect: on balanced data it is cross-entropy; on long tails a gain for the tail that fades once the training set
    is fitted, where weights no longer act.
    Pitfalls: weighting from the start hurts the features of frequent classes. For counts far above :math:`1/(1-\beta)` the
    weights saturate and frequent classes are all treated alike. Training with the sigmoid kinds starts badly unless the bias
    of the last layer starts at :math:`-\ln(K-1)`, and their loss is a sum over classes, so it needs a smaller learning rate
    for many classes.

    Args:
        beta: 0 for no re-weighting, towards 1 for inverse counts.
        kind: :math:`\ell_0`: ``"softmax"``, ``"sigmoid"``, ``"focal_softmax"`` or ``"focal_sigmoid"`` (the paper's CB-focal). The
            sigmoid kinds give all :math:`K` binary terms the weight of the true class.
        gamma: Focusing parameter of the focal kinds.
        weight_norm: ``"batch"`` divides by the number of samples (paper and its code), ``"weights"`` by their summed weight.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        beta: float = 0.9999,
        kind: BalancedKind = "softmax",
        gamma: float = 1.0,
        weight_norm: WeightNorm = "batch",
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, beta=beta, weight_norm=weight_norm, class_counts=class_counts, **options)
        one_of("kind", kind, get_args(BalancedKind))
        self.kind: BalancedKind = kind
        self.gamma = number("gamma", gamma, low=0.0)

    def unweighted(self, batch: LossBatch) -> Tensor:
        gamma = self.gamma if self.kind.startswith("focal") else 0.0
        loss = sigmoid_cross_entropy if self.kind.endswith("sigmoid") else focal_cross_entropy
        return loss(batch.logits, batch.target, gamma=gamma, reduction="none")
