"""Training: configuration, the one loop (Lightning Fabric), checkpoints. Torch is loaded when a run starts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classgap.training.config import (
    DataConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    PartConfig,
    ScheduleConfig,
    TrainConfig,
)

if TYPE_CHECKING:
    from classgap.training.loop import Trainer, TrainProgress
    from classgap.training.outputs import SplitOutputs
    from classgap.training.run import TrainResult, train

_LAZY = {
    "SplitOutputs": "classgap.training.outputs",
    "TrainProgress": "classgap.training.loop",
    "TrainResult": "classgap.training.run",
    "Trainer": "classgap.training.loop",
    "train": "classgap.training.run",
}
__all__ = [
    "DataConfig",
    "MethodConfig",
    "ModelConfig",
    "OptimConfig",
    "PartConfig",
    "ScheduleConfig",
    "SplitOutputs",
    "TrainConfig",
    "TrainProgress",
    "TrainResult",
    "Trainer",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'classgap.training' has no attribute {name!r}")
