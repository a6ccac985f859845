"""Ideas for losses, scored on training images that no run trains on: the test set is not touched.

    python benchmarks/ideas.py ../shared/data/cifar100_effnetlite0_pca256.npz
One hidden layer on CIFAR-100 embeddings, 100 training samples per class; the other 400 per class are for scoring. Classes are
ranked by cross-entropy runs with other seeds, so that no variant is favoured by chance. Then ten classes at a time, a linear
probe, and a long tail of 400 to 4 samples per class, with and without a hidden layer. Appends to evidence/ideas/results.jsonl;
runs in its archive results.jsonl.xz count as done.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgap.losses.class_scatter import within_class_scatter
from classgap.suites.records import read_records

RESULTS = Path(__file__).resolve().parent / "evidence" / "ideas" / "results.jsonl"
K, PER_CLASS, BATCH = 100, 100, 128
HIDDEN, LINEAR = (512, 0.1), (0, 0.02)  # units of the hidden layer, learning rate
SEEDS, RANKING_SEEDS = (0, 1, 2), (100, 101, 102)
WEIGHTS = (0.0, 0.006, 0.02, 0.06, 0.2)  # of the pull, on ten classes at a time
TAIL = [int(400 * 0.01 ** (rank / (K - 1))) for rank in range(K)]
Loss = Callable[[Tensor, Tensor, float], Tensor]  # logits, labels, share of the training that is done
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def main(archive: str) -> None:
    torch.set_num_threads(1)
    book, data = Book(), split(archive, range(K))
    known = np.mean([book.accuracy("ranking", seed, data, plain) for seed in RANKING_SEEDS], axis=0)
    hardness = torch.tensor((known.mean() - known) / known.std(), dtype=torch.float32)
    for idea, loss in {"cross-entropy": plain, **ideas(hardness)}.items():
        for seed in SEEDS:
            book.accuracy(idea, seed, data, loss)
    for subset in range(4):
        ten = split(archive, np.random.default_rng(subset).permutation(K)[:10].tolist())
        for weight in WEIGHTS:
            for seed in SEEDS[:2]:
                book.accuracy(
                    f"ten classes, subset {subset}, scatter of logits {weight:g}", seed, ten, pulled(weight), 40
                )
    for idea, loss in {"cross-entropy": plain, **pulls()}.items():
        for seed in SEEDS:
            book.accuracy(f"linear, {idea}", seed, data, loss, 30, LINEAR)
    for seed in SEEDS:
        tail = split(archive, np.random.default_rng(seed).permutation(K).tolist(), TAIL)
        for idea, loss in tail_ideas().items():
            book.accuracy(f"tail, {idea}", seed, tail, loss, 30)
            if idea != "cross-entropy":
                book.accuracy(f"linear tail, {idea}", seed, tail, loss, 30, LINEAR)


class Book:
    """Results in a file; a run that is in it is not repeated."""

    def __init__(self) -> None:
        self.rows = {(row["idea"], row["seed"]): row for row in read_records(RESULTS)}

    def accuracy(
        self, idea: str, seed: int, data: Data, loss: Loss, epochs: int = 20, model: tuple[int, float] = HIDDEN
    ) -> np.ndarray:
        """Accuracy of every class."""
        if (idea, seed) not in self.rows:
            row = {"idea": idea, "seed": seed, "accuracy": train(data, seed, loss, epochs, *model).round(4).tolist()}
            self.rows[idea, seed] = row
            RESULTS.parent.mkdir(exist_ok=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(f"{idea}, seed {seed}: {100 * np.mean(row['accuracy']):.2f} %", flush=True)
        return np.asarray(self.rows[idea, seed]["accuracy"])


def split(archive: str, classes: Sequence[int], sizes: Sequence[int] = (PER_CLASS,)) -> Data:
    """Training samples, as many per class as given, and samples for scoring, with their labels, standardised."""
    with np.load(archive) as file:
        x, y = torch.tensor(file["x_train"]).float(), torch.tensor(file["y_train"])
    generator = torch.Generator().manual_seed(0)
    members = [(y == k).nonzero()[:, 0] for k in classes]
    shuffled = [rows[torch.randperm(len(rows), generator=generator)] for rows in members]
    parts = []
    each = list(sizes) * (len(classes) // len(sizes))
    for rows in (
        [m[:size] for m, size in zip(shuffled, each, strict=True)],
        [m[max(sizes) :] for m in shuffled],
    ):
        label = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(r) for r in rows]))
        parts += [x[torch.cat(rows)], label]
    mean, scale = parts[0].mean(0), parts[0].std()
    return (parts[0] - mean) / scale, parts[1], (parts[2] - mean) / scale, parts[3]


def train(data: Data, seed: int, loss: Loss, epochs: int, hidden: int, rate: float) -> np.ndarray:
    """Accuracy of every class after training."""
    x, y, x_judge, y_judge = data
    classes = int(y.max()) + 1
    torch.manual_seed(seed)
    layers = (nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, classes))
    model = nn.Sequential(*layers) if hidden else nn.Linear(x.shape[1], classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    total, step = epochs * (len(y) // BATCH), 0
    for _ in range(epochs):
        for rows in torch.randperm(len(y))[: len(y) // BATCH * BATCH].view(-1, BATCH):
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / total)) / 2
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows], step / total).backward()
            optimizer.step()
            step += 1
    with torch.no_grad():
        right = y_judge[model(x_judge).argmax(1) == y_judge]
    return (torch.bincount(right, minlength=classes) / torch.bincount(y_judge, minlength=classes)).numpy()


def plain(logits: Tensor, y: Tensor, _: float) -> Tensor:
    return F.cross_entropy(logits, y)


def pulled(strength: float, space: Callable[[Tensor], Tensor] = lambda z: z, heat: float = 1.0) -> Loss:
    return lambda z, y, _: F.cross_entropy(z / heat, y) + strength * within_class_scatter(space(z), y)


def pulls() -> dict[str, Loss]:
    """The pull of compact logits: constant, or scaled by a power of the batch accuracy or of the true class's probability."""

    def fitted(strength: float, power: int, of: Callable[[Tensor, Tensor], Tensor]) -> Loss:
        return lambda z, y, _: (
            F.cross_entropy(z, y) + strength * of(z.detach(), y).mean() ** power * within_class_scatter(z, y)
        )

    def sureness(z: Tensor, y: Tensor) -> Tensor:
        return z.softmax(1).gather(1, y[:, None])

    return {
        **{f"scatter of logits, {weight:g}": pulled(weight) for weight in (0.006, 0.02, 0.06)},
        **{f"scatter of logits, 0.02, by accuracy to the {p}": fitted(0.02, p, rightness) for p in (2, 4)},
        "scatter of logits, 0.1, by probability to the 3": fitted(0.1, 3, sureness),
    }


def rightness(z: Tensor, y: Tensor) -> Tensor:
    return (z.argmax(1) == y).float()


def scheduled(strength: float, share: Callable[[float], float]) -> Loss:
    """The pull times a factor that depends on how much of the training is done."""
    return lambda z, y, done: F.cross_entropy(z, y) + share(done) * strength * within_class_scatter(z, y)


def ideas(hardness: Tensor) -> dict[str, Loss]:
    """``hardness`` is the standardised held-out error of each class, which is more than any running statistic knows."""

    def offset(strength: float, start: float = 0.0) -> Loss:
        def loss(z: Tensor, y: Tensor, done: float) -> Tensor:
            margin = (strength if done >= start else 0.0) * hardness[y]
            return F.cross_entropy(z.scatter_add(1, y[:, None], -margin[:, None]), y)

        return loss

    def temperature(strength: float) -> Loss:
        gamma = (strength * hardness).exp()
        gamma = gamma / gamma.mean()
        return lambda z, y, _: F.cross_entropy(z / gamma[y][:, None], y)

    def weight(strength: float) -> Loss:
        weights = (strength * hardness).exp()
        weights = weights / weights.mean()
        return lambda z, y, _: (F.cross_entropy(z, y, reduction="none") * weights[y]).mean()

    return {
        **pulls(),
        "margin by held-out error, 0.5": offset(0.5),
        "margin by held-out error, 1": offset(1.0),
        "the same from half-way on, 1": offset(1.0, 0.5),
        "logits divided by γ, γ up with error": temperature(0.2),
        "logits divided by γ, γ down with error": temperature(-0.2),
        "weight by held-out error": weight(0.3),
        "margin along running confusions": Confusions(3.0),
        "label smoothing 0.1": lambda z, y, _: F.cross_entropy(z, y, label_smoothing=0.1),
        "temperature 2": lambda z, y, _: F.cross_entropy(z / 2, y),
        "price on logits, 0.01": lambda z, y, _: F.cross_entropy(z, y) + 0.01 * z.square().sum(1).mean(),
        "scatter of logits, 0.2": pulled(0.2),
        "scatter of log-probabilities, 0.02": pulled(0.02, lambda z: z.log_softmax(1)),
        "scatter of logits, 0.02, and temperature 2": pulled(0.02, heat=2.0),
        "scatter of logits, 0.02, from half-way on": scheduled(0.02, lambda done: float(done >= 0.5)),
        "scatter of logits, 0.02, until half-way": scheduled(0.02, lambda done: float(done < 0.5)),
        "scatter of logits, 0.02, growing with time": scheduled(0.02, lambda done: done),
    }


def tail_ideas() -> dict[str, Loss]:
    """The pull beside logit adjustment: equal for all, or weighted by powers of n_j and n_y (logit of class j, sample of y)."""
    counts = torch.tensor(TAIL, dtype=torch.float32)
    prior = (counts / counts.sum()).log()

    def adjusted(strength: float = 0.0, row: float = 0.0, column: float = 0.0, fit: int = 0) -> Loss:
        of_row, of_column = (counts**power / (counts**power).mean() for power in (row, column))

        def loss(z: Tensor, y: Tensor, _: float) -> Tensor:
            share = rightness((z + prior).detach(), y).mean() ** fit
            scatter = within_class_scatter(z, y, class_weight=of_row, column_weight=of_column)
            return F.cross_entropy(z + prior, y) + strength * share * scatter

        return loss

    fitted = "by accuracy to the 4"
    return {
        "cross-entropy": plain,
        "logit adjustment": adjusted(),
        **{f"with scatter of logits {weight:g}": adjusted(weight) for weight in (0.006, 0.02)},
        **{f"with scatter of logits {weight:g}, by rarity": adjusted(weight, -1.0) for weight in (0.006, 0.02, 0.06)},
        f"with scatter of logits 0.02, {fitted}, by 1/n_y": adjusted(0.02, -1.0, fit=4),
        f"with scatter of logits 0.02, {fitted}, by n_j": adjusted(0.02, column=1.0, fit=4),
        f"with scatter of logits 0.02, {fitted}, by √n_j": adjusted(0.02, column=0.5, fit=4),
        f"with scatter of logits 0.02, {fitted}, by n_j/n_y": adjusted(0.02, -1.0, 1.0, fit=4),
        f"with scatter of logits 0.02, {fitted}, by √(n_j/n_y)": adjusted(0.02, -0.5, 0.5, fit=4),
    }


class Confusions:
    """Adds to the logit of j, for samples of y, a margin proportional to how often y is confused with j in training."""

    def __init__(self, strength: float) -> None:
        self.strength, self.mass, self.count = strength, torch.zeros(K, K), torch.zeros(K)

    def __call__(self, z: Tensor, y: Tensor, done: float) -> Tensor:
        if done == 0.0:
            self.mass.zero_(), self.count.zero_()
        with torch.no_grad():
            self.mass.mul_(0.999).index_add_(0, y, z.softmax(1))
            self.count.mul_(0.999).index_add_(0, y, torch.ones(len(y)))
            share = (self.mass / self.count.clamp_min(1e-6)[:, None]).fill_diagonal_(0)
            margin = self.strength * K * share / share.sum()
        return F.cross_entropy(z + margin[y], y)


if __name__ == "__main__":
    main(sys.argv[1])
