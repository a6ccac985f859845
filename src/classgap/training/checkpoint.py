"""Checkpoints, written so that a file is either complete or absent."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from classgap.batchstats import gather_rows
from classgap.checks import InputError
from classgap.writing import replace_file


def save_checkpoint(fabric: Fabric, path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (modules, optimisers and plain values) to ``path``; every process must call this."""
    temporary = path.with_name(f"{path.name}.tmp")
    fabric.save(temporary, state)
    if fabric.is_global_zero:
        replace_file(temporary, path)
    fabric.barrier()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint, on the CPU, without running any code stored in it."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise InputError(
            f"checkpoint {path} cannot be read ({reason}): it is damaged or half-written. Nothing was changed; put a whole "
            "copy in its place, or start over in another folder"
        ) from error
    missing = {"model", "optimizer", "criterion", "position", "rng"} - set(state)
    if missing:
        raise InputError(
            f"checkpoint {path} lacks {', '.join(sorted(missing))}: it is not a checkpoint of `classgap train`. "
            "Nothing was changed"
        )
    return state


def rng_state(fabric: Fabric) -> torch.Tensor:
    """Generator state of every process (W, bytes): dropout must continue where it stopped."""
    state = torch.get_rng_state()
    if fabric.device.type == "cuda":
        state = torch.cat([state, torch.cuda.get_rng_state(fabric.device)])
    return gather_rows(state[None].to(fabric.device)).cpu()


def restore_rng(fabric: Fabric, states: torch.Tensor) -> None:
    """Set this process's generators from :func:`rng_state`."""
    mine = states[fabric.global_rank].clone()
    size = len(torch.get_rng_state())
    torch.set_rng_state(mine[:size])
    if fabric.device.type == "cuda":
        torch.cuda.set_rng_state(mine[size:], fabric.device)
