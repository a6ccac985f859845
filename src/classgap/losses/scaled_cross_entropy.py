"""Cross-entropy of logits, each row divided by its own number, optionally plus a pull between the same logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from classgap.batchstats.backend import as_array, is_mapped
from classgap.losses.class_scatter import BatchScatter
from classgap.losses.options import Reduction, reduce
from classgap.losses.tensor_checks import values_are_cheap

_SAFE = 1e-30  # the logarithm of a probability above this is exact to the last digits of a float


def scaled_cross_entropy(
    logits: Tensor,
    target: Tensor,
    divisor: Tensor,
    offset: Tensor | None = None,
    reduction: Reduction = "mean",
    pull: tuple[BatchScatter, Tensor | float] | None = None,
) -> Tensor:
    r"""Cross-entropy of :math:`z_i / g_i + o`, plus a scatter of the same logits times its weight.

    Shape:
        logits :math:`(N, K)`, target :math:`(N,)`, divisor :math:`(N,)` (not differentiated), offset :math:`(K,)`.
    """
    inverse = divisor.detach().to(logits.dtype).reciprocal()
    if pull is None and is_mapped(logits):  # vmap derives its rules from the operations of torch
        scaled = logits * inverse[:, None]
        return F.cross_entropy(scaled if offset is None else scaled + offset, target, reduction=reduction)
    loss: Tensor = _ScaledCrossEntropy.apply(logits, target, inverse, offset, reduction, pull)
    return loss


class _ScaledCrossEntropy(torch.autograd.Function):
    """Cross-entropy of scaled logits with a hand-written gradient: each logit is exponentiated once, not twice.

    The pull is included because its gradient touches only some of the rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        inverse: Tensor,
        offset: Tensor | None,
        reduction: Reduction,
        pull: tuple[BatchScatter, Tensor | float] | None,
    ) -> Tensor:
        scaled = logits * inverse[:, None]
        if offset is not None:
            scaled += offset
        probability = F.softmax(scaled, 1)
        losses = _negative_logarithms(probability, scaled, target)
        ctx.save_for_backward(probability, target, inverse)
        ctx.share = 1 / max(1, len(target)) if reduction == "mean" else 1.0
        ctx.pull = pull
        loss = reduce(losses, reduction)
        return loss if pull is None else loss + pull[0].value * pull[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        probability, target, inverse = ctx.saved_tensors
        rate = (inverse * (grad * ctx.share))[:, None]
        gradient = (probability * rate).scatter_add_(1, target[:, None], -rate)
        if ctx.pull is not None:
            scatter, weight = ctx.pull
            scatter.add_gradient(gradient, grad * weight)
        return gradient, *[None] * 5


def _negative_logarithms(probability: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Negative logarithm of the label's probability, also where that probability is too small for a float."""
    own = probability.gather(1, target[:, None])[:, 0]
    if values_are_cheap(own) and len(own) and as_array(own).min() > _SAFE:
        return own.log_().neg_()
    # The largest probability is never tiny: its logarithm is exact, and the label's score lies that much below the largest.
    return probability.amax(1).log_().neg_().add_(scores.amax(1)).sub_(scores.gather(1, target[:, None])[:, 0])
