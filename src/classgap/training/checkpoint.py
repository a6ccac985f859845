"""Checkpoints, written so that a file is either complete or absent."""

from __future__ import annotations

import contextlib
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from classgap.batchstats import gather_rows
from classgap.checks import InputError, whole
from classgap.data import TrainingData
from classgap.writing import naming, replace_file

PARTS = ("model", "optimizer", "criterion", "scaler", "position", "meter", "rng", "split_hash", "version")
"""What a checkpoint holds."""


class FileBesideTarget(TorchCheckpointIO):
    """Writes a checkpoint where it is asked to, and nothing anywhere else; Fabric's own passes through ``$TMPDIR``."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        try:
            with Path(path).open("wb") as handle:
                torch.save(checkpoint, handle)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch hides the full disk behind an error of its archive
                raise error.__context__ from None
            raise


def save_checkpoint(fabric: Fabric, path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (modules, optimisers and plain values) to ``path``; every process must call this."""
    temporary = path.with_name(f"{path.name}.tmp")
    with naming(path):
        try:
            fabric.save(temporary, state)
            if fabric.is_global_zero:
                replace_file(temporary, path)
        finally:
            if fabric.is_global_zero:
                temporary.unlink(missing_ok=True)
    fabric.barrier()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint, on the CPU, without running any code stored in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself reads no checksum: a flipped bit would become a weight
        if damaged is not None:
            raise ValueError(f"the checksum of its part {damaged} is wrong")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, NotImplementedError, *_OF_FILES) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise InputError(
            f"checkpoint {path} cannot be read ({reason}): it is damaged or half-written. Nothing was changed; put a whole "
            "copy in its place, or start over in another folder"
        ) from error
    if missing := [part for part in PARTS if not isinstance(state, dict) or part not in state]:
        raise InputError(
            f"checkpoint {path} lacks {', '.join(missing)}: it is not a checkpoint of `classgap train`, or of an earlier "
            "version. Nothing was changed"
        )
    return state


_OF_FILES = (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error)


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn whatever a part of a checkpoint that does not fit raises into a sentence."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"checkpoint {path} does not fit this run ({type(error).__name__}: {reason[:300]}); it comes from another network, "
            "loss or version. Put the right one in its place, or start over in another folder"
        ) from error


def check_made_with(path: Path, saved: dict[str, Any], data: TrainingData, teacher: str | None) -> None:
    """Refuse a checkpoint that was made on other data, or with another teacher."""
    if saved["split_hash"] != data.split_hash:
        raise InputError(
            f"checkpoint {path} was made on other data (split {saved['split_hash']}, now {data.split_hash}); restore the data "
            "file, or start over in another folder"
        )
    if saved.get("content", data.content) != data.content:  # an earlier version did not store it
        raise InputError(
            f"checkpoint {path} was made on other data: samples or class names have changed since; restore the data file, or "
            "start over in another folder"
        )
    if saved.get("teacher", teacher) != teacher:
        raise InputError(
            f"checkpoint {path} was made with another teacher: the weights in its folder have changed since; restore them, or "
            "start over in another folder"
        )


def weights_mark(module: torch.nn.Module) -> str:
    """Changes when a weight does."""
    mark = 0
    for tensor in module.state_dict().values():
        mark = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(), mark)
    return f"{mark:08x}"


def check_optimizer(optimizer: Any) -> None:
    """State of every weight of the same kind, in the shape of the weight; optimisers load any."""
    kinds = {tuple((name, type(value)) for name, value in sorted(state.items())) for state in optimizer.state.values()}
    if len(kinds) > 1:
        raise ValueError("the optimiser has a different state for some of the weights")
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and (value.dim() or name != "step") and value.shape != weight.shape:
                raise ValueError(f"{name} of a weight of shape {tuple(weight.shape)} has shape {tuple(value.shape)}")


_KERNELS = ("fused", "foreach", "capturable")


def check_groups(optimizer: Any, before: list[dict[str, Any]]) -> None:
    """Settings of an optimiser as they were ``before`` a checkpoint was loaded, except the learning rate.

    The choice of kernels belongs to the device, not to the run, and stays.
    """
    for group, wanted in zip(optimizer.param_groups, before, strict=True):
        group.update({name: wanted[name] for name in _KERNELS if name in wanted})
        for name, value in wanted.items():
            # Where weights are divided between processes, torch returns tuples as lists.
            if isinstance(value, tuple) and isinstance(group.get(name), list):
                group[name] = tuple(group[name])
            if name not in ("params", "lr") and group.get(name) != value:
                raise ValueError(f"{name} of the optimiser is {str(group.get(name))[:40]}, where the run has {value}")


def check_types(part: str, own: dict[str, Any], saved: Any) -> None:
    """Tensors of the types that the run has; modules load any."""
    for name, tensor in own.items():
        if tensor.dtype != saved[name].dtype:
            raise ValueError(f"{name} of the {part} is of type {saved[name].dtype}, where the run has {tensor.dtype}")


def check_position(saved: Any, epochs: int) -> tuple[int, int]:
    """Epoch and step of a checkpoint."""
    epoch, step = (whole(f"its {name}", saved[name], low=0) for name in ("epoch", "step"))
    if epoch > epochs:
        raise ValueError(f"its position is step {step} of epoch {epoch}")
    return epoch, step


def rng_state(fabric: Fabric) -> torch.Tensor:
    """Generator state of every process (W, bytes): dropout must continue where it stopped."""
    state = torch.get_rng_state()
    if fabric.device.type == "cuda":
        state = torch.cat([state, torch.cuda.get_rng_state(fabric.device)])
    return gather_rows(state[None].to(fabric.device)).cpu()


def rng_unused(fabric: Fabric, states: torch.Tensor, seed_of: Callable[[int], int]) -> bool:
    """Whether no process has drawn a random number since it was seeded with ``seed_of(rank)``."""
    kinds = ["cpu", "cuda"] if fabric.device.type == "cuda" else ["cpu"]
    for rank, state in enumerate(states):
        fresh = [torch.Generator(kind).manual_seed(seed_of(rank)).get_state() for kind in kinds]
        if not torch.equal(torch.cat(fresh), state):
            return False
    return True


def check_rng(states: torch.Tensor) -> None:
    """States of generators of the right size; torch reads any."""
    if states.dtype is not torch.uint8 or states.shape[1] < len(torch.get_rng_state()):
        raise ValueError(f"the states of random generators have shape {tuple(states.shape)}")


def restore_rng(fabric: Fabric, states: torch.Tensor) -> None:
    """Set this process's generators from :func:`rng_state`."""
    mine = states[fabric.global_rank].clone()
    size = len(torch.get_rng_state())
    torch.set_rng_state(mine[:size])
    if fabric.device.type == "cuda":
        torch.cuda.set_rng_state(mine[size:], fabric.device)
