"""What runs in three gloo processes: whole runs, and one that a single process began."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from classgap.training import TrainConfig, train
from waiting import LOOPBACK

# 152 samples in batches of 30: shares of 10, and a last batch of 2, of which the first process gets both.
BASE = ["epochs=2", "data.per_class=17", "batch=30", "model=mlp-8", "precision=64-true", "optim.lr=0.05"]
CASES = {
    "mr2": ["method=mr2", "method.lam=0.1"],
    "elm": [
        "method=elm",
        "data.profile=exponential",
        "data.imbalance=2",
        "data.per_class=19",
        "sampler=class_balanced",
    ],
    "supcon": ["method=supcon", "data.augment=crop", "wrapper=sam"],
    "lff": ["method=lff"],
}


def config(name: str) -> TrainConfig:
    return TrainConfig().override([*BASE, *CASES[name]])


def worker(rank: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=LOOPBACK, TORCHELASTIC_RUN_ID="test"
    )
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE="3", LOCAL_WORLD_SIZE="3")
    for name in CASES:
        train(config(name), Path(folder) / name, accelerator="cpu", strategy="ddp")
    train(config("mr2"), Path(folder) / "began", accelerator="cpu", strategy="ddp", resume=True)
