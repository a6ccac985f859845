"""Runs that need other runs first: a teacher, or earlier stages. Each has its own folder and can be resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from classgap import registry
from classgap.checks import InputError
from classgap.data import TrainingData
from classgap.models import Ensemble
from classgap.training.average_config import AverageConfig
from classgap.training.build import Network, build_network, declared_loss
from classgap.training.checkpoint import read_checkpoint
from classgap.training.config import MethodConfig, PartConfig, PredictConfig, TrainConfig, read_run
from classgap.training.folder import NETWORK, has_results, write_results, write_run
from classgap.training.lock import lock_folder
from classgap.training.loop import Trainer
from classgap.training.outputs import ScoredNetwork
from classgap.training.progress import TrainProgress, Watcher
from classgap.training.stages.views import ViewsTrainer, take_network, views_run
from classgap.training.state import Trains


@dataclass(frozen=True)
class Stage:
    """One of the runs that a method of several stages consists of.

    Attributes:
        name: Name of its folder inside the folder of the run; empty for the last stage, which uses the folder of the run.
        trains: Which part of the network is trained.
        begin: Called before this stage is trained or resumed, with its trainer and the trainer of the stage before.
        trainer: Class of the trainer, or a function that makes one.
        needs_teacher: Whether a method that declares ``teacher`` gets one in this stage.
        members: Runs that this stage is made of, none of which depends on another.
        join: Called with the trainer of this stage, that of a member which has been trained, and the position of the member.
        build: Makes network and loss of this stage.
        alone: Configuration of a run that consists of this stage alone, where it is not ``config``.
    """

    name: str
    config: TrainConfig
    trains: Trains = "all"
    begin: Callable[[Trainer, Trainer], None] | None = None
    trainer: Callable[..., Trainer] = Trainer
    needs_teacher: bool = True
    members: tuple[Stage, ...] = ()
    join: Callable[[Trainer, Trainer, int], None] | None = None
    build: Callable[..., Network] = build_network
    alone: TrainConfig | None = None

    @property
    def plain(self) -> bool:
        """Whether it is what a run without stages is, the same for all runs that need it."""
        return self.trains == "all" and self.trainer is Trainer and self.build is build_network and not self.members


@dataclass(frozen=True)
class SharedRuns:
    """Runs that several others need, such as first stages, teachers and members of ensembles; the first that needs one trains it.

    Attributes:
        folder: Folder of these runs.
        find: Weights of network and loss of a finished run of this configuration, on data with this hash, which was trained for
            its own sake and has its log beside them; None if there is none.
        complete: Spells all parameters out, so that configurations that mean the same are equal.
    """

    folder: Path
    find: Callable[[TrainConfig, str], Path | None] = lambda config, split_hash: None
    complete: Callable[[TrainConfig], TrainConfig] = lambda config: config


class MultiStage:
    """Base of methods of several stages.

    A subclass makes the :class:`Stage` objects from the configuration of a run, in order; the last one is the run itself.
    """

    method: ClassVar[registry.Method]

    def stages(self, config: TrainConfig) -> tuple[Stage, ...]:
        """All stages; ``config`` is the configuration without ``stage=``."""
        raise NotImplementedError


def open_run(
    config: TrainConfig,
    data: TrainingData,
    fabric: Fabric,
    folder: Path,
    watch: Watcher | None = None,
    *,
    shared: SharedRuns | None = None,
) -> Trainer:
    """The trainer of a run; when it starts to train, the runs it needs are trained first, or resumed.

    Args:
        shared: First stages, teachers and members that several runs share; without it each run trains its own.
    """
    stages = stages_of(config)
    if config.teacher is not None and not any(map(_is_taught, stages)):
        raise InputError(
            f"teacher={config.teacher} is set, but method {config.method.name} does not learn from a teacher; leave it out"
        )
    return _open(stages, data, fabric, folder, watch, shared)


def shared_runs(config: TrainConfig) -> Iterator[TrainConfig]:
    """The plain runs that a run begins with, which others may need too: first stages, members of an ensemble, a teacher."""
    return _shared_runs(stages_of(config))


def _shared_runs(stages: tuple[Stage, ...]) -> Iterator[TrainConfig]:
    *earlier, last = stages
    parts = [tuple(earlier)] if earlier else []
    parts += [(member,) for member in last.members]
    parts += [(_teacher(last),)] if _is_taught(last) and last.config.teacher is None else []
    for part in parts:
        if _may_be_shared(part):
            yield part[0].config
        else:
            yield from _shared_runs(part)


def _may_be_shared(stages: tuple[Stage, ...]) -> bool:
    return len(stages) == 1 and stages[0].plain


def _teacher(stage: Stage) -> Stage:
    return Stage("teacher", teacher_run(stage.config))


def _is_taught(stage: Stage) -> bool:
    return stage.needs_teacher and "teacher" in declared_loss(stage.config).needs


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    """The runs that a configuration consists of; the last one is the run itself."""
    plain = dataclasses.replace(config, stage=PartConfig(), predict=PredictConfig())
    if config.stage.name == "none":
        stages: tuple[Stage, ...] = (Stage("", plain),)
    else:
        method: MultiStage = registry.get("stage", config.stage.name).build(**config.stage.params)
        stages = method.stages(plain)
    return _with_views(stages, config.predict) if config.predict.augment else stages


def _with_views(stages: tuple[Stage, ...], predict: PredictConfig) -> tuple[Stage, ...]:
    """The same stages, predicting over views of images at the end, and where a correction is fitted to predictions."""
    if len(stages) == 1 and stages[0].plain:
        plain = stages[0].config
        last = Stage("", views_run(plain), begin=take_network, trainer=ViewsTrainer, needs_teacher=False)
        stages = (Stage("stage1", plain), last)
    *earlier, last = stages
    return tuple(
        dataclasses.replace(stage, config=dataclasses.replace(stage.config, predict=predict))
        if stage is last or stage.trainer is not Trainer
        else stage
        for stage in (*earlier, last)
    )


def without_pretraining(config: TrainConfig, folder: Path) -> TrainConfig:
    """The configuration of a network whose weights are loaded from its run: nothing is downloaded or trained for it."""
    stored = folder / NETWORK
    name = f"hf:{stored}" if stored.is_dir() else config.model.name
    return dataclasses.replace(
        config, teacher=None, model=dataclasses.replace(config.model, name=name, pretrained=False)
    )


def plain_run(config: TrainConfig) -> TrainConfig:
    """``config`` with cross-entropy, every sample once per epoch, the linear head, the plain optimiser and no average."""
    return dataclasses.replace(
        config,
        method=MethodConfig(),
        model=dataclasses.replace(config.model, head="auto", head_params={}, head_scale=None),
        sampler=PartConfig(),
        wrapper=PartConfig(),
        average=AverageConfig(),
        predict=PredictConfig(),
        teacher=None,
    )


def learns_from_scores(config: TrainConfig) -> bool:
    """Whether the method has a teacher and uses only what classes are ranked by, so that several networks may be the teacher."""
    spec = declared_loss(config)
    return "teacher" in spec.needs and getattr(spec.cls, "learns_from", "features") == "scores"


def teacher_run(config: TrainConfig) -> TrainConfig:
    """The configuration of a teacher: the loss that the method asks for, everything else as in a plain run.

    If scores are all that counts, everything else is as in the run itself.
    """
    name, params = declared_loss(config).cls.teacher(config.method.params)  # type: ignore[attr-defined]
    plain = dataclasses.replace(config, teacher=None) if learns_from_scores(config) else plain_run(config)
    return dataclasses.replace(plain, method=MethodConfig(name, params))


def _open(
    stages: tuple[Stage, ...],
    data: TrainingData,
    fabric: Fabric,
    folder: Path,
    watch: Watcher | None,
    shared: SharedRuns | None,
) -> Trainer:
    *earlier, last = stages
    taught = _is_taught(last)
    teacher = _given_teacher(last.config, data) if taught and last.config.teacher is not None else None
    trainer = last.trainer(
        last.config, data, fabric, folder, watch, trains=last.trains, teacher=teacher, build=last.build
    )

    def train_first(trainer: Trainer, stages: tuple[Stage, ...]) -> Trainer:
        name = stages[-1].name

        def watch(position: TrainProgress) -> None:
            if trainer.watch is not None:
                trainer.watch(dataclasses.replace(position, stage=position.stage or name))

        if shared is None or not _may_be_shared(stages):
            return _run(_open(stages, data, fabric, trainer.folder / name, watch, shared), stages[-1].alone)
        if (found := shared.find(stages[0].config, data.split_hash)) is not None:
            return _finished(_open(stages, data, fabric, found.parent, watch, shared), found)
        place = shared.folder / _key(stages[0], data, shared.complete)
        lock = lock_folder(place, wait=-1)
        try:
            return _run(_open(stages, data, fabric, place, watch, shared))
        finally:
            lock.release()

    def before_training(trainer: Trainer) -> None:
        if earlier and last.begin is not None:
            last.begin(trainer, train_first(trainer, tuple(earlier)))
        for position, member in enumerate(last.members):
            assert last.join is not None
            last.join(trainer, train_first(trainer, (member,)), position)
        if taught and teacher is None:
            first = train_first(trainer, (_teacher(last),))
            scored = learns_from_scores(last.config)
            network: nn.Module = first.model.module
            trainer.bind_teacher(ScoredNetwork(network, first.criterion, first.head) if scored else network)

    trainer.before_training = before_training
    return trainer


def _key(stage: Stage, data: TrainingData, complete: Callable[[TrainConfig], TrainConfig]) -> str:
    """Stands for everything that the run of a single stage depends on."""
    about = [complete(stage.config).to_dict(), stage.trains, stage.needs_teacher, data.split_hash]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]


def _run(trainer: Trainer, config: TrainConfig | None = None) -> Trainer:
    """Resume it where it was interrupted, and train it to the end; ``config`` is written in place of its own."""
    trainer.resume()
    if trainer.fabric.is_global_zero:
        write_run(trainer, config)
    trainer.run()
    # A run may have been interrupted after its training and before its results were written.
    if not trainer.fabric.broadcast(has_results(trainer.folder)):
        write_results(trainer)
    return trainer


def _finished(trainer: Trainer, weights: Path) -> Trainer:
    """The trainer of a run that was finished for its own sake; nothing in its folder is changed."""
    saved = torch.load(weights, map_location="cpu", weights_only=True)
    trainer.model.load_state_dict(saved["model"])
    trainer.criterion.load_state_dict(saved["criterion"])
    trainer.epoch = trainer.config.epochs
    return trainer


def load_network(folder: Path, data: TrainingData) -> Network:
    """The trained network of the finished run in ``folder``, with what its loss has learned."""
    config = read_run(folder)
    assert config is not None
    last = stages_of(config)[-1]
    network = last.build(without_pretraining(last.config, folder), data)
    file = folder / "model.safetensors"
    try:
        network.model.load_state_dict(load_file(file))
    except (RuntimeError, SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} cannot be loaded into the network of run.json: {reason}") from error
    _load_criterion(folder, network)
    return network


def _load_criterion(folder: Path, network: Network) -> None:
    """What the loss has learned, for methods that rank classes with it; most have learned nothing."""
    learned = [name for name, _ in network.criterion.named_parameters()]
    if not learned:
        return
    path = folder / "checkpoint.pt"
    if not path.exists():
        raise InputError(
            f"method {network.criterion.name} learns parameters of its own, which are in {path}; restore this file"
        )
    saved = read_checkpoint(path)
    state = saved["criterion"]
    if "average" in saved:
        state |= {name: saved["average"]["values"].get(f"criterion.{name}", value) for name, value in state.items()}
    missing = set(network.criterion.load_state_dict(state, strict=False).missing_keys)
    if lost := sorted(missing & set(learned)):
        raise InputError(f"checkpoint {path} lacks {lost[0]} of method {network.criterion.name}")


def _given_teacher(config: TrainConfig, data: TrainingData) -> nn.Module:
    """The network of the finished run that ``config.teacher`` names."""
    folder = Path(config.teacher or "")
    if read_run(folder) is None or not has_results(folder):
        raise InputError(f"teacher={folder} must be the folder of a finished run, with run.json and model.safetensors")
    try:
        network = load_network(folder, data)
    except InputError as error:
        raise InputError(f"the teacher in {folder} does not fit these data: {error}") from error
    if isinstance(network.model, Ensemble) and learns_from_scores(config):
        return network.model
    if learns_from_scores(config):
        return ScoredNetwork(network.model, network.criterion, network.head)
    if network.experts:
        raise InputError(f"teacher={folder} holds several networks; a teacher must be a single one")
    return network.model
