"""What each method costs, as a ratio to cross-entropy: CPU time of one thread, in one run.

python benchmarks/methods_cost.py              # write benchmarks/methods_cost.json
python benchmarks/methods_cost.py mr2 dbm      # measure only these and put them in their place

Losses, what goes around the optimiser, mixing, and augmentation beside crop and flip: a **step**, what the training loop does
with a batch of 64 random images of 32 × 32 pixels and 100 classes on a ResNet-20: augmentation, all forward and backward passes,
a teacher or further networks where the method has them, the optimiser and the log. Steps with cross-entropy and with the method
alternate, and the best of each counts; what a method does once an epoch, and the training of a teacher, does not. A larger
network brings the ratio of any method that only adds arithmetic on logits or features closer to 1. The row of cross-entropy
itself shows what is noise.

Stages and samplers: a whole **run** of 20 epochs on digits with 60 to 6 images per class, ResNet-20, with all it trains or fits.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from machine import describe

from classgap import registry
from classgap.training import TrainConfig, train
from classgap.training.loop import Trainer
from classgap.training.run import start

RESULTS = Path(__file__).with_name("methods_cost.json")
ROUNDS, CLASSES, BATCH, EPOCHS = 8, 100, 64, 20

# Settings without which a method cannot be used.
FURTHER = {
    "confused_mixup": ["data.val_fraction=0.3"],
    "p_by_q": ["sampler.classes=8", "sampler.samples=8"],
    "ensemble_teacher": ["method=distillation"],
    "add_samples": ["data.profile=balanced", "data.imbalance=1", "data.per_class=24", "data.spare=8"],
    "augment_classes": ["stage.augment=crop"],
}


def write_images(path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3 * CLASSES, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(3 * CLASSES) % CLASSES
    np.savez(path, x_train=images, y_train=labels, x_test=images[:CLASSES], y_test=labels[:CLASSES])


def trainer_with(folder: Path, setting: str) -> Trainer:
    fixed = ["model=resnet20", "data.val_fraction=0", "data.augment=crop,flip", f"batch={BATCH}", "epochs=1"]
    config = TrainConfig().override(
        [
            f"data=npz:{folder / 'images.npz'}",
            *fixed,
            "optim.lr=0.01",
            setting,
            *FURTHER.get(setting.partition("=")[2], []),
        ]
    )
    trainer = start(config, folder / setting, accelerator="cpu")
    trainer._begin()
    trainer.model.train()
    trainer.criterion.train()
    trainer.criterion.start_epoch(0, trainer._training_pass)
    return trainer


def step_seconds(trainer: Trainer) -> float:
    started = time.process_time()
    trainer._update(next(trainer.batches.epoch(0)))
    return time.process_time() - started


def ratio(folder: Path, setting: str, reference: Trainer) -> float:
    trainer = trainer_with(folder, setting)
    step_seconds(trainer)  # first calls allocate
    pairs = [(step_seconds(trainer), step_seconds(reference)) for _ in range(ROUNDS)]
    mine, plain = (min(seconds) for seconds in zip(*pairs, strict=True))
    return mine / plain


def run_seconds(folder: Path, name: str, settings: list[str]) -> float:
    fixed = ["data.per_class=60", "data.profile=exponential", "data.imbalance=10", "model=resnet20", f"epochs={EPOCHS}"]
    config = TrainConfig().override([*fixed, f"batch={BATCH}", "optim.lr=0.01", *settings])
    started = time.process_time()
    train(config, folder / "runs" / name, accelerator="cpu")
    return time.process_time() - started


def run_ratio(folder: Path, setting: str, name: str) -> float:
    """Each beside a plain run of its own, since what else the machine does changes over the minutes."""
    further = FURTHER.get(name, [])
    mine = run_seconds(folder, name, [setting, *further])
    return mine / run_seconds(folder, f"{name}-plain", [text for text in further if text.startswith("data.")])


def main(chosen: list[str]) -> None:
    torch.set_num_threads(1)
    settings: dict[registry.Kind, str] = {
        "loss": "method={}",
        "optimizer": "wrapper={}",
        "stage": "stage={}",
        "sampler": "sampler={}",
        "augmentation": "data.augment=crop,flip,{}",
        "mix": "mix={}",
    }
    costs: dict[str, dict[str, float]] = json.loads(RESULTS.read_text())["cost"] if chosen else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder / "images.npz")
        reference = trainer_with(folder, "seed=1")
        step_seconds(reference)
        for kind, setting in settings.items():
            for spec in registry.methods(kind):
                if chosen and spec.name not in chosen:
                    continue
                chosen_setting = setting.format(spec.name)
                if kind in ("stage", "sampler"):
                    value = run_ratio(folder, chosen_setting, spec.name)
                else:
                    value = ratio(folder, chosen_setting, reference)
                costs.setdefault(kind, {})[spec.name] = round(value, 2)
                print(f"{kind:>12} {spec.name:>20} {value:.2f}", flush=True)
    costs = {kind: dict(sorted(found.items())) for kind, found in costs.items()}
    about = {"batch": BATCH, "classes": CLASSES, "image": [3, 32, 32], "model": "resnet20", "rounds": ROUNDS}
    about["run_epochs"] = EPOCHS
    RESULTS.write_text(json.dumps({"setting": about, "machine": describe(), "cost": costs}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
