"""timm: a training task with MR² on real images, its checkpoint, and the same steps as a plain loop.

    python examples/integration_timm.py FOLDER     # with cifar10_500per.npz
    torchrun --nproc-per-node 2 examples/integration_timm.py FOLDER

timm's own script needs no change: ``python -m classgap.integrations.timm_train train.py DATA --loss classgap:mr2``.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path

import numpy as np
import timm
import torch
import torch.distributed as dist
from plain_loop import ACCUMULATE, LR, RANK, STEPS, WORLD, compare, plain_loop
from timm.optim import create_optimizer_v2
from torch import Tensor

from classgap.integrations.timm import ClassLossTask
from classgap.losses import MR2Loss

SIZE = 16  # samples of all processes in a batch


def images(folder: Path) -> tuple[Tensor, Tensor]:
    arrays = np.load(folder / "cifar10_500per.npz")
    order = np.random.default_rng(0).permutation(len(arrays["y_train"]))[: SIZE * STEPS * ACCUMULATE]
    x = torch.tensor(arrays["x_train"][order]).permute(0, 3, 1, 2) / 127.5 - 1
    return x, torch.tensor(arrays["y_train"][order].astype(np.int64))


def main(folder: Path) -> None:
    x, y = images(folder)
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=10, img_size=32)
    criterion = MR2Loss(num_classes=10)
    by_hand = copy.deepcopy(model), copy.deepcopy(criterion)
    plain_loop(*by_hand, zip(x.split(SIZE), y.split(SIZE), strict=True))

    if WORLD > 1:
        dist.init_process_group("gloo")
    task = ClassLossTask(model, criterion, device=torch.device("cpu"))
    optimizer = create_optimizer_v2(task.parameter_groups(0.0), opt="momentum", lr=LR, momentum=0.0)
    if WORLD > 1:
        task.prepare_distributed()
    task.train()
    for number, (inputs, target) in enumerate(zip(x.split(SIZE), y.split(SIZE), strict=True), 1):
        last = number % ACCUMULATE == 0
        with contextlib.nullcontext() if last else task.no_sync():
            (task(inputs[RANK::WORLD], target[RANK::WORLD])["loss"] / ACCUMULATE).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    compare("timm", (model, criterion), by_hand, (x, y))
    if RANK == 0:
        saved = task.get_checkpoint_state()
        print("a checkpoint holds", ", ".join(saved), "with the state of", saved["task_state"]["settings"]["loss"])
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
