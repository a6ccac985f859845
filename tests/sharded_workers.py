"""What runs in two gloo processes with divided weights: a whole run, and one that stops and continues."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from classgap.checks import InputError
from classgap.training import TrainConfig, sharding, train
from classgap.training.loop import Trainer
from waiting import LOOPBACK

# 152 samples in batches of 30: the last batch has 2, of which the second process gets none.
SETTINGS = ["epochs=2", "data.per_class=17", "batch=30", "model=mlp-16-8", "optim.lr=0.05", "optim=adamw"]
SETTINGS += ["method=mr2", "method.lam=0.1", "optim.clip=1", "checkpoint_steps=2"]
CONFIG = TrainConfig().override(SETTINGS)


class Stopped(Exception):
    """Stands for whatever ends a run."""


REFUSED = r"was made without --strategy fsdp, but this run is with it; resume without it"
REFUSALS = {
    "norms": (["model=resnet20", "data.augment=none"], "BatchNorm"),
    "wise": (["model.wise=0.5"], "model.wise below 1"),
    "sam": (["wrapper=sam"], "wrapper=sam"),
    "average": (["average=ema"], "average=ema"),
    "loss": (["method=supcon"], "method=supcon, which has weights of its own"),
}


def worker(rank: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    sharding.SMALLEST_UNIT = 100
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=LOOPBACK, TORCHELASTIC_RUN_ID="test"
    )
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    train(CONFIG, Path(folder) / "whole", accelerator="cpu", strategy="fsdp")
    with pytest.raises(InputError, match=REFUSED):
        train(CONFIG, Path(folder) / "single", accelerator="cpu", strategy="fsdp", resume=True)
    for name, (settings, reason) in REFUSALS.items():
        with pytest.raises(InputError, match=f"strategy fsdp divides the network.*cannot be combined with {reason}"):
            train(CONFIG.override(settings), Path(folder) / name, accelerator="cpu", strategy="fsdp")
    save = Trainer.save

    def save_and_stop(trainer: Trainer) -> None:
        save(trainer)
        if trainer.step == 4:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "save", save_and_stop)
        with pytest.raises(Stopped):
            train(CONFIG, Path(folder) / "began", accelerator="cpu", strategy="fsdp")
    train(CONFIG, Path(folder) / "began", accelerator="cpu", strategy="fsdp", resume=True)
