"""The collectives that class statistics need. With one process each of them returns its input.

In a compiled step collectives run outside the compiled graphs: ranks may hold different numbers of rows, so one of them may be
compiling anew while another one is not, and what a compiler moves or leaves out on one rank would not match on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """A function that :func:`torch.compile` leaves as it is."""
    # torch.compiler.disable would load the compiler, which takes seconds.
    return cast("Function", torch._disable_dynamo(function))  # type: ignore[attr-defined]


def is_distributed() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another rank is gone."""
    texts = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    return isinstance(error, dist.DistError) or any(text in str(error) for text in texts)


def all_reduce_sum(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Element-wise sums over ranks. Reduce sums and counts, and divide afterwards."""
    return _reduced(*tensors) if is_distributed() else tensors


@uncompiled
def _reduced(*tensors: Tensor) -> tuple[Tensor, ...]:
    reduced = []
    for tensor in tensors:
        total = tensor.detach().clone()
        dist.all_reduce(total)
        reduced.append(total)
    return tuple(reduced)


def gather_rows(tensor: Tensor) -> Tensor:
    """Rows of all ranks, in rank order; ranks may hold different numbers of rows, also none. No gradient."""
    return _gathered(tensor) if is_distributed() else tensor


@uncompiled
def _gathered(tensor: Tensor) -> Tensor:
    return torch.cat(_gather(tensor.detach(), _row_counts(tensor)))


def gather_with_gradient(tensor: Tensor) -> tuple[Tensor, int]:
    """Rows of all ranks, and the position of the first row of this rank. Gradients flow back to the rank a row comes from."""
    return _gathered_with_gradient(tensor) if is_distributed() else (tensor, 0)


@uncompiled
def _gathered_with_gradient(tensor: Tensor) -> tuple[Tensor, int]:
    counts = _row_counts(tensor)
    gathered: Tensor = _GatherRows.apply(tensor, counts)
    return gathered, sum(counts[: dist.get_rank()])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        ctx.start = sum(counts[: dist.get_rank()])
        ctx.rows = tensor.shape[0]
        return torch.cat(_gather(tensor, counts))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (total,) = all_reduce_sum(grads[0].contiguous())
        return total[ctx.start : ctx.start + ctx.rows], None


def _row_counts(tensor: Tensor) -> list[int]:
    mine = torch.tensor([tensor.shape[0]], device=tensor.device)
    counts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, mine)
    return [int(c) for c in counts]


def _gather(tensor: Tensor, counts: list[int]) -> list[Tensor]:
    # Collectives need equal shapes, so rows are padded to those of the longest rank, and the padding is removed afterwards.
    longest = max(counts)
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    buffers = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(buffers, padded)
    return [buffer[:count] for buffer, count in zip(buffers, counts, strict=True)]


def rank_and_world() -> tuple[int, int]:
    """Number of this process and number of processes; ``(0, 1)`` without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)
