"""The processes of a run: how many, on how many machines, and what happens when one of them is lost."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import nn

from classgap.batchstats.collectives import is_lost_connection
from classgap.checks import InputError, shown, whole
from classgap.training.sharding import is_sharded

_GRACE_SECONDS = 10.0
_NEEDED = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
_FIRST_PROCESS = "CLASSGAP_FIRST_PROCESS"
_LOOK_SECONDS = 0.5
_MOST_DIGITS = 4


class LostProcessError(InputError):
    """Another process of the run has ended."""


def launched_size() -> tuple[int, int] | None:
    """Processes per machine and machines, if torchrun or SLURM has started this process as one of several."""
    if TorchElasticEnvironment.detect():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return local, int(os.environ["WORLD_SIZE"]) // local
    if SLURMEnvironment.detect() and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    return None


def resolve_size(devices: str | int | None, nodes: int | None) -> tuple[str | int, int]:
    """Devices per machine and machines: as asked for, else as the launcher has started, else one."""
    launched = launched_size()
    size = launched or (1, 1)
    nodes = size[1] if nodes is None else whole("nodes", nodes, low=1)
    if nodes > 1 and launched is None and (missing := [name for name in _NEEDED if name not in os.environ]):
        raise InputError(
            f"nodes={nodes} needs one start on every machine, by torchrun or srun, or with {', '.join(_NEEDED)} in the "
            f"environment (missing here: {', '.join(missing)}); see docs/many_devices.md"
        )
    if len(str(devices).strip()) > _MOST_DIGITS and str(devices).strip().isdecimal():
        raise InputError(f"devices must be at most {10**_MOST_DIGITS - 1:,}, got {shown(devices)}")
    return size[0] if devices is None else devices, nodes


@contextlib.contextmanager
def starting_together() -> Iterator[None]:
    """Within this block the processes of a run find each other; those that the first one has started end if it ends.

    They would wait half an hour for it otherwise. Launchers such as torchrun end the others themselves.
    """
    first, done = os.environ.get(_FIRST_PROCESS), threading.Event()
    if first is None:  # this is the first one; the others inherit its environment
        os.environ[_FIRST_PROCESS] = str(os.getpid())
    else:
        threading.Thread(target=_end_without, args=(int(first), done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        os.environ.pop(_FIRST_PROCESS, None)


def _end_without(first: int, done: threading.Event) -> None:
    while not done.wait(_LOOK_SECONDS):
        if os.getppid() != first:
            print("classgap: the first process of this run has ended; start the run again", file=sys.stderr, flush=True)
            os._exit(2)


@contextlib.contextmanager
def watching_processes(fabric: Fabric, folder: Any) -> Iterator[None]:
    """Within this block the loss of another process is a sentence, not the stack trace of a network library."""
    sentence = (
        f"another process of this run has ended (killed, out of memory, or an error of its own above); continue from the last "
        f"checkpoint with the same command and --resume, or: classgap train --resume --out {folder} "
        f"{size_options(fabric.world_size)}{' --strategy fsdp' if is_sharded(fabric) else ''}"
    )
    _soften_observer(lambda: print(f"classgap: {sentence}", flush=True))
    try:
        yield
    except RuntimeError as error:
        if fabric.world_size > 1 and not isinstance(error, InputError) and is_lost_connection(error):
            raise LostProcessError(sentence) from error
        raise


def size_options(processes: int) -> str:
    """The option that gives this number of processes."""
    return f"--devices {processes}"


def _soften_observer(announce: Callable[[], None]) -> None:
    """Fabric kills the first process as soon as it sees that another one has failed; let that one report it first."""
    for thread in threading.enumerate():
        kill = getattr(thread, "_terminate_all", None)
        if thread.name == "child-process-observer" and kill is not None and not hasattr(thread, "softened"):

            def kill_later(kill: Callable[[], None] = kill) -> None:
                time.sleep(_GRACE_SECONDS)  # a process that waits for the other one in vain gets here
                announce()
                kill()

            thread._terminate_all, thread.softened = kill_later, True  # type: ignore[attr-defined]


def per_process_part(model: nn.Module, accumulate: int) -> str | None:
    """Why the result of a run depends on its number of processes, besides the random numbers drawn in them."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return "BatchNorm computes its statistics in each process"
    if accumulate > 1:
        return "optim.accumulate cuts the share of each process into pieces"
    return None
