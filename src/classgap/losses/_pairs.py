r"""The within-class pair term shared by MR² and ELM: pull samples of a class together beyond a slack.

Pairs are formed inside each class only, so memory and time follow :math:`\sum_k b_k^2`, not :math:`N^2`. The gradient is
written by hand: autograd would keep several copies of the feature matrix.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from classgap.stats import ClassPairs, add_along_pairs, class_pairs

PairMode = Literal["sum", "mean", "pairwise"]
PAIR_MODES: tuple[PairMode, ...] = get_args(PairMode)


def within_class_pull(
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    *,
    scale: Tensor | None = None,
    pair: PairMode = "sum",
    anchors: tuple[int, int] | None = None,
    index: Tensor | None = None,
    pairs: ClassPairs | None = None,
) -> Tensor:
    r"""How far each sample is from others of its class, beyond a slack.

    .. math:: \ell_i = \ln\Big[1 + \sum_{j \ne i,\, y_j = y_i} \exp\big(c\,\|\phi_i - \phi_j\|^2 - m_i\big)\Big]

    Args:
        slack: :math:`m`, a scalar or one value for each row (the same within a class); not differentiated.
        scale: :math:`c`, a scalar, differentiated; 1 in the papers.
        pair: ``"sum"`` over partners as in the papers; ``"mean"`` over partners, independent of the batch size; ``"pairwise"``
            averages one softplus for each partner, an unbiased estimate for every batch size.
        anchors: Range of rows that get a loss; the others only serve as partners (memory, other ranks). Default: all rows.
        index: Data-set position of each row; two rows of the same sample form no pair.
        pairs: The batch's pairs where they are at hand already.
    Shape:
        features :math:`(M, d)`, target :math:`(M,)`; returns one value for each anchor, 0 for one without partner.
    Example:
        >>> phi = torch.tensor([[0.0], [2.0], [9.0]])
        >>> within_class_pull(phi, torch.tensor([0, 0, 1]), torch.tensor(4.0))
        tensor([0.6931, 0.6931, 0.0000])
    """
    start, stop = anchors or (0, features.shape[0])
    slack = slack.detach().to(features.dtype)
    if torch.compiler.is_compiling():
        scale = features.new_ones(()) if scale is None else scale
        losses = torch.ops.classgap.pull(features, scale, target, slack, index, pair, start, stop)
        return cast("Tensor", losses)
    if pairs is None:
        pairs = class_pairs(features.detach(), target)
    kept = _select(pairs, index, start, stop, features.shape[0])
    return cast("Tensor", _Pull.apply(features, scale, slack, *kept, pair, start, stop))


def _select(pairs: ClassPairs, index: Tensor | None, start: int, stop: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """First and second row and squared distance of the pairs that count: of distinct samples, with an anchor among them."""
    kept = (pairs.first, pairs.second, pairs.squared_distance)
    if index is not None:
        distinct = index[kept[0]] != index[kept[1]]
        kept = (kept[0][distinct], kept[1][distinct], kept[2][distinct])
    if (start, stop) != (0, rows):
        first, second, _ = kept
        wanted = ((first >= start) & (first < stop)) | ((second >= start) & (second < stop))
        kept = (first[wanted], second[wanted], kept[2][wanted])
    return kept


def _losses_and_slopes(excess: Tensor, first: Tensor, second: Tensor, rows: int, pair: str) -> tuple[Tensor, Tensor]:
    """Loss of each row, and its slope in the excess of each pair: first members, then second members."""
    member = torch.cat((first, second))
    excess = torch.cat((excess, excess))
    if pair != "sum":
        partners = torch.bincount(member, minlength=rows).to(excess.dtype)[member]
    if pair == "pairwise":
        losses = excess.new_zeros(rows).index_add_(0, member, F.softplus(excess) / partners)
        return losses, torch.sigmoid(excess) / partners
    if pair == "mean":
        excess = excess - partners.log()
    # The 1 inside the logarithm is a term exp(0): it keeps rows without partner at 0 and every row finite.
    peak = excess.new_zeros(rows).scatter_reduce_(0, member, excess, "amax")
    terms = torch.exp(excess.sub_(peak.index_select(0, member)))
    total = torch.exp(-peak).index_add_(0, member, terms)
    return peak.add_(total.log()), terms.div_(total.index_select(0, member))


def _pull_forward(
    scale: Tensor | None, slack: Tensor, first: Tensor, second: Tensor, distance: Tensor, rows: int, pair: str
) -> tuple[Tensor, Tensor]:
    excess = (distance if scale is None else distance * scale) - (slack[first] if slack.dim() else slack)
    return _losses_and_slopes(excess, first, second, rows, pair)


def _pull_backward(
    grad: Tensor,
    features: Tensor,
    scale: Tensor | None,
    first: Tensor,
    second: Tensor,
    distance: Tensor,
    slopes: Tensor,
    start: int,
) -> tuple[Tensor, Tensor | None]:
    per_row = grad
    if grad.shape[0] != features.shape[0]:
        per_row = F.pad(grad, (start, features.shape[0] - start - grad.shape[0]))
    half = first.shape[0]
    weight = slopes.mul(per_row.index_select(0, torch.cat((first, second)))).view(2, half).sum(0)
    if scale is None:
        return add_along_pairs(features, first, second, 2 * weight), None
    return add_along_pairs(features, first, second, 2 * scale * weight), torch.dot(weight, distance)


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        scale: Tensor | None,
        slack: Tensor,
        first: Tensor,
        second: Tensor,
        distance: Tensor,
        pair: str,
        start: int,
        stop: int,
    ) -> Tensor:
        losses, slopes = _pull_forward(scale, slack, first, second, distance, features.shape[0], pair)
        ctx.save_for_backward(features, scale, first, second, distance, slopes)
        ctx.start = start
        return losses if losses.shape[0] == stop - start else losses[start:stop]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, scale, first, second, distance, slopes = ctx.saved_tensors
        gradients = _pull_backward(grad, features, scale, first, second, distance, slopes, ctx.start)
        return (*gradients, *[None] * 7)


# The number of pairs depends on the labels, which torch.compile cannot follow: it sees two opaque operations instead.
@torch.library.custom_op("classgap::pull", mutates_args=())
def _pull_op(
    features: Tensor,
    scale: Tensor,
    target: Tensor,
    slack: Tensor,
    index: Tensor | None,
    pair: str,
    start: int,
    stop: int,
) -> Tensor:
    rows = features.shape[0]
    kept = _select(class_pairs(features, target), index, start, stop, rows)
    return _pull_forward(scale, slack, *kept, rows, pair)[0][start:stop].clone()


@torch.library.custom_op("classgap::pull_backward", mutates_args=())
def _pull_backward_op(
    grad: Tensor,
    features: Tensor,
    scale: Tensor,
    target: Tensor,
    slack: Tensor,
    index: Tensor | None,
    pair: str,
    start: int,
    stop: int,
) -> tuple[Tensor, Tensor]:
    rows = features.shape[0]
    kept = _select(class_pairs(features, target), index, start, stop, rows)
    _, slopes = _pull_forward(scale, slack, *kept, rows, pair)
    by_features, by_scale = _pull_backward(grad, features, scale, *kept, slopes, start)
    assert by_scale is not None
    return by_features, by_scale


@_pull_op.register_fake
def _(features: Tensor, *args: Any) -> Tensor:
    start, stop = args[-2:]
    return features.new_empty(stop - start)


@_pull_backward_op.register_fake
def _(grad: Tensor, features: Tensor, scale: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(features), torch.empty_like(scale)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.pair, ctx.start, ctx.stop = inputs
    ctx.save_for_backward(*tensors)


def _op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.classgap.pull_backward(grad, *ctx.saved_tensors, ctx.pair, ctx.start, ctx.stop)
    return (*gradients, *[None] * 6)


_pull_op.register_autograd(_op_backward, setup_context=_setup_context)
