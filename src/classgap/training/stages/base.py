"""Runs that build upon other runs: a teacher, or the stages before the last. Each has its own folder and can be resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch import nn

from classgap import registry
from classgap.checks import InputError
from classgap.data import TrainingData
from classgap.training.build import build_network, declared_loss
from classgap.training.config import MethodConfig, PartConfig, TrainConfig, read_run
from classgap.training.folder import has_results, write_results, write_run
from classgap.training.loop import Progress, Trainer, Trains, Watcher


@dataclass(frozen=True)
class Phase:
    """One of the runs a method with stages consists of.

    Attributes:
        name: Of its folder; that of the last one is the run's own.
        trains: Which part of the network learns.
        begin: Called with the trainer and that of the phase before, ere training starts or goes on.
        trainer: Makes the trainer.
    """

    name: str
    config: TrainConfig
    trains: Trains = "all"
    begin: Callable[[Trainer, Trainer], None] | None = None
    trainer: Callable[..., Trainer] = Trainer
    needs_teacher: bool = True


class Stages:
    """Base of methods of several stages.

    A subclass makes the :class:`Phase` objects out of a run's configuration, in order; the last one is the run itself.
    """

    method: ClassVar[registry.Method]

    def phases(self, config: TrainConfig) -> tuple[Phase, ...]:
        """All runs; ``config`` is without this stage."""
        raise NotImplementedError


def open_run(
    config: TrainConfig, data: TrainingData, fabric: Fabric, folder: Path, watch: Watcher | None = None
) -> Trainer:
    """The trainer of a run; the runs it builds upon are trained, or what is left of them, when it starts to train."""
    return _open(phases_of(config), data, fabric, folder, watch)


def phases_of(config: TrainConfig) -> tuple[Phase, ...]:
    """The runs that a configuration consists of; the last one is the run itself."""
    plain = dataclasses.replace(config, stage=PartConfig())
    if config.stage.name == "none":
        return (Phase("", plain),)
    stages: Stages = registry.get("stage", config.stage.name).build(**config.stage.params)
    return stages.phases(plain)


def plain_run(config: TrainConfig) -> TrainConfig:
    """``config`` with cross-entropy on all samples alike, the head that goes with it and the plain optimiser."""
    return dataclasses.replace(
        config,
        method=MethodConfig(),
        model=dataclasses.replace(config.model, head="auto", head_params={}, head_scale=None),
        sampler=PartConfig(),
        wrapper=PartConfig(),
        teacher=None,
    )


def _teacher_run(config: TrainConfig) -> TrainConfig:
    """What trains a teacher: the loss that the method wants it to have, everything else as plain as can be."""
    name, params = declared_loss(config).cls.teacher(config.method.params)  # type: ignore[attr-defined]
    return dataclasses.replace(plain_run(config), method=MethodConfig(name, params))


def _open(
    phases: tuple[Phase, ...], data: TrainingData, fabric: Fabric, folder: Path, watch: Watcher | None
) -> Trainer:
    *earlier, last = phases
    taught = last.needs_teacher and "teacher" in declared_loss(last.config).needs
    teacher = _given_teacher(last.config, data) if taught and last.config.teacher is not None else None
    trainer = last.trainer(last.config, data, fabric, folder, watch, trains=last.trains, teacher=teacher)

    def train_first(trainer: Trainer, phases: tuple[Phase, ...]) -> Trainer:
        name = phases[-1].name

        def watch(position: Progress) -> None:
            if trainer.watch is not None:
                trainer.watch(dataclasses.replace(position, phase=position.phase or name))

        before = _open(phases, data, fabric, trainer.folder / name, watch)
        return _run(before)

    def groundwork(trainer: Trainer) -> None:
        if earlier and last.begin is not None:
            last.begin(trainer, train_first(trainer, tuple(earlier)))
        if taught and teacher is None:
            trainer.bind_teacher(train_first(trainer, (Phase("teacher", _teacher_run(last.config)),)).model.module)

    trainer.groundwork = groundwork
    return trainer


def _run(trainer: Trainer) -> Trainer:
    """Train it to the end from wherever it stands."""
    trainer.resume()
    if trainer.fabric.is_global_zero:
        write_run(trainer)
    trainer.run()
    # Also of a run that ended its training and was cut off before it had written them.
    if not trainer.fabric.broadcast(has_results(trainer.folder)):
        write_results(trainer)
    return trainer


def _given_teacher(config: TrainConfig, data: TrainingData) -> nn.Module:
    """The network of the finished run that ``config.teacher`` names."""
    folder = Path(config.teacher or "")
    trained = read_run(folder)
    if trained is None or not has_results(folder):
        raise InputError(f"teacher={folder} must be the folder of a finished run, with run.json and model.safetensors")
    network = build_network(dataclasses.replace(trained, teacher=None), data)
    if network.experts:
        raise InputError(f"teacher={folder} holds several networks; a teacher must be a single one")
    try:
        network.model.load_state_dict(load_file(folder / "model.safetensors"))
    except RuntimeError as error:
        raise InputError(f"the teacher in {folder} does not fit these data: {error}") from error
    return network.model
