"""From a configuration to a folder with a trained classifier, its log and its predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from lightning_fabric import Fabric

from classgap.checks import InputError, one_of
from classgap.data import MEMORY_MB, Encode, TrainingData, default_workers, load_data
from classgap.models import text_encoder
from classgap.training.build import for_network
from classgap.training.checkpoint import FileBesideTarget
from classgap.training.config import DataConfig, TrainConfig, read_run
from classgap.training.epoch import read_log
from classgap.training.folder import write_results, write_run
from classgap.training.lock import lock_folder, release_unused
from classgap.training.loop import Trainer
from classgap.training.outputs import SplitOutputs
from classgap.training.precision import require_precision
from classgap.training.processes import agree, resolve_size, starting_together, watching_processes, without_advice
from classgap.training.progress import Watcher
from classgap.training.recipes import asked_for
from classgap.training.sharding import ShardedStrategy
from classgap.training.stages.base import SharedRuns, open_run


@dataclass(frozen=True, eq=False)
class TrainResult:
    """A finished run.

    Attributes:
        folder: ``run.json`` (configuration), ``log.jsonl`` (one line per epoch), ``checkpoint.pt`` (to resume),
            ``model.safetensors`` (weights), ``predictions_test.npz`` and ``predictions_val.npz`` (for ``classgap audit``); runs
            that this one needs, such as a teacher or a first stage, are in folders of the same kind inside.
        val: ``None`` where no validation split was asked for.
        history: The records of the log.
    """

    config: TrainConfig
    folder: Path
    test: SplitOutputs
    val: SplitOutputs | None
    history: list[dict[str, Any]]
    split_hash: str


def train(
    config: TrainConfig | str | Path | None = None,
    folder: Path | str | None = None,
    *,
    settings: Sequence[str] = (),
    resume: bool = False,
    devices: str | int | None = None,
    nodes: int | None = None,
    accelerator: str = "auto",
    strategy: str = "auto",
    workers: int | None = None,
    memory: int = MEMORY_MB,
    data: tuple[Any, Any] | None = None,
    watch: Watcher | None = None,
) -> TrainResult:
    """Train, evaluate once on the test set, and write everything to ``folder``.

    Args:
        config: What to train: a configuration, or the path of a recipe; without it a small network on scikit-learn's digits.
        folder: Folder of the run; by default ``runs/`` and a name made of the configuration.
        settings: Changes of the configuration, as ``["data=cifar10", "method=mr2", "epochs=200"]``.
        resume: Continue a run that was interrupted; the result is bit for bit that of an uninterrupted run. Starts from the
            beginning where there is nothing to continue.
        devices: How many on each machine, ``"auto"`` for all; as Lightning Fabric understands it, like ``accelerator``. By
            default one, or as many as torchrun or SLURM has started.
        nodes: Machines; by default one, or as many as torchrun or SLURM has started.
        strategy: ``"ddp"``, ``"fsdp"``, or ``"auto"``, which is ``"ddp"`` for several devices.
        workers: Processes that decode image files, for each device; by default one per processor core, at most 8. Results do not
            depend on it.
        memory: Megabytes that decoded image files may take in memory; larger sets are decoded during training.
        data: Two torch data sets, for training and for testing, in place of what ``config.data.name`` names.
        watch: Called with a :class:`~classgap.training.TrainProgress` after every step and epoch.
    """
    made = asked_for(config, settings)
    if data is not None:
        if isinstance(data, (str, Path)):
            raise InputError(f"data must be a pair of torch data sets, got a text; write settings=['data={data}']")
        made = dataclasses.replace(made, data=dataclasses.replace(made.data, name=f"dataset:{type(data[0]).__name__}"))
    place = Path("runs") / made.slug if folder is None else Path(folder)
    trainer = start(
        made,
        place,
        resume=resume,
        devices=devices,
        nodes=nodes,
        accelerator=accelerator,
        strategy=strategy,
        workers=workers,
        memory=memory,
        data=data,
        watch=watch,
    )
    try:
        with watching_processes(trainer.fabric, place):
            trainer.run()
            test, val = write_results(trainer)
    finally:
        trainer.release()
    return TrainResult(made, place, test, val, read_log(trainer.log), trainer.data.split_hash)


def start(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    devices: str | int | None = None,
    nodes: int | None = None,
    accelerator: str = "auto",
    strategy: str = "auto",
    workers: int | None = None,
    memory: int = MEMORY_MB,
    data: tuple[Any, Any] | None = None,
    watch: Watcher | None = None,
    shared: SharedRuns | None = None,
) -> Trainer:
    """A run that is ready to train or to be resumed: the first half of :func:`train`, with the same arguments.

    Args:
        shared: First stages, teachers and members that several runs share, see :func:`classgap.training.stages.base.open_run`.
    """
    fabric = _fabric(config, *resolve_size(devices, nodes), accelerator, strategy)
    if fabric.device.type == "cpu":
        require_precision(config.precision)
    with starting_together(fabric):
        fabric.launch()
    if workers is None and data is None:
        workers = default_workers(fabric.world_size)
    sets, lock, problem = None, None, None
    with watching_processes(fabric, folder, claimed=False):
        try:
            encode = text_encoder(config.model.name, config.model.tokens)
            sets = for_network(
                config.model, open_data(config.data, data, workers=workers, memory=memory, encode=encode)
            )
            if fabric.is_global_zero:  # only the first process checks the folder, since it also changes it
                lock = _claim(folder, config, resume)
        except InputError as error:
            problem = error
        agree(fabric, problem)
    assert sets is not None
    try:
        with watching_processes(fabric, folder):
            trainer = open_run(config, sets, fabric, folder, watch, shared=shared)
            trainer.lock = lock
            if resume:
                trainer.resume()
            if fabric.is_global_zero:
                write_run(trainer, config)
    except BaseException:
        if lock is not None:
            release_unused(lock, folder)
        raise
    return trainer


def open_data(
    config: DataConfig,
    data: tuple[Any, Any] | None = None,
    *,
    workers: int | None = None,
    memory: int = MEMORY_MB,
    encode: Encode | None = None,
) -> TrainingData:
    """The sets that a configuration names, or the torch data sets ``data`` under its settings; ``encode`` is for texts."""
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "name"}
    return load_data(config.name if data is None else data, **settings, workers=workers, memory=memory, encode=encode)


def _fabric(config: TrainConfig, devices: str | int, nodes: int, accelerator: str, strategy: str) -> Fabric:
    one_of("strategy", strategy, ("auto", "ddp", "fsdp"))
    chosen: Any = ShardedStrategy() if strategy == "fsdp" else strategy
    try:
        with without_advice():
            return Fabric(
                accelerator=accelerator,
                devices=devices,
                num_nodes=nodes,
                strategy=chosen,
                precision=config.precision,
                plugins=None if strategy == "fsdp" else FileBesideTarget(),  # FSDP writes checkpoints by itself
            )
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"these devices, strategy and precision cannot be combined: {error}") from error


def _claim(folder: Path, config: TrainConfig, resume: bool) -> BaseFileLock:
    """The lock of a folder that this run may start in."""
    if problem := _problem_with(folder, config, resume):
        raise InputError(problem)
    lock = lock_folder(folder)
    # Again, since what the process did that had the lock is only now complete.
    if problem := _problem_with(folder, config, resume):
        lock.release()
        raise InputError(problem)
    return lock


def _problem_with(folder: Path, config: TrainConfig, resume: bool) -> str | None:
    """Why a run must not start in ``folder``."""
    try:
        present = read_run(folder)
    except InputError as error:
        return str(error)
    if folder.exists() and not folder.is_dir():
        return f"{folder} is a file; choose a folder with --out"
    if present is None or not _has_begun(folder):
        return None
    if not resume:
        return f"{folder} already holds a run; continue it with --resume, or choose another folder with --out"
    if changed := present.differences(config):
        return (
            f"the run in {folder} has other settings ({'; '.join(changed)}); resume it with its own settings, or use another "
            "--out"
        )
    return None


def _has_begun(folder: Path) -> bool:
    """Whether anything was trained there. A run whose settings could not work, or that was killed at once, blocks no other."""
    files = ("checkpoint.pt", "log.jsonl", "model.safetensors")
    return any(next(folder.rglob(name), None) is not None for name in files)
