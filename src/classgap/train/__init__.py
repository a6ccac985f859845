"""Training: configuration, the one loop (Lightning Fabric), checkpoints. Torch is loaded when a run starts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classgap.train.config import (
    DataConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    PartConfig,
    ScheduleConfig,
    TrainConfig,
)

if TYPE_CHECKING:
    from classgap.train.loop import Progress, Trainer
    from classgap.train.outputs import Predictions
    from classgap.train.run import TrainResult, fit

_LAZY = {
    "Predictions": "classgap.train.outputs",
    "Progress": "classgap.train.loop",
    "TrainResult": "classgap.train.run",
    "Trainer": "classgap.train.loop",
    "fit": "classgap.train.run",
}
__all__ = [
    "DataConfig",
    "MethodConfig",
    "ModelConfig",
    "OptimConfig",
    "PartConfig",
    "Predictions",
    "Progress",
    "ScheduleConfig",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "fit",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'classgap.train' has no attribute {name!r}")
