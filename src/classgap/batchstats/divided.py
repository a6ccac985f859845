"""Weights of which every process holds a part: PyTorch's FSDP2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from classgap.checks import InputError


def divide_weights(units: Iterable[nn.Module], mesh: Any) -> None:
    """Divide the weights of each of these modules among the processes; a module after those that are parts of it."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise InputError("strategy fsdp needs torch 2.6 or newer; install it, or use ddp") from error
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)  # checkpoints find divided weights


def is_divided(tensor: Tensor) -> bool:
    """Whether a process holds a part of the tensor only."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all processes, each of which must call this."""
    gather = getattr(tensor, "full_tensor", None)
    found: Tensor = tensor if gather is None else gather()
    return found


def load_divided(model: nn.Module, optimizer: Any, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Load whole weights and the whole state of the optimiser, of which every process keeps its part."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
    from torch.distributed.tensor import distribute_tensor

    own: dict[str, Any] = model.state_dict()
    parts = {
        name: distribute_tensor(weights[name], mine.device_mesh, mine.placements) if is_divided(mine) else weights[name]
        for name, mine in own.items()
    }
    model.load_state_dict(parts)
    set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(full_state_dict=True))
