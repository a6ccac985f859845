"""Test-time augmentation, ``predict.augment=flip,crop``: the network of a finished run with predictions over several views."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from classgap.training.average_config import AverageConfig
from classgap.training.config import ScheduleConfig, TrainConfig
from classgap.training.epoch import read_log
from classgap.training.loop import Trainer


def views_run(config: TrainConfig) -> TrainConfig:
    """The configuration of a run that trains nothing and predicts over views."""
    return dataclasses.replace(
        config,
        epochs=1,
        schedule=ScheduleConfig("constant"),
        average=AverageConfig(),
        model=dataclasses.replace(config.model, wise=1.0),  # the network of the run before has all of this
    )


class ViewsTrainer(Trainer):
    """Takes the network of the run before as it is; its predictions are means over the views of an image."""

    _record: dict[str, Any]

    def take(self, before: Trainer) -> None:
        """Use this network and what its loss has learned; its last log entry becomes that of this run."""
        self.model.load_state_dict(before.model.state_dict())
        mine, theirs = self.criterion.state_dict(), before.criterion.state_dict()
        same = {
            name: theirs[name] for name, value in mine.items() if name in theirs and theirs[name].shape == value.shape
        }
        self.criterion.load_state_dict({**mine, **same})
        self._record = read_log(before.log)[-1]

    def run(self) -> None:
        """Measure the validation set, once."""
        if self.finished:
            return
        self._begin()
        started = time.perf_counter()
        record = {name: self._record[name] for name in ("train", "spread")}
        record["spread"] = {"per_class": np.array(record["spread"]["per_class"], dtype=float)}
        self.end_epoch({"epoch": 0, "lr": 0.0, **record}, started)


def take_network(trainer: Trainer, before: Trainer) -> None:
    """Begin of the stage."""
    assert isinstance(trainer, ViewsTrainer)
    trainer.take(before)
