"""Short runs with stages, and what they leave in their folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from classgap.training import TrainConfig, train

SMALL = ["data.per_class=13", "epochs=3", "batch=24", "optim.lr=0.05", "model=mlp-16"]
LONG_TAIL = ["data.profile=exponential", "data.per_class=40", "data.imbalance=8"]
# BatchNorm, and three steps an epoch.
CONVOLUTIONS = ["model=resnet20", "data.per_class=3", "batch=10", "epochs=2", "checkpoint_steps=1"]


def run(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def criterion_state(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "checkpoint.pt", weights_only=True)["criterion"]
    return state
