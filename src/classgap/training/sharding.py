"""``--strategy fsdp``: every process holds a part of the weights, gradients and optimiser state (PyTorch's FSDP2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn

from classgap.batchstats.divided import divide_weights, load_divided
from classgap.checks import InputError
from classgap.training.config import TrainConfig

SMALLEST_UNIT = 1_000_000
"""Blocks of a network with at least so many weights are gathered and released one after the other; the rest is one unit."""


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all processes of all machines; a checkpoint is one file that any number of processes can read."""

    def __init__(self) -> None:
        super().__init__(_shard, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Divide the weights among all processes; Fabric's default would divide every layer within a machine."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    def module_to_device(self, module: nn.Module) -> None:
        """Losses and teachers are whole on every device; the network gets there in parts."""
        module.to(self.root_device)

    def load_checkpoint(
        self, path: Any, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load network, optimiser and loss. Fabric's own looks for the names of parameters, which a file may not have."""
        saved = torch.load(path, map_location="cpu", weights_only=True)
        load_divided(state["model"], state["optimizer"], saved["model"], saved["optimizer"])
        state["criterion"].load_state_dict(saved["criterion"])
        return {}


def is_sharded(fabric: Fabric) -> bool:
    """Whether a process holds only a part of the weights."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def set_up(fabric: Fabric, model: nn.Module, make_optimizer: Callable[[], Any]) -> tuple[Any, Any]:
    """Network and optimiser, ready for all processes; an optimiser of divided weights is made after they are divided."""
    if not is_sharded(fabric):
        both: tuple[Any, Any] = fabric.setup(model, make_optimizer())
        return both
    try:
        divided = fabric.setup_module(model, move_to_device=False)
    except ValueError as error:
        raise InputError(f"strategy fsdp cannot divide this network ({error}); use ddp") from error
    return divided, fabric.setup_optimizers(make_optimizer())


def check_origin(path: Path, optimizer: Any, fabric: Fabric) -> None:
    """Refuse a checkpoint of the other strategy, whose optimiser state has another form."""
    named = any(isinstance(key, str) for key in optimizer["state"])  # numbers without fsdp
    if optimizer["state"] and named != is_sharded(fabric):
        made, now = ("with", "without") if named else ("without", "with")
        raise InputError(
            f"checkpoint {path} was made {made} --strategy fsdp, but this run is {now} it; resume {made} it, or start over in "
            "another folder"
        )


def require_shardable(config: TrainConfig, model: nn.Module, criterion: nn.Module) -> None:
    """Refuse what needs the whole network in one process."""
    trained = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.weight is not None]
    fixed = config.model.freeze_norms or config.model.frozen
    reasons = (
        (config.stage.name != "none", f"stage={config.stage.name}"),
        (config.wrapper.name != "none", f"wrapper={config.wrapper.name}"),
        (config.average.name != "none", f"average={config.average.name}"),
        (config.model.wise < 1, "model.wise below 1"),
        (
            any(p.requires_grad for p in criterion.parameters()),
            f"method={config.method.name}, which has weights of its own",
        ),
        (bool(trained) and not fixed, "BatchNorm that is trained (model.freeze_norms=true keeps it as it is)"),
    )
    if reason := next((text for found, text in reasons if found), None):
        raise InputError(
            f"strategy fsdp divides the network among the devices and cannot be combined with {reason}; use ddp"
        )


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    divide_weights((*_units(model), model), mesh["data_parallel"])
    return model


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks of a network, e.g. the layers of a transformer."""
    containers = (nn.ModuleList, nn.Sequential)
    for child in model.children():
        size = sum(p.numel() for p in child.parameters())
        if (
            isinstance(model, containers)
            and not isinstance(child, (*containers, nn.ModuleDict))
            and size >= SMALLEST_UNIT
        ):
            yield child
        else:
            yield from _units(child)
