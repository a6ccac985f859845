r"""The within-class pair term shared by MR² and ELM: pull samples of a class together beyond a slack.

Pairs are formed inside each class only, so memory and time follow :math:`\sum_k b_k^2`, not :math:`N^2`. The gradient is
written by hand: autograd would keep several copies of the feature matrix.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from classgap.batchstats import ClassPairs, add_along_pairs, class_pairs
from classgap.batchstats.backend import Array, as_array, as_tensor, largest, library

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
    start, stop = anchors or (0, features.shape[0])
    if torch.compiler.is_compiling():
        losses = torch.ops.classgap.pull(features, target, slack, weight, index, scale, pair, centred, start, stop)
        return cast("Tensor", losses)
    if pairs is None:
        pairs = class_pairs(features.detach(), target)
    pairs = _select(pairs, index, start, stop, features.shape[0])
    return cast("Tensor", _Pull.apply(features, slack, weight, pairs, scale, pair, centred, start, stop))


def _select(pairs: ClassPairs, index: Tensor | None, start: int, stop: int, rows: int) -> ClassPairs:
    """The pairs of two different samples of which at least one is an anchor."""
    if index is None and (start, stop) == (0, rows):
        return pairs
    first, second = pairs.first, pairs.second
    wanted = ((first >= start) & (first < stop)) | ((second >= start) & (second < stop))
    if index is not None:
        position = as_array(index)
        wanted &= position[first] != position[second]
    return ClassPairs(pairs.present, first[wanted], second[wanted], pairs.squared_distance[wanted], None)


def _losses_and_slopes(
    excess: Array, first: Array, second: Array, rows: int, pair: str, centred: float
) -> tuple[Array, Array]:
    """Loss of each row, and its slope in the excess of each pair: first members, then second members."""
    xp = library(excess)
    member = xp.concatenate((first, second))
    excess = xp.concatenate((excess, excess))
    number = xp.bincount(member, None, rows) if pair != "sum" or centred else None
    partners = None if number is None else number[member]
    if pair == "pairwise":
        tail = xp.exp(-abs(excess))  # softplus and sigmoid without overflow
        softplus, sigmoid = xp.log1p(tail) + excess * (excess > 0), xp.where(excess > 0, 1.0, tail) / (1 + tail)
        return xp.bincount(member, softplus / partners, rows), sigmoid / partners
    if pair == "mean":
        excess = excess - xp.log(partners)
    # The 1 inside the logarithm is a term exp(0): it keeps rows without partner at 0 and every row finite.
    peak = largest(excess, member, rows)
    terms = xp.exp(excess - peak[member])
    total = xp.exp(-peak) + xp.bincount(member, terms, rows)
    losses = peak + xp.log(total)
    if centred:
        losses = losses - centred * xp.log1p(number)
    return losses, terms / total[member]


def _pull_forward(
    slack: Array,
    weight: Array | None,
    pairs: ClassPairs,
    features: Tensor,
    scale: float,
    pair: str,
    centred: float,
    start: int,
    stop: int,
) -> tuple[Tensor, Array]:
    """Losses of the anchors, or their weighted sum; and slopes."""
    slack, weight = _arrays(slack, weight)
    excess = pairs.squared_distance * scale - (slack[pairs.first] if slack.ndim else slack)
    losses, slopes = _losses_and_slopes(excess, pairs.first, pairs.second, features.shape[0], pair, centred)
    losses = losses[start:stop]
    return as_tensor(losses if weight is None else (losses * weight).sum(), features), slopes


def _pull_backward(
    grad: Tensor, features: Tensor, weight: Array | None, pairs: ClassPairs, slopes: Array, scale: float, start: int
) -> Tensor:
    first, second, half = pairs.first, pairs.second, len(pairs.first)
    weight, per_row = _arrays(weight, grad)
    if weight is not None:
        per_row = per_row * weight
    if len(per_row) != features.shape[0]:  # the other rows are only partners
        anchors, per_row = per_row, library(per_row).zeros_like(as_array(features[:, 0]))
        per_row[start : start + len(anchors)] = anchors
    by_excess = slopes[:half] * per_row[first] + slopes[half:] * per_row[second]
    return add_along_pairs(features, first, second, 2 * scale * by_excess, pairs.difference)


def _arrays(*values: Any) -> list[Any]:
    return [as_array(value) if isinstance(value, Tensor) else value for value in values]


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        slack: Array,
        weight: Array | None,
        pairs: ClassPairs,
        scale: float,
        pair: str,
        centred: float,
        start: int,
        stop: int,
    ) -> Tensor:
        losses, slopes = _pull_forward(slack, weight, pairs, features, scale, pair, centred, start, stop)
        ctx.save_for_backward(features)
        ctx.rest = (weight, pairs, slopes, scale, start)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _pull_backward(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 8


# The number of pairs depends on the labels, which torch.compile cannot trace: for it these are two opaque operations.
@torch.library.custom_op("classgap::pull", mutates_args=())
def _pull_op(
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    weight: Tensor | None,
    index: Tensor | None,
    scale: float,
    pair: str,
    centred: float,
    start: int,
    stop: int,
) -> Tensor:
    pairs = _select(class_pairs(features, target), index, start, stop, features.shape[0])
    return _pull_forward(slack, weight, pairs, features, scale, pair, centred, start, stop)[0]


@torch.library.custom_op("classgap::pull_backward", mutates_args=())
def _pull_backward_op(
    grad: Tensor,
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    weight: Tensor | None,
    index: Tensor | None,
    scale: float,
    pair: str,
    start: int,
    stop: int,
) -> Tensor:
    pairs = _select(class_pairs(features, target), index, start, stop, features.shape[0])
    _, slopes = _pull_forward(slack, weight, pairs, features, scale, pair, 0.0, start, stop)
    return _pull_backward(grad, features, weight, pairs, slopes, scale, start)


@_pull_op.register_fake
def _(features: Tensor, target: Tensor, slack: Tensor, weight: Tensor | None, *args: Any) -> Tensor:
    start, stop = args[-2:]
    return features.new_empty(stop - start if weight is None else ())


@_pull_backward_op.register_fake
def _(grad: Tensor, features: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(features)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale, ctx.pair, _, ctx.start, ctx.stop = inputs
    ctx.save_for_backward(*tensors)


def _op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradient = torch.ops.classgap.pull_backward(grad, *ctx.saved_tensors, ctx.scale, ctx.pair, ctx.start, ctx.stop)
    return (gradient, *[None] * 9)


_pull_op.register_autograd(_op_backward, setup_context=_setup_context)
