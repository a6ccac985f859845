"""Lightning: MR² on image embeddings, every validation epoch audited, and the same steps as a plain loop.

python examples/integration_lightning.py FOLDER     # with cifar100_effnetlite0_pca256.npz
torchrun --nproc-per-node 2 examples/integration_lightning.py FOLDER
"""

from __future__ import annotations

import copy
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from plain_loop import ACCUMULATE, LR, RANK, STEPS, WORLD, compare, embeddings, plain_loop
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from classgap.heads import FeatureTap
from classgap.integrations.lightning import AuditCallback
from classgap.losses import MR2Loss

warnings.filterwarnings("ignore", module="lightning")  # advice on workers
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = FeatureTap(nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 100)))
        self.criterion = MR2Loss(num_classes=100)

    def training_step(self, batch: Any, _: int) -> Any:
        logits, features = self.net(batch[0])
        return self.criterion(logits, batch[1], features=features)

    def validation_step(self, batch: Any, _: int) -> Any:
        logits, features = self.net(batch[0])
        return {
            "loss": self.criterion(logits, batch[1], features=features),
            "scores": self.criterion.scores(logits, features),
            "target": batch[1],
        }

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR)


def trainer(folder: str, **more: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    processes = {"devices": WORLD, "strategy": "ddp" if WORLD > 1 else "auto", "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, **quiet, **processes, **more)


def main(folder: Path) -> None:
    x, y, test, y_test, names = embeddings(folder)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[shuffled], y[shuffled]
    size = 64  # samples of all processes in a batch
    module = Classifier()
    by_hand = copy.deepcopy(module)
    used = slice(0, size * STEPS * ACCUMULATE)
    batches = zip(x[used].split(size), y[used].split(size), strict=True)
    plain_loop(by_hand.net.model, by_hand.criterion, batches)
    with tempfile.TemporaryDirectory() as scratch:
        rows = TensorDataset(x, y)
        in_order = DistributedSampler(rows, WORLD, RANK, shuffle=False)  # Lightning's own one shuffles
        fit = trainer(scratch, max_steps=STEPS, accumulate_grad_batches=ACCUMULATE, use_distributed_sampler=False)
        fit.fit(module, DataLoader(rows, size // WORLD, sampler=in_order))
        compare("Lightning", (module.net.model, module.criterion), (by_hand.net.model, by_hand.criterion), (x, y))

        audited = AuditCallback(names, page=False)
        fit = trainer(scratch, max_epochs=2, callbacks=[audited])
        fit.fit(module, DataLoader(rows, 500 // WORLD), DataLoader(TensorDataset(test, y_test), 1000))
        if fit.is_global_zero:
            values = {
                name: f"{fit.callback_metrics[f'val/{name}']:.3f}" for name in ("overall", "hard", "worst", "gap")
            }
            print(f"{audited.report.num_samples} validation samples:", values)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
