"""Writing state, and reading state that the same step has written."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def write_state(state: Tensor, value: Tensor) -> None:
    """Write ``value`` into the buffer ``state``, except its entries that are not finite.

    One batch with an overflow, which a gradient scaler skips, must not remain in the state for the rest of the training.
    """
    state.copy_(torch.where(torch.isfinite(value), value, state))


def read_state(value: Tensor) -> Tensor:
    """State as it is now, for use in a loss; not differentiated.

    A loss that writes a buffer and then computes with it must read it through this. In a compiled step the backward pass
    may otherwise recompute the value from the buffer, which by then has been overwritten, and give a silently wrong gradient
    (pytorch/pytorch#197039). What comes out of an opaque operation is saved instead.
    """
    if torch.compiler.is_compiling():
        return cast("Tensor", torch.ops.classgap.read_state(value))
    return value.detach()


@torch.library.custom_op("classgap::read_state", mutates_args=())
def _read_state_op(value: Tensor) -> Tensor:
    return value.clone()


@_read_state_op.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)
