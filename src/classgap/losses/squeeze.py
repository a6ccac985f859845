"""Squeezing: cross-entropy plus a penalty on the size of the features or of the logits, the same for every class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch.nn.functional as F
from torch import Tensor

from classgap.checks import number, one_of
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.options import UnweightedOptions
from classgap.registry import Choice, Float, method

Squeezed = Literal["features", "logits"]


@method(
    "squeeze",
    kind="loss",
    family="compact",
    paper="arXiv:1803.06373",
    needs=("features",),
    space={
        "weight": Float(1e-4, 0.1, default=0.01, log=True),
        "of": Choice(get_args(Squeezed), default="features"),
    },
    reduces_to=("cross_entropy", {"weight": 0.0}),
)
class SqueezeLoss(ClassLoss):
    r"""Cross-entropy plus a penalty on large features, or on large logits, the same for every class.

    .. math:: L = \tfrac1N\sum_i \ell_{\mathrm{ce}}(z_i, y_i) + w\,\|\phi_i\|^2

    Once all training samples are classified correctly, cross-entropy falls further only by growing features and logits; the
    penalty prevents that. It is the control for every method that pulls features together: the part of the effect that comes
    from smaller features is also there with this loss.

    When to use: small training sets that are fitted completely, and beside MR², center loss or ELM to see what their classes add.
    Expect: on balanced data a gain where few samples are fitted completely; on long tails the same for all classes,
    as it does not use counts.
    Pitfalls: the weight is in units of the features, so it does not transfer between networks; where training stops before
    the classes are separated it only slows training down.

    Args:
        weight: :math:`w`.
        of: What is squeezed: ``"features"`` :math:`\phi`, or ``"logits"`` :math:`z` as in the publication.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` or :math:`(N, K)`, features :math:`(N, d)`; returns a scalar.
    Example:
        >>> criterion = SqueezeLoss(3, weight=0.5)
        >>> criterion(torch.zeros(1, 3), torch.tensor([0]), features=torch.tensor([[1.0, 2.0]]))
        tensor(3.5986)

    Reference: Kannan et al., *Adversarial Logit Pairing*, arXiv:1803.06373 (logit squeezing).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        weight: float = 0.01,
        of: Squeezed = "features",
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[UnweightedOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.weight = number("weight", weight, low=0.0)
        self.of = one_of("of", of, get_args(Squeezed))

    def per_sample(self, batch: LossBatch) -> Tensor:
        assert batch.features is not None  # declared in needs
        squeezed = batch.features.to(batch.logits.dtype) if self.of == "features" else batch.logits
        cross_entropy = F.cross_entropy(batch.logits, batch.target, reduction="none")
        return cross_entropy + self.weight * squeezed.square().sum(1)
