r"""The within-class pair term shared by MR² and ELM: pull samples of a class together beyond a slack.

Pairs are formed inside each class only, so memory and time follow :math:`\sum_k b_k^2`, not :math:`N^2`. The gradient is
written by hand: autograd would keep several copies of the feature matrix.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from classgap.batchstats import ClassPairs, add_along_pairs, class_pairs
from classgap.batchstats.backend import Array, as_array, as_tensor, largest, library
from classgap.batchstats.collectives import uncompiled
from classgap.losses.terms import Term, not_differentiated_again, weighted_sum

PairMode = Literal["sum", "mean", "pairwise"]
PAIR_MODES: tuple[PairMode, ...] = get_args(PairMode)


def within_class_pull(
    features: Tensor,
    target: Tensor,
    slack: Tensor | Array,
    *,
    scale: float = 1.0,
    pair: PairMode = "sum",
    centred: float = 0.0,
    weight: Tensor | Array | None = None,
    anchors: tuple[int, int] | None = None,
    index: Tensor | None = None,
    pairs: ClassPairs | None = None,
) -> Tensor:
    r"""How far each sample is from other samples of its class, beyond a slack.

    .. math:: \ell_i = \ln\Big[1 + \sum_{j \ne i,\, y_j = y_i} \exp\big(c\,\|\phi_i - \phi_j\|^2 - m_i\big)\Big]

    Args:
        slack: :math:`m`, a scalar or one value for each row (the same within a class); not differentiated.
        scale: :math:`c`; 1 in the papers.
        pair: ``"sum"`` over partners as in the papers; ``"mean"`` over partners, independent of the batch size; ``"pairwise"``
            averages one softplus for each partner, an unbiased estimate for every batch size.
        centred: Share of :math:`\ln(1 + m_i)`, the value for :math:`m_i` partners that all lie at the slack, which is
            subtracted; with ``pair="sum"`` only. It has no gradient.
        weight: Weight of each anchor; not differentiated. If given, the weighted sum over the anchors is returned.
        anchors: Range of rows that get a loss; the others only serve as partners (memory, other ranks). Default: all rows.
        index: Data-set position of each row; two rows of the same sample form no pair.
        pairs: The pairs of the batch, where the caller has computed them already.
    Shape:
        features :math:`(M, d)`, target :math:`(M,)`; returns one value for each anchor, 0 for one without partner.
    Example:
        >>> phi = torch.tensor([[0.0], [2.0], [9.0]])
        >>> within_class_pull(phi, torch.tensor([0, 0, 1]), torch.tensor(4.0))
        tensor([0.6931, 0.6931, 0.0000])
    """
    options: dict[str, Any] = {"scale": scale, "pair": pair, "centred": centred, "anchors": anchors, "index": index}
    if weight is not None:
        return weighted_sum((1.0, weighted_pull(features, target, slack, weight, **options, pairs=pairs)))
    return _pull_of_each(features, target, slack, **options, pairs=pairs)


def weighted_pull(
    features: Tensor,
    target: Tensor,
    slack: Tensor | Array,
    weight: Tensor | Array | float,
    *,
    scale: float = 1.0,
    pair: PairMode = "sum",
    centred: float = 0.0,
    anchors: tuple[int, int] | None = None,
    index: Tensor | None = None,
    pairs: ClassPairs | None = None,
) -> Term:
    """The sum of :func:`within_class_pull` over the anchors, each times its weight, or all times one weight."""
    rows = features.shape[0]
    start, stop = anchors or (0, rows)
    if torch.compiler.is_compiling():
        weights = weight if isinstance(weight, Tensor) else features.new_full((stop - start,), weight)
        operation = torch.ops.classgap.pull
        value, unit = operation(features.detach(), target, slack, weights, index, scale, pair, centred, start, stop)
        return Term(value, features, lambda factor: unit * factor)
    pairs = _select(pairs or class_pairs(features.detach(), target), index, start, stop, rows)
    losses, slopes = _losses_and_slopes(pairs, slack, rows, scale, pair, centred)
    weight = as_array(weight) if isinstance(weight, Tensor) else weight

    def gradient(factor: float) -> Tensor:
        by_row = weight * factor
        if (start, stop) != (0, rows):  # the other rows are only partners
            by_row = _placed(by_row, losses, start, stop)
        return _gradient(features.detach(), pairs, slopes, by_row, scale)

    own = losses[start:stop]
    return Term(own.sum() * weight if isinstance(weight, float) else (own * weight).sum(), features, gradient)


def _select(pairs: ClassPairs, index: Tensor | None, start: int, stop: int, rows: int) -> ClassPairs:
    """The pairs of two different samples of which at least one is an anchor."""
    if index is None and (start, stop) == (0, rows):
        return pairs
    first, second = pairs.first, pairs.second
    wanted = ((first >= start) & (first < stop)) | ((second >= start) & (second < stop))
    if index is not None:
        position = as_array(index)
        wanted &= position[first] != position[second]
    member = library(first).concatenate((first[wanted], second[wanted]))
    return ClassPairs(pairs.present, member, pairs.squared_distance[wanted], None)


def _losses_and_slopes(
    pairs: ClassPairs, slack: Tensor | Array, rows: int, scale: float, pair: str, centred: float
) -> tuple[Array, Array]:
    """Loss of each row, and its slope in the excess of each pair: first members, then second members."""
    slack = as_array(slack) if isinstance(slack, Tensor) else slack
    excess = pairs.squared_distance * scale - (slack[pairs.first] if slack.ndim else slack)
    xp, member = library(excess), pairs.member
    excess = xp.concatenate((excess, excess))
    number: Array = xp.bincount(member, None, rows) if pair != "sum" or centred else 0
    if pair == "pairwise":
        partners = number[member]
        tail = xp.exp(-abs(excess))  # softplus and sigmoid without overflow
        softplus, sigmoid = xp.log1p(tail) + excess * (excess > 0), xp.where(excess > 0, 1.0, tail) / (1 + tail)
        return xp.bincount(member, softplus / partners, rows), sigmoid / partners
    if pair == "mean":
        excess = excess - xp.log(number[member])
    # The 1 inside the logarithm is a term exp(0): it keeps rows without partner at 0 and every row finite.
    peak = largest(excess, member, rows)
    terms = xp.exp(excess - peak[member])
    total = xp.exp(-peak) + xp.bincount(member, terms, rows)
    losses = peak + xp.log(total)
    if centred:
        losses = losses - centred * xp.log1p(number)
    return losses, terms / total[member]


def _gradient(features: Tensor, pairs: ClassPairs, slopes: Array, by_row: Array | float, scale: float) -> Tensor:
    """Gradient in the features of the losses of all rows, each times its entry of ``by_row``, or all times one number."""
    first, second = pairs.first, pairs.second
    half = len(first)
    if isinstance(by_row, float):
        by_excess = (slopes[:half] + slopes[half:]) * by_row
    else:
        by_excess = slopes[:half] * by_row[first] + slopes[half:] * by_row[second]
    return add_along_pairs(features, first, second, 2 * scale * by_excess, pairs.difference)


def _placed(values: Array | float, like: Array, start: int, stop: int) -> Array:
    """The values in their rows, 0 in all other rows."""
    result = library(like).zeros_like(like)
    result[start:stop] = values
    return result


@uncompiled
def _pull_of_each(
    features: Tensor,
    target: Tensor,
    slack: Tensor | Array,
    scale: float,
    pair: PairMode,
    centred: float,
    anchors: tuple[int, int] | None,
    index: Tensor | None,
    pairs: ClassPairs | None,
) -> Tensor:
    start, stop = anchors or (0, features.shape[0])
    pairs = _select(pairs or class_pairs(features.detach(), target), index, start, stop, features.shape[0])
    return cast("Tensor", _Pull.apply(features, slack, pairs, scale, pair, centred, start, stop))


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        slack: Array,
        pairs: ClassPairs,
        scale: float,
        pair: str,
        centred: float,
        start: int,
        stop: int,
    ) -> Tensor:
        losses, slopes = _losses_and_slopes(pairs, slack, features.shape[0], scale, pair, centred)
        ctx.save_for_backward(features)
        ctx.rest = (pairs._replace(difference=None), slopes, losses, scale, start, stop)
        return as_tensor(losses[start:stop], features)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (features,), (pairs, slopes, losses, scale, start, stop) = ctx.saved_tensors, ctx.rest
        by_row = _placed(as_array(grads[0].detach()), losses, start, stop)
        gradient = _gradient(features.detach(), pairs, slopes, by_row, scale)
        return not_differentiated_again(gradient, features), *[None] * 7


# The number of pairs depends on the labels, which torch.compile cannot trace: for it this is one opaque operation.
@torch.library.custom_op("classgap::pull", mutates_args=())
def _pull_op(
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    weight: Tensor,
    index: Tensor | None,
    scale: float,
    pair: str,
    centred: float,
    start: int,
    stop: int,
) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"scale": scale, "pair": pair, "centred": centred}
    term = weighted_pull(features, target, slack, weight, **options, anchors=(start, stop), index=index)
    return as_tensor(term.value, features), term.gradient(1.0)


@_pull_op.register_fake
def _(features: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return features.new_empty(()), torch.empty_like(features)
