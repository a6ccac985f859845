r"""The within-class pair term shared by MR² and ELM: pull samples of a class together beyond a slack.

Pairs are formed inside each class only, so memory and time follow :math:`\sum_k b_k^2`, not :math:`N^2`. Distances come from
explicit differences (a Gram matrix cancels) in chunks of bounded size, and the gradient is written by hand: autograd would
keep several copies of the feature matrix.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

PairMode = Literal["sum", "mean", "pairwise"]
PAIR_MODES: tuple[PairMode, ...] = get_args(PairMode)
_CHUNK = 2**22  # numbers held at once while forming differences: 16 MB in float32


def within_class_pull(
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    *,
    temperature: float = 1.0,
    pair: PairMode = "sum",
    anchors: tuple[int, int] | None = None,
    index: Tensor | None = None,
) -> Tensor:
    r"""How far each sample is from others of its class, beyond a slack.

    .. math:: \ell_i = T \ln\Big[1 + \sum_{j \ne i,\, y_j = y_i} \exp\frac{\|\phi_i - \phi_j\|^2 - m_{y_i}}{T}\Big]

    Args:
        slack: :math:`m`, a scalar or one value for each row.
        temperature: :math:`T`; 1 in the papers.
        pair: ``"sum"`` over partners as in the papers; ``"mean"`` over partners, independent of the batch size; ``"pairwise"``
            averages one softplus for each partner, an unbiased estimate for every batch size.
        anchors: Range of rows that get a loss; the others only serve as partners (memory, other ranks). Default: all rows.
        index: Data-set position of each row; two rows of the same sample form no pair.
    Shape:
        features :math:`(M, d)`, target :math:`(M,)`; returns one value for each anchor, 0 for one without partner.
    Example:
        >>> phi = torch.tensor([[0.0], [2.0], [9.0]])
        >>> within_class_pull(phi, torch.tensor([0, 0, 1]), torch.tensor(4.0))
        tensor([0.6931, 0.6931, 0.0000])
    """
    start, stop = anchors or (0, features.shape[0])
    slack = slack.detach().to(features.dtype).expand(features.shape[0])
    if torch.compiler.is_compiling():
        losses = torch.ops.classgap.pull(features, target, slack, index, temperature, pair, start, stop)
        return cast("Tensor", losses)
    return cast("Tensor", _Pull.apply(features, target, slack, index, temperature, pair, start, stop))


class _Pairs(NamedTuple):
    """Unordered pairs of rows, and how the losses of their two members depend on the distance between them."""

    first: Tensor
    second: Tensor
    by_first: Tensor
    by_second: Tensor


def same_class_pairs(target: Tensor) -> tuple[Tensor, Tensor]:
    """Row indices of all unordered pairs with equal labels, in O(M log M + pairs).

    Example:
        >>> same_class_pairs(torch.tensor([7, 3, 7, 7]))
        (tensor([0, 0, 2]), tensor([2, 3, 3]))
    """
    labels, order = torch.sort(target, stable=True)
    run_start = torch.searchsorted(labels, labels)
    position = torch.arange(labels.shape[0], device=target.device)
    earlier = position - run_start  # partners before this row in its run
    second = torch.repeat_interleave(position, earlier)
    # Pairs of one row are consecutive, so counting from their first gives the position of the partner.
    shift = run_start - earlier.cumsum(0) + earlier
    first = torch.arange(second.shape[0], device=target.device) + shift[second]
    return order[first], order[second]


def _select_pairs(target: Tensor, index: Tensor | None, start: int, stop: int) -> tuple[Tensor, Tensor]:
    first, second = same_class_pairs(target)
    if index is not None:
        distinct = index[first] != index[second]
        first, second = first[distinct], second[distinct]
    if (start, stop) != (0, target.shape[0]):
        wanted = ((first >= start) & (first < stop)) | ((second >= start) & (second < stop))
        first, second = first[wanted], second[wanted]
    return first, second


def _squared_distances(features: Tensor, first: Tensor, second: Tensor) -> Tensor:
    step = max(1, _CHUNK // max(1, features.shape[1]))
    parts = [
        (features[first[at : at + step]] - features[second[at : at + step]]).square_().sum(1)
        for at in range(0, first.shape[0], step)
    ]
    return torch.cat(parts) if parts else features.new_zeros(0)


def _pull_forward(
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    index: Tensor | None,
    temperature: float,
    pair: str,
    start: int,
    stop: int,
) -> tuple[Tensor, _Pairs]:
    first, second = _select_pairs(target, index, start, stop)
    half, rows = first.shape[0], features.shape[0]
    excess = (_squared_distances(features, first, second) - slack[first]) / temperature
    member = torch.cat((first, second))
    excess = torch.cat((excess, excess))
    if pair != "sum":
        partners = torch.bincount(member, minlength=rows).to(features.dtype)[member]
    if pair == "pairwise":
        losses = features.new_zeros(rows).index_add_(0, member, F.softplus(excess) / partners)
        slope = torch.sigmoid(excess) / partners
    else:
        if pair == "mean":
            excess = excess - partners.log()
        # The 1 inside the logarithm is a term exp(0): it keeps rows without partner at 0 and every row finite.
        peak = features.new_zeros(rows).scatter_reduce_(0, member, excess, "amax")
        terms = torch.exp(excess - peak[member])
        total = torch.exp(-peak).index_add_(0, member, terms)
        losses = peak + total.log()
        slope = terms / total[member]
    return losses[start:stop] * temperature, _Pairs(first, second, slope[:half], slope[half:])


def _pull_backward(grad: Tensor, features: Tensor, pairs: _Pairs, start: int, stop: int) -> Tensor:
    per_row = grad
    if (start, stop) != (0, features.shape[0]):
        per_row = grad.new_zeros(features.shape[0])
        per_row[start:stop] = grad
    weight = 2 * (per_row[pairs.first] * pairs.by_first + per_row[pairs.second] * pairs.by_second)
    result = torch.zeros_like(features)
    step = max(1, _CHUNK // max(1, features.shape[1]))
    for at in range(0, weight.shape[0], step):
        first, second = pairs.first[at : at + step], pairs.second[at : at + step]
        pull = (features[first] - features[second]).mul_(weight[at : at + step, None])
        result.index_add_(0, first, pull).index_add_(0, second, pull, alpha=-1)
    return result


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        target: Tensor,
        slack: Tensor,
        index: Tensor | None,
        temperature: float,
        pair: str,
        start: int,
        stop: int,
    ) -> Tensor:
        losses, pairs = _pull_forward(features, target, slack, index, temperature, pair, start, stop)
        ctx.save_for_backward(features, *pairs)
        ctx.range = (start, stop)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, *pairs = ctx.saved_tensors
        return (_pull_backward(grad, features, _Pairs(*pairs), *ctx.range), *[None] * 7)


# The number of pairs depends on the labels, which torch.compile cannot follow: it sees two opaque operations instead.
@torch.library.custom_op("classgap::pull", mutates_args=())
def _pull_op(
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    index: Tensor | None,
    temperature: float,
    pair: str,
    start: int,
    stop: int,
) -> Tensor:
    return _pull_forward(features, target, slack, index, temperature, pair, start, stop)[0].clone()


@torch.library.custom_op("classgap::pull_backward", mutates_args=())
def _pull_backward_op(
    grad: Tensor,
    features: Tensor,
    target: Tensor,
    slack: Tensor,
    index: Tensor | None,
    temperature: float,
    pair: str,
    start: int,
    stop: int,
) -> Tensor:
    _, pairs = _pull_forward(features, target, slack, index, temperature, pair, start, stop)
    return _pull_backward(grad, features, pairs, start, stop)


@_pull_op.register_fake
def _(features: Tensor, *args: Any) -> Tensor:
    start, stop = args[-2:]
    return features.new_empty(stop - start)


@_pull_backward_op.register_fake
def _(grad: Tensor, features: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(features)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, target, slack, index, *ctx.options = inputs
    ctx.save_for_backward(features, target, slack, index)


def _op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradient = torch.ops.classgap.pull_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (gradient, *[None] * 7)


_pull_op.register_autograd(_op_backward, setup_context=_setup_context)
