"""Which setting of MR²'s formula becomes the default: judged on training images that no run trains on.

    python benchmarks/mr2_default.py ../shared/data [--images]
Every setting of (c̄, λ) at the default temperature 10·d is trained on part of the training images and scored on the others; the
test sets are not read. Results are appended to mr2_default.jsonl, and a table of differences to cross-entropy is
printed: means over seeds with their standard errors. Thirds are ranked by cross-entropy runs with other seeds.
Cost on one core: 30 minutes; with --images three hours more (not run yet).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from classgap.data import load_source
from classgap.heads import FeatureTap
from classgap.losses import CrossEntropyLoss, MR2Loss
from classgap.models import build_model

RESULTS = Path(__file__).with_suffix(".jsonl")
SEEDS, RANKING_SEEDS = (0, 1, 2), (100, 101, 102)
# Mean margin, weight, and the power of the batch accuracy that scales the weight.
SETTINGS = {f"c̄={c:g}, λ={lam:g}": (c, lam, 0.0) for c in (1.0, 2.0) for lam in (0.0, 0.003, 0.01, 0.03, 0.1)}
SETTINGS |= {f"c̄=1, λ={lam:g}, fit power 4": (1.0, lam, 4.0) for lam in (0.01, 0.03)}
ON_IMAGES = ("c̄=1, λ=0.01", "c̄=1, λ=0.03")


@dataclass(frozen=True)
class Task:
    """A data set, how many images per class train, and how."""

    name: str
    data: str
    per_class: int
    model: str
    rate: float
    epochs: int
    batch: int = 128
    augment: bool = False
    settings: tuple[str, ...] = tuple(SETTINGS)


EMBEDDINGS = "cifar100_effnetlite0_pca256.npz"
TASKS = (
    Task("digits", "digits", 15, "mlp-128-64", 0.05, 60, batch=50),
    Task("embeddings, hidden layer", EMBEDDINGS, 100, "mlp-512", 0.05, 30),
    Task("embeddings, linear", EMBEDDINGS, 100, "linear", 0.02, 30, settings=("c̄=1, λ=0", "c̄=2, λ=0")),
)
IMAGE_TASKS = (
    Task("CIFAR-100, wrn-10-1", "cifar100_100per.npz", 80, "wrn-10-1", 0.1, 30, augment=True, settings=ON_IMAGES),
    Task("CIFAR-10, wrn-10-1", "cifar10_500per.npz", 400, "wrn-10-1", 0.1, 30, augment=True, settings=ON_IMAGES),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in RESULTS.open()] if RESULTS.exists() else []
    done = {(row["task"], row["setting"], row["seed"]): np.asarray(row["accuracy"]) for row in rows}
    for task in (*TASKS, *(IMAGE_TASKS if args.images else ())):
        data = split(args.data, task)
        for seed in (*RANKING_SEEDS, *SEEDS):
            for setting in ("cross-entropy", *(task.settings if seed in SEEDS else ())):
                if (task.name, setting, seed) not in done:
                    accuracy = train(task, data, setting, seed)
                    done[task.name, setting, seed] = accuracy
                    row = {"task": task.name, "setting": setting, "seed": seed, "accuracy": accuracy.round(4).tolist()}
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    print(f"{task.name}: {setting}, seed {seed}: {100 * accuracy.mean():.2f} %", flush=True)
    print(table(done))


def split(folder: Path, task: Task) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and judging images with their labels, standardised."""
    source = load_source(task.data if task.data == "digits" else f"npz:{(folder / task.data).resolve()}")
    x, y = torch.as_tensor(np.asarray(source.x_train)).float(), torch.as_tensor(np.asarray(source.y_train)).long()
    order = np.random.default_rng(0).permutation(len(y))
    members = [order[y.numpy()[order] == k] for k in range(int(y.max()) + 1)]
    chosen = torch.from_numpy(np.concatenate([rows[: task.per_class] for rows in members]))
    judging = torch.from_numpy(np.concatenate([rows[task.per_class :] for rows in members]))
    mean, scale = x[chosen].mean(0 if x.dim() == 2 else (0, 2, 3), keepdim=True), x[chosen].std()
    return (x[chosen] - mean) / scale, y[chosen], (x[judging] - mean) / scale, y[judging]


def train(task: Task, data: tuple[Tensor, Tensor, Tensor, Tensor], setting: str, seed: int) -> np.ndarray:
    """Accuracy of every class on the judging images after the last epoch."""
    x, y, x_judge, y_judge = data
    classes = int(y.max()) + 1
    torch.manual_seed(seed)
    model = FeatureTap(build_model(task.model, classes, tuple(x.shape[1:])))
    criterion: nn.Module = CrossEntropyLoss(classes)
    if setting != "cross-entropy":
        c_bar, lam, power = SETTINGS[setting]
        criterion = MR2Loss(classes, c_bar, lam, fit_power=power)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9, weight_decay=5e-4)
    steps, step = task.epochs * math.ceil(len(y) / task.batch), 0
    for _ in range(task.epochs):
        for rows in torch.randperm(len(y)).split(task.batch):
            optimizer.param_groups[0]["lr"] = task.rate * (1 + math.cos(math.pi * step / steps)) / 2
            logits, features = model(augmented(x[rows]) if task.augment else x[rows])
            optimizer.zero_grad()
            criterion(logits, y[rows], features=features).backward()
            optimizer.step()
            step += 1
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(part)[0].argmax(1) for part in x_judge.split(1000)])
    right = torch.bincount(y_judge[predicted == y_judge], minlength=classes)
    return (right / torch.bincount(y_judge, minlength=classes)).numpy()


def augmented(images: Tensor) -> Tensor:
    """Random crops after a padding of four pixels, and flips, one draw for each image."""
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    size, top, left = images.shape[-1], *torch.randint(9, (2, len(images))).tolist()
    crops = [part[:, t : t + size, s : s + size] for part, t, s in zip(padded, top, left, strict=True)]
    flip = torch.rand(len(images))[:, None, None, None] < 0.5
    stacked = torch.stack(crops)
    return torch.where(flip, stacked.flip(3), stacked)


def table(done: dict[tuple[str, str, int], np.ndarray]) -> str:
    """Differences to cross-entropy in points: overall, hard third, easy third."""
    lines = ["| task | setting | overall | hard third | easy third |", "|---|---|---|---|---|"]
    for task in dict.fromkeys(name for name, _, _ in done):
        ranking = np.mean([done[task, "cross-entropy", seed] for seed in RANKING_SEEDS], axis=0).argsort()
        third = len(ranking) // 3
        groups: tuple[Callable[[np.ndarray], float], ...] = (
            lambda a: float(a.mean()),
            lambda a, rows=ranking[:third]: float(a[rows].mean()),
            lambda a, rows=ranking[-third:]: float(a[rows].mean()),
        )
        for setting in dict.fromkeys(s for t, s, _ in done if t == task and s != "cross-entropy"):
            seeds = [seed for seed in SEEDS if (task, setting, seed) in done]
            cells = []
            for group in groups:
                change = [100 * (group(done[task, setting, s]) - group(done[task, "cross-entropy", s])) for s in seeds]
                error = np.std(change, ddof=1) / math.sqrt(len(change)) if len(change) > 1 else math.nan
                cells.append(f"{np.mean(change):+.1f} ± {error:.1f}")
            lines.append(f"| {task} | {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
