"""torchmetrics: thirds, worst class and gap over batches and processes, equal to an audit of all samples.

python examples/integration_torchmetrics.py FOLDER     # with cifar100_effnetlite0_pca256.npz
torchrun --nproc-per-node 2 examples/integration_torchmetrics.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from plain_loop import PROCESSES, RANK, WORLD, embeddings

import classgap
from classgap.integrations.torchmetrics import ClassGap


def main(folder: Path) -> None:
    if WORLD > 1:
        dist.init_process_group("gloo")
    x, y, test, y_test, _ = embeddings(folder)
    means = torch.stack([x[y == k].mean(0) for k in range(100)])  # classify by the nearest class mean
    scores = -torch.cdist(test, means)
    metric = ClassGap(num_classes=100)
    share = slice(RANK * 3000, 3000 if RANK + 1 < WORLD else None)  # shares of different size
    for logits, target in zip(scores[share].split(256), y_test[share].split(256), strict=True):
        metric.update(logits, target)
    found = metric.compute()
    if RANK == 0:
        report = classgap.audit(y_test.numpy(), scores=scores.numpy(), n_boot=100)
        largest = max(abs(value.item() - report.metrics[name].value) for name, value in found.items())
        print({name: round(value.item(), 3) for name, value in found.items()})
        print(f"{PROCESSES}: largest difference from an audit of all samples {largest:.1e}")
        assert largest < 1e-6
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
