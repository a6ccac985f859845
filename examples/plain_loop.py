"""What the scripts ``integration_*.py`` compare their tool with: the same steps in a loop without any tool."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classgap.heads import FeatureTap
from classgap.losses import ClassLoss

ACCUMULATE, STEPS, LR = 4, 3, 0.05
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
PROCESSES = "1 process" if WORLD == 1 else f"{WORLD} processes"
Batch = tuple[Any, Tensor]  # a tensor or keyword arguments for the model, and labels


def plain_loop(model: nn.Module, criterion: ClassLoss, batches: Iterable[Batch]) -> None:
    """SGD; each step has the mean gradient of ``ACCUMULATE`` batches.

    Call it before the tool connects the processes: afterwards the loss would combine the statistics of all of them.
    """
    assert not torch.distributed.is_initialized()
    tap = FeatureTap(model).train()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=LR)
    for number, (inputs, target) in enumerate(batches, 1):
        logits, features = call(tap, inputs)
        (criterion(logits, target, features=features) / ACCUMULATE).backward()
        if number % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()


def call(tap: FeatureTap, inputs: Any) -> tuple[Tensor, Tensor]:
    logits, features = tap(**inputs) if isinstance(inputs, dict) else tap(inputs)
    return logits, features


def compare(
    tool: str, trained: tuple[nn.Module, ClassLoss], by_hand: tuple[nn.Module, ClassLoss], batch: Batch
) -> None:
    """Print, on the first process, how far the tool is from the plain loop; more than 1e-6 is an error."""
    losses = []
    for model, criterion in (trained, by_hand):
        with torch.no_grad():
            logits, features = call(FeatureTap(model).eval(), batch[0])
            losses.append(criterion.eval()(logits, batch[1], features=features).item())
    weights = max(
        (p - q).abs().max().item() for p, q in zip(trained[0].parameters(), by_hand[0].parameters(), strict=True)
    )
    if RANK == 0:
        print(f"{tool}, {PROCESSES}, {STEPS} steps of {ACCUMULATE} accumulated batches: loss {losses[0]:.6f}")
        print(f"difference from a plain loop: loss {abs(losses[0] - losses[1]):.1e}, weights {weights:.1e}")
    assert abs(losses[0] - losses[1]) < 1e-6
    assert weights < 1e-6


def embeddings(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, list[str]]:
    """CIFAR-100 as EfficientNet-Lite0 sees it: training and test features and labels, and class names."""
    arrays = np.load(folder / "cifar100_effnetlite0_pca256.npz")
    x, test = (torch.tensor(arrays[f"x_{part}"].astype(np.float32)) for part in ("train", "test"))
    y, y_test = (torch.tensor(arrays[f"y_{part}"].astype(np.int64)) for part in ("train", "test"))
    return x, y, test, y_test, arrays["class_names"].tolist()
