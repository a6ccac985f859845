"""Training: configuration, the one loop (Lightning Fabric), checkpoints. Torch is loaded when a run starts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classgap.training.average_config import AverageConfig
from classgap.training.config import (
    DataConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    PartConfig,
    PredictConfig,
    ScheduleConfig,
    TrainConfig,
)

if TYPE_CHECKING:
    from classgap.training.exporting import Exported, export
    from classgap.training.extracting import FeaturesFile, features
    from classgap.training.loop import Trainer
    from classgap.training.outputs import SplitOutputs
    from classgap.training.predictor import Predictor, load_run, predict
    from classgap.training.probe_report import ProbeReport
    from classgap.training.probing import probe
    from classgap.training.progress import TrainProgress
    from classgap.training.run import TrainResult, train

_LAZY = {
    "Exported": "classgap.training.exporting",
    "FeaturesFile": "classgap.training.extracting",
    "ProbeReport": "classgap.training.probe_report",
    "SplitOutputs": "classgap.training.outputs",
    "Predictor": "classgap.training.predictor",
    "TrainProgress": "classgap.training.progress",
    "TrainResult": "classgap.training.run",
    "Trainer": "classgap.training.loop",
    "export": "classgap.training.exporting",
    "features": "classgap.training.extracting",
    "load_run": "classgap.training.predictor",
    "predict": "classgap.training.predictor",
    "probe": "classgap.training.probing",
    "train": "classgap.training.run",
}
__all__ = [
    "AverageConfig",
    "DataConfig",
    "Exported",
    "FeaturesFile",
    "MethodConfig",
    "ModelConfig",
    "OptimConfig",
    "PartConfig",
    "PredictConfig",
    "Predictor",
    "ProbeReport",
    "ScheduleConfig",
    "SplitOutputs",
    "TrainConfig",
    "TrainProgress",
    "TrainResult",
    "Trainer",
    "export",
    "features",
    "load_run",
    "predict",
    "probe",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'classgap.training' has no attribute {name!r}")
