"""The processes of a run: how many, on how many machines, and what happens when one of them is lost."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from torch import nn

from classgap.batchstats.collectives import is_lost_connection
from classgap.checks import InputError, number, shown, whole
from classgap.training.sharding import is_sharded
from classgap.writing import mark_once

_GRACE_SECONDS = 10.0
_NEEDED = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
_FIRST_PROCESS = "CLASSGAP_FIRST_PROCESS"
_LOOK_SECONDS = 0.5
_START_SECONDS = 600.0
_START_VARIABLE = "CLASSGAP_START_SECONDS"
_EARLY = "another process of this run has ended before training began; start the run again with the same command and --resume"
_watched: list[Callable[[], LostProcessError]] = []
_MOST_DIGITS = 4


class LostProcessError(InputError):
    """Another process of the run has ended.

    Attributes:
        folder: Folder of the run, once this run has it; every process that is left gets this error, and one of them tells it.
    """

    def __init__(self, sentence: str, folder: Path | None) -> None:
        super().__init__(sentence)
        self.folder = folder

    def is_first(self) -> bool:
        """Whether no other process on this machine has told it; as long as the run has no folder, every process tells it."""
        return self.folder is None or mark_once(self.folder, f"lost-{os.environ.get('NODE_RANK', '0')}")


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Within this block Fabric does not advise to use ``srun`` just because the machine has that command."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The `srun` command is available")
        yield


def launched_size() -> tuple[int, int] | None:
    """Processes per machine and machines, if torchrun or SLURM has started this process as one of several."""
    if TorchElasticEnvironment.detect():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return local, int(os.environ["WORLD_SIZE"]) // local
    with without_advice():
        tasks = int(os.environ.get("SLURM_NTASKS", "1")) if SLURMEnvironment.detect() else 1
    if tasks == 1:
        return None
    if "SLURM_STEP_ID" not in os.environ:  # the other processes would be waited for in vain
        raise InputError(
            f"this SLURM job has {tasks} tasks, but the command was started once; write srun before it, or ask for one task"
        )
    nodes = int(os.environ.get("SLURM_NNODES", "1"))
    return tasks // nodes, nodes


def resolve_size(devices: str | int | None, nodes: int | None) -> tuple[str | int, int]:
    """Devices per machine and machines: as the launcher has started, else as asked for, else one."""
    if launched := launched_size():
        asked = (launched[0] if devices in (None, "auto") else devices, launched[1] if nodes is None else nodes)
        if tuple(map(str, asked)) != tuple(map(str, launched)):
            raise InputError(
                f"the launcher has started {launched[0]} processes on each of {launched[1]} machines, but devices={asked[0]} and "
                f"nodes={asked[1]} are asked for; leave --devices and --nodes out"
            )
        return launched
    nodes = 1 if nodes is None else whole("nodes", nodes, low=1)
    if nodes > 1 and (missing := [name for name in _NEEDED if name not in os.environ]):
        raise InputError(
            f"nodes={nodes} needs one start on every machine, by torchrun or srun, or with {', '.join(_NEEDED)} in the "
            f"environment (missing here: {', '.join(missing)}); see docs/many_devices.md"
        )
    if len(str(devices).strip()) > _MOST_DIGITS and str(devices).strip().isdecimal():
        raise InputError(f"devices must be at most {10**_MOST_DIGITS - 1:,}, got {shown(devices)}")
    return 1 if devices is None else devices, nodes


@contextlib.contextmanager
def starting_together(fabric: Fabric | None = None) -> Iterator[None]:
    """Within this block the processes of a run find each other. If one of them ends, so do the others, with a sentence.

    They would wait half an hour for it otherwise. Launchers such as torchrun end the others themselves; under SLURM, and of
    several machines, the others notice by the time that has passed (``CLASSGAP_START_SECONDS``).
    """
    limit, first, done = _start_limit(), os.environ.get(_FIRST_PROCESS), threading.Event()
    if first is None:  # this is the first one; the others inherit its environment
        os.environ[_FIRST_PROCESS] = str(os.getpid())
        _ChildProcessObserver._terminate_all = _end_with_children  # type: ignore[assignment,method-assign]
        threading.Thread(target=_end_after, args=(limit, fabric, done), daemon=True).start()
    else:
        threading.Thread(target=_end_without, args=(int(first), done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        os.environ.pop(_FIRST_PROCESS, None)


def _start_limit() -> float:
    """Seconds that the processes of a run have to find each other."""
    text = os.environ.get(_START_VARIABLE, "")
    try:
        return number(_START_VARIABLE, float(text), low=0, open_low=True) if text else _START_SECONDS
    except ValueError as error:
        raise InputError(f"{_START_VARIABLE} must be a number of seconds above 0, got {shown(text)}") from error


def _end_after(seconds: float, fabric: Fabric | None, done: threading.Event) -> None:
    if done.wait(seconds):
        return
    for process in getattr(fabric and fabric.strategy.launcher, "procs", ()):
        process.kill()
    _end(
        LostProcessError(
            f"not all processes of this run have started within {seconds:g} seconds. Look for an error of one of them above, or "
            f"for a machine without a start, then use the same command with --resume. {_START_VARIABLE} changes this limit",
            None,
        )
    )


def _end_without(first: int, done: threading.Event) -> None:
    while not done.wait(_LOOK_SECONDS):
        if os.getppid() != first:
            _end(LostProcessError(_EARLY, None) if os.environ.get("LOCAL_RANK", "1") == "1" else None)


def _end_with_children(observer: _ChildProcessObserver) -> None:
    """What Fabric does in the first process when another one has failed; it would kill this one without a word.

    A process that trains notices the loss by itself. One that waits for the others does not.
    """
    time.sleep(_GRACE_SECONDS if _watched else 0)
    for process in observer._child_processes:
        process.kill()
    _end(_watched[-1]() if _watched else LostProcessError(_EARLY, None))


def _end(lost: LostProcessError | None) -> None:
    """End this process from another of its threads."""
    if lost is not None and lost.is_first():
        print(f"classgap: {lost}", file=sys.stderr, flush=True)
    os._exit(2)


@contextlib.contextmanager
def watching_processes(fabric: Fabric, folder: Path, *, claimed: bool = True) -> Iterator[None]:
    """Within this block the loss of another process is a sentence, not the stack trace of a network library.

    Args:
        claimed: Whether the folder belongs to this run already.
    """

    def lost() -> LostProcessError:
        if not claimed:
            return LostProcessError(_EARLY, None)
        return LostProcessError(
            f"another process of this run has ended (killed, out of memory, or an error of its own above); continue from the "
            f"last checkpoint with the same command and --resume, or: classgap train --resume --out {folder} "
            f"{size_options(fabric.world_size)}{' --strategy fsdp' if is_sharded(fabric) else ''}",
            folder,
        )

    _watched.append(lost)
    try:
        yield
    except RuntimeError as error:
        if fabric.world_size > 1 and not isinstance(error, InputError) and is_lost_connection(error):
            raise lost() from error
        raise
    finally:
        _watched.pop()


class SharedProblem(InputError):
    """A problem that the first process of the run tells."""


def agree(fabric: Fabric, problem: InputError | None) -> None:
    """Raise the problem of this process, or else that of the first one."""
    first = fabric.broadcast(None if problem is None else str(problem))
    if first is not None and not fabric.is_global_zero and (problem is None or str(problem) == first):
        raise SharedProblem(first)
    if problem is not None:
        raise problem


def size_options(processes: int) -> str:
    """The option that gives this number of processes."""
    return f"--devices {processes}"


def per_process_part(model: nn.Module, accumulate: int) -> str | None:
    """Why the result of a run depends on its number of processes, besides the random numbers drawn in them."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return "BatchNorm computes its statistics in each process"
    if accumulate > 1:
        return "optim.accumulate cuts the share of each process into pieces"
    return None
