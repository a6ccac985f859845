"""The other files in the folder of a run, besides log and checkpoint: configuration and results."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch
from safetensors.torch import save

import classgap
from classgap.models import save_description
from classgap.training.config import TrainConfig
from classgap.training.loop import Trainer
from classgap.training.outputs import SplitOutputs
from classgap.writing import write

NETWORK = "network"


def write_run(trainer: Trainer, config: TrainConfig | None = None) -> None:
    """Write the configuration into the folder of a run; ``config`` is that of all its stages, if it has several."""
    folder = trainer.folder
    about = {
        "config": (config or trainer.config).to_dict(),
        "chosen": trainer.chosen,
        "split_hash": trainer.data.split_hash,
        "data": trainer.data.about(),
        "versions": {"classgap": classgap.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    library, _, name = trainer.config.model.name.partition(":")
    if library == "hf":
        save_description(name, folder / NETWORK)  # the run does not depend on a folder or repository elsewhere
    write(folder / "run.json", json.dumps(about, indent=2) + "\n")


def has_results(folder: Path) -> bool:
    """Whether the run in ``folder`` has been evaluated and saved."""
    return (folder / "model.safetensors").exists()


def write_results(trainer: Trainer) -> tuple[SplitOutputs, SplitOutputs | None]:
    """Evaluate and save the finished run; returns the predictions on test and validation set. Every process calls this."""
    data = trainer.data
    test = trainer.predictions(data.test)
    val = None if data.val is None else trainer.predictions(data.val)
    weights = trainer.weights()  # in every process: each may hold a part
    if trainer.fabric.is_global_zero:
        for name, predictions in (("test", test), ("val", val)):
            if predictions is not None:
                predictions.save(trainer.folder / f"predictions_{name}.npz")
        # The weights are written last: their file shows that the results are complete, see has_results.
        write(trainer.folder / "model.safetensors", save(weights))
    trainer.fabric.barrier()
    return test, val
