r"""Logit margins that follow class moments, and the cross-entropy with them: the first half of MR²."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from classgap._checks import InputError
from classgap.losses._base import Reduction, reduce
from classgap.losses._checks import values_are_cheap
from classgap.losses._scatter import BatchScatter
from classgap.stats.arrays import as_array, as_tensor, library

GammaRule = Literal["spread", "uniform", "imbalanced"]
_SAFE = 1e-30  # probabilities above this are exact to the last digits of a float


def margins_from_moments(
    second: Tensor, c_bar: float, *, rule: GammaRule = "spread", class_counts: Tensor | None = None
) -> Tensor:
    r"""Per-class logit margins with mean :math:`\bar c` over the classes seen so far; unseen classes get :math:`\bar c`.

    .. math:: \gamma_k = \bar c\, m\, a_k^{1/3} \big/ \sum_{j\ \text{seen}} a_j^{1/3}

    Args:
        second: :math:`a_k = E\|\phi\|_p^2`, shape :math:`(K,)`; nan for a class not seen yet. :math:`m` have been.
        rule: ``"spread"`` is eq. (1) and (17) of the paper; ``"uniform"`` gives :math:`\bar c` to all; ``"imbalanced"`` uses
            :math:`(a_k/n_k)^{1/4}`, which minimises the average per-class bound for counts :math:`n_k` (LDAM's rule when
            :math:`a_k` is constant).
    Example:
        >>> margins_from_moments(torch.tensor([1.0, 8.0, torch.nan]), 3.0)
        tensor([2., 4., 3.])
    """
    if rule == "uniform":
        return torch.full_like(second, c_bar)
    moments = as_array(second)
    xp = library(moments)
    seen, weight = moments == moments, xp.where(moments > 1e-12, moments, 1e-12)  # at least that: dead features
    if rule == "imbalanced":
        if class_counts is None:
            raise InputError("gamma_rule='imbalanced' needs class_counts, the number of training samples of each class")
        weight = (weight / as_array(class_counts)) ** 0.25
    else:
        weight = weight ** (1 / 3)
    weight = weight * seen
    scale = c_bar * seen.sum() / (weight.sum() + 1e-30)  # no class seen: 0/0
    return as_tensor(xp.where(seen, weight * scale, c_bar), second)


def gamma_margin_cross_entropy(
    logits: Tensor,
    target: Tensor,
    gamma: Tensor,
    *,
    offset: Tensor | None = None,
    weight_by_gamma: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy on a logit row divided by the margin of its true class.

    .. math:: \ell_i = -\ln\operatorname{softmax}(z_i/\gamma_{y_i} + o)_{y_i}

    The loss grows with :math:`\gamma_y` for samples that are right, which have to be right by more; at test time the raw
    :math:`z` is used.

    Args:
        gamma: :math:`(K,)` margins, not differentiated.
        offset: :math:`o`, e.g. :math:`\tau\log\pi` for imbalanced data.
        weight_by_gamma: Multiply by :math:`\gamma_y`, which leaves the boundary between overlapping classes where it was.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        logits :math:`(N, K)`, target :math:`(N,)` ints or :math:`(N, K)` probabilities; returns a scalar, or :math:`(N,)`.
    Example:
        >>> gamma_margin_cross_entropy(torch.tensor([[4.0, 0.0]]), torch.tensor([0]), torch.tensor([2.0, 1.0]))
        tensor(0.1269)

    Reference: eq. (1).
    """
    if target.dim() == 2:
        return reduce(_expected_over_labels(logits, target, gamma, offset, weight_by_gamma), reduction)
    return hard_label_loss(logits, target, gamma, offset, weight_by_gamma, reduction)


def hard_label_loss(
    logits: Tensor,
    target: Tensor,
    gamma: Tensor,
    offset: Tensor | None,
    weight_by_gamma: bool,
    reduction: Reduction = "mean",
    pull: tuple[BatchScatter, Tensor | float] | None = None,
) -> Tensor:
    """:func:`gamma_margin_cross_entropy` for class indices, plus a scatter of the same logits times its weight."""
    of_label = gamma.detach().to(logits.dtype).index_select(0, target)
    weight = of_label if weight_by_gamma else None
    loss: Tensor = _ScaledCrossEntropy.apply(logits, target, of_label.reciprocal(), weight, offset, reduction, pull)
    return loss


class _ScaledCrossEntropy(torch.autograd.Function):
    """Cross-entropy of scaled logits; with the gradient written down, each logit is exponentiated once, not twice.

    The pull is part of it because its gradient then only touches the rows that have one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        offset: Tensor | None,
        reduction: Reduction,
        pull: tuple[BatchScatter, Tensor | float] | None,
    ) -> Tensor:
        scaled = logits * inverse[:, None]
        if offset is not None:
            scaled += offset
        probability = F.softmax(scaled, 1)
        losses = _negative_logarithms(probability, scaled, target)
        if weight is not None:
            losses, inverse = losses * weight, inverse * weight
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
        return gradient, *[None] * 6


def _negative_logarithms(probability: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Of the label's probability, also where that is too small for a float."""
    own = probability.gather(1, target[:, None])[:, 0]
    if values_are_cheap(own) and len(own) and as_array(own).min() > _SAFE:
        return own.log_().neg_()
    # The largest probability is never tiny: its logarithm is exact, and the label's score lies that much below the largest.
    return probability.amax(1).log_().neg_().add_(scores.amax(1)).sub_(scores.gather(1, target[:, None])[:, 0])


def _expected_over_labels(
    logits: Tensor, target: Tensor, gamma: Tensor, offset: Tensor | None, weight_by_gamma: bool
) -> Tensor:
    """Each label a row may have is scored with its own margin; two for mixup, so the cost follows the non-zero entries."""
    rows, labels = target.nonzero(as_tuple=True)
    losses = gamma_margin_cross_entropy(
        logits[rows], labels, gamma, offset=offset, weight_by_gamma=weight_by_gamma, reduction="none"
    )
    return logits.new_zeros(logits.shape[0]).index_add(0, rows, losses * target[rows, labels].to(losses.dtype))
