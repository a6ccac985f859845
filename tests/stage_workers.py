"""What runs in two gloo processes: runs that build upon other runs, whole and cut off in the middle."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from classgap.training import TrainConfig, train
from classgap.training.loop import Trainer
from waiting import LOOPBACK

# 180 samples in batches of 24: the last one, of 12, is large enough for two processes.
BASE = ["data.profile=exponential", "data.per_class=42", "data.imbalance=8", "epochs=2", "batch=24", "optim.lr=0.05"]
BASE += ["model=mlp-16", "checkpoint_steps=3"]
CASES = {
    "crt": ["stage=crt", "data.augment=crop", "stage.passes=2"],
    "lws": ["stage=lws"],
    "tau_norm": ["stage=tau_norm"],
    "marc": ["stage=marc", "method=dbm", "stage.ridge=0.1", "stage.steps=none", "stage.normalize=batch"],
    "disalign": ["stage=disalign"],
    "gap_dial": ["stage=gap_dial", "stage.strength=2", "stage.ridge=1", "method=logit_adjusted"],
    "refit": [
        "stage=gap_dial",
        "stage.refit=true",
        "stage.strength=2",
        "stage.ridge=1",
        "data.profile=balanced",
        "data.imbalance=1",
    ],
    "jtt": ["stage=jtt", "stage.first=2"],
    "linear_probe": ["stage=linear_probe", "stage.epochs=2", "method=supcon", "method.ce_weight=0"],
    "three_stage": ["stage=three_stage", "method=dro_lt"],
    "teacher": ["method=gml"],
    "teacher_then_crt": ["method=gml", "stage=crt"],
    "ema": ["average=ema", "average.horizon=0.3"],
    "swa_crt": ["average=swa", "average.start=0.3", "stage=crt"],
    "views": ["predict.augment=flip"],
    "bcl": ["method=bcl"],
    "bcl_cosine": ["method=bcl", "method.base=dbm", 'method.base_params={"variant": "bs"}'],
    "causal": ["model.head=causal"],
    "cosine": ["method=mr2", "method.p=3", "model.head=cosine", "stage=marc"],
}
# After how many checkpoints each attempt is cut off: in the middle of an epoch of one stage, then of another.
CUTS = {
    "refit": (3, 7),
    "jtt": (3, 2),
    "linear_probe": (1,),
    "three_stage": (5, 1),
    "teacher_then_crt": (3, 3),
    "cosine": (4,),
    "bcl": (2,),
    "ema": (4,),
    "causal": (2,),
}


class CutOff(Exception):
    """The power fails."""


def run(name: str, folder: Path, **options: Any) -> None:
    train(TrainConfig().override([*BASE, *CASES[name]]), folder, accelerator="cpu", **options)


def run_cut_off(name: str, folder: Path, **options: Any) -> None:
    """The same, cut off again and again."""
    for checkpoints in CUTS[name]:
        with pytest.MonkeyPatch.context() as patch:
            left, save = [checkpoints], Trainer.save

            def save_some(trainer: Trainer, left: list[int] = left, save: Any = save) -> None:
                save(trainer)
                left[0] -= 1
                if not left[0]:
                    raise CutOff

            patch.setattr(Trainer, "save", save_some)
            with pytest.raises(CutOff):
                run(name, folder, resume=True, **options)
    run(name, folder, resume=True, **options)


def note_writes(folder: str) -> list[str]:
    """A list that grows by every file this process opens for writing, or puts in place, below ``folder``."""
    written: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.mkdir")
        changes |= event == "open" and isinstance(arguments[1], str) and not set(arguments[1]).isdisjoint("wax+")
        if changes and str(arguments[0]).startswith(folder):
            written.append(str(arguments[0]))

    sys.addaudithook(hook)
    return written


def worker(rank: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=LOOPBACK, TORCHELASTIC_RUN_ID="test"
    )
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    written = note_writes(folder)
    options = {"devices": "2", "strategy": "ddp"}
    for name in CASES:
        run(name, Path(folder) / name, **options)
    for name in CUTS:
        run_cut_off(name, Path(folder) / f"{name}-cut", **options)
    if rank == 1:
        Path(folder, "written.json").write_text(json.dumps(list(written)))
