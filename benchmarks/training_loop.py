"""Time of ``classgap train`` against a plain PyTorch loop with the same network, optimiser and batch size, as ratios in one run.

python benchmarks/training_loop.py data.npz [--rounds 7]     # an archive with vectors; writes benchmarks/training_loop.json
python benchmarks/training_loop.py                           # random vectors of the same shape

An MLP with 512 hidden units on vectors of 256 numbers, 100 classes, 100 samples per class, batches of 128, and ResNet-20 on
random images of 32 x 32 pixels. Epochs of both sides alternate, so that a busy moment hits all alike; processor time of one
thread, best epoch of each side. Our side includes everything that happens in an epoch: sampling, checks, measurements, log, and
the checkpoint at its end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from machine import describe

from classgap.data import load_data
from classgap.models import build_model
from classgap.training import TrainConfig
from classgap.training.run import start

CASES = {
    "mlp-512, cross_entropy": ("vectors", ["model=mlp-512"], 1.2),
    "mlp-512, mr2": ("vectors", ["model=mlp-512", "method=mr2"], 1.4),
    "resnet20, cross_entropy": ("images", ["model=resnet20", "data.per_class=8"], 1.05),
}


def our_epochs(settings: list[str], folder: Path, rounds: int) -> Iterator[float]:
    """Seconds of each epoch of a run."""
    trainer = start(TrainConfig().override([*settings, f"epochs={rounds}"]), folder, accelerator="cpu")
    trainer._begin()
    for _ in range(rounds):
        began = time.process_time()
        trainer._train_epoch()
        record = {"epoch": trainer.epoch, "lr": 0.0, **trainer.meter.record()}
        trainer.end_epoch(record, time.perf_counter())
        yield time.process_time() - began
    trainer.release()


def plain_epochs(settings: list[str], rounds: int) -> Iterator[float]:
    """The same training in a dozen lines."""
    config = TrainConfig().override(settings)
    data = load_data(config.data.name, per_class=config.data.per_class, val_fraction=0, augment=())
    x, y = data.train.x, data.train.y
    if x.dim() == 4:
        mean, std = (255 * torch.tensor(moment).view(-1, 1, 1) for moment in (data.mean, data.std))
        x = ((x.float() - mean) / std).contiguous(memory_format=torch.channels_last)
    network = build_model(config.model.name, data.num_classes, data.in_shape)
    if x.dim() == 4:
        network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(rounds):
        began = time.process_time()
        for rows in torch.randperm(len(x)).split(config.batch):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
        yield time.process_time() - began


def ratio(settings: list[str], folder: Path, rounds: int) -> dict[str, float]:
    """Best epochs of both sides; the first of each warms up."""
    found = np.array(list(zip(our_epochs(settings, folder, rounds), plain_epochs(settings, rounds), strict=True)))
    ours, plain = found[1:].min(0)
    return {"ours_s": round(float(ours), 3), "plain_s": round(float(plain), 3), "ratio": round(float(ours / plain), 2)}


def write_data(folder: Path) -> dict[str, str]:
    """Random vectors and images in the format that ``data=`` reads."""
    rng = np.random.default_rng(0)
    labels = np.arange(100).repeat(120)
    parts = np.tile(np.arange(120) >= 100, 100)
    made = {
        "vectors": rng.normal(size=(12_000, 256)).astype(np.float32),
        "images": rng.integers(0, 256, (12_000, 3, 32, 32)).astype(np.uint8),
    }
    for name, x in made.items():
        np.savez(
            folder / f"{name}.npz", x_train=x[~parts], y_train=labels[~parts], x_test=x[parts], y_test=labels[parts]
        )
    return {name: str(folder / f"{name}.npz") for name in made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        files = write_data(Path(scratch))
        files["vectors"] = options.vectors or files["vectors"]
        for name, (kind, case, goal) in CASES.items():
            usual = [
                "data.per_class=100",
                "batch=128",
                "data.val_fraction=0",
                "data.augment=none",
                "checkpoint_steps=0",
            ]
            settings = [f"data={files[kind]}", *usual, *case]
            results[name] = {**ratio(settings, Path(scratch) / name.replace(", ", "-"), options.rounds), "goal": goal}
            print(f"{name:28} {results[name]['ratio']:.2f} × a plain loop (goal {goal})", flush=True)
    about = {"machine": describe(), "rounds": options.rounds, "results": results}
    Path(__file__).with_name("training_loop.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
