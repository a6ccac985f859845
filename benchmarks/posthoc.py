"""How fast post-hoc methods are fitted: MARC against SGD over the same cached logits, and how every method grows.

    python benchmarks/posthoc.py                  # writes benchmarks/posthoc.json and prints the tables
    python benchmarks/posthoc.py --quick          # smaller, writes nothing
    python benchmarks/posthoc.py --table          # writes the tables into the docs

The logits are those a Bayes-optimal head gives on Gaussian classes with the counts of ImageNet-LT (115 846 samples, 1000 classes,
1280 to 5 a class). SGD is what the paper does in its second stage, without the network: batch 256, momentum 0.9, rate 0.05
with cosine decay, ten epochs, the same re-weighted objective; once fed by a DataLoader as training scripts do, once from one
shuffled index without any loader, with one thread or all, whichever is faster here. Ratios are of one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe
from threadpoolctl import threadpool_limits

from classgap import registry
from classgap.posthoc import GapDial
from classgap.posthoc.estimators.base import class_weights
from classgap.posthoc.solver.minimize import solve
from classgap.posthoc.solver.sweep import ClasswiseProblem, evaluate

RESULT = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "posthoc.md"
GAMMA, RIDGE, TOL, EPOCHS, BATCH = 1.2, 0.1, 1e-4, 10, 256


def make_logits(samples: int, num_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits (float32), labels and row norms of a head that knows the class means and the long-tailed prior."""
    rng = np.random.default_rng(seed)
    counts = np.geomspace(1280, 5, num_classes)
    counts = np.maximum((counts * samples / counts.sum()).astype(int), 2)
    counts[0] += samples - counts.sum()
    means = 0.45 * rng.standard_normal((num_classes, 64), dtype=np.float32)
    y = rng.permutation(np.repeat(np.arange(num_classes), counts))
    bias = (np.log(counts / samples) - 0.5 * (means**2).sum(1)).astype(np.float32)
    scores = (means[y] + rng.standard_normal((samples, 64), dtype=np.float32)) @ means.T + bias
    return scores, y, np.linalg.norm(means, axis=1).astype(np.float64)


def sgd(problem: ClasswiseProblem, *, loader: bool) -> tuple[np.ndarray, float, float]:
    """Ten epochs; the parameters reached, seconds and processor seconds, with one thread or all, whichever is faster."""
    return min((_sgd(problem, loader, threads) for threads in {1, os.cpu_count() or 1}), key=lambda run: run[1])


def _sgd(problem: ClasswiseProblem, loader: bool, threads: int) -> tuple[np.ndarray, float, float]:
    import torch

    torch.set_num_threads(threads)
    K = problem.num_classes
    scores, target = torch.from_numpy(problem.scores), torch.from_numpy(problem.y)
    weight = torch.from_numpy(class_weights(np.bincount(problem.y), GAMMA)).float()
    unit = torch.from_numpy(problem.unit).float()
    omega, beta = torch.ones(K, requires_grad=True), torch.zeros(K, requires_grad=True)
    optimizer = torch.optim.SGD([omega, beta], lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (len(target) // BATCH + 1))

    def step(z: Any, t: Any) -> None:
        loss = torch.nn.functional.cross_entropy(omega * z + beta * unit, t, weight=weight)
        loss = loss + RIDGE / (2 * K) * ((omega - 1).square().sum() + beta.square().sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    torch.manual_seed(0)

    def epochs() -> None:
        for _ in range(EPOCHS):
            if loader:
                dataset = torch.utils.data.TensorDataset(scores, target)
                for z, t in torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True):
                    step(z, t)
            else:
                for rows in torch.randperm(len(target)).split(BATCH):
                    step(scores[rows], target[rows])

    _, wall, processor = timed(epochs)
    return torch.cat([omega, beta]).detach().double().numpy(), wall, processor


def timed(run: Callable[[], Any], repeats: int = 1) -> tuple[Any, float, float]:
    """The result, seconds and processor seconds (of all threads); the medians of several repeats."""
    taken = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        result = run()
        taken.append((time.perf_counter() - wall, time.process_time() - processor))
    wall, processor = np.median(taken, axis=0)
    return result, float(wall), float(processor)


def marc_against_sgd(samples: int, num_classes: int) -> list[dict[str, Any]]:
    """One row each for the exact solver, a single sweep over all rows (what any exact method needs) and both kinds of SGD."""
    scores, y, norms = make_logits(samples, num_classes)
    weights = class_weights(np.bincount(y), GAMMA)[y]
    problem = ClasswiseProblem(scores, y, weights, float(weights.sum()), norms, ridge=RIDGE)
    first = evaluate(problem, problem.identity)
    solution, *exact = timed(lambda: solve(problem, tol=TOL), repeats=5)
    with threadpool_limits(1, "blas"):
        _, *one = timed(lambda: evaluate(problem, problem.identity), repeats=5)
    found = {f"classgap ({solution.sweeps} sweeps)": (np.concatenate([solution.scale, solution.offset]), *exact)}
    found |= {"one sweep": (problem.identity, *one)}
    found |= {"sgd, no loader": sgd(problem, loader=False), "sgd, DataLoader": sgd(problem, loader=True)}
    rows = []
    for name, (theta, wall, processor) in found.items():
        sweep = evaluate(problem, theta)
        rows.append(
            {
                "solver": name,
                "seconds": round(wall, 2),
                "processor": round(processor, 2),
                "objective": round(sweep.value, 5),
                "relative_gradient": sweep.norm / first.norm,
                "times": round(wall / exact[0], 1),
                "times_processor": round(processor / exact[1], 1),
            }
        )
    return rows


def growth(samples: int, num_classes: int) -> list[dict[str, Any]]:
    """Processor seconds of every method at one size, at twice the samples and at twice the classes."""

    def fit(cls: type, n: int, K: int) -> float:
        scores, y, norms = make_logits(n, K)
        features = np.random.default_rng(0).standard_normal((n, 32), dtype=np.float32)
        method = GapDial(strength=2.0, ridge=1.0) if cls is GapDial else cls()
        if "tol" in method.get_params():
            method.set_params(tol=1e-2)
        start = time.process_time()
        with threadpool_limits(1):
            method.fit(scores, y, classes=np.arange(K), weight_norms=norms, features=features)
        return time.process_time() - start

    rows = []
    for declared in registry.methods("posthoc"):
        times = [
            min(fit(declared.cls, n, K) for _ in range(3))
            for n, K in ((samples, num_classes), (2 * samples, num_classes), (samples, 2 * num_classes))
        ]
        rows.append(
            {
                "method": declared.name,
                "seconds": round(times[0], 3),
                "twice_n": round(times[1] / times[0], 2),
                "twice_k": round(times[2] / times[0], 2),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown."""

    def show(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(show(v) for v in row.values()) + " |" for row in rows])


def write_table() -> None:
    """Put the committed result into the docs."""
    result = json.loads(RESULT.read_text())
    machine = ", ".join(str(result["machine"][k]) for k in ("cpu", "cores") if k in result["machine"])
    text = DOCS.read_text()
    start, end = "<!-- speed -->", "<!-- /speed -->"
    before, rest = text.split(start)
    words = (
        f"`python benchmarks/posthoc.py` on {machine} cores. MARC on 115 846 × 1000 logits to a relative gradient of {TOL:g}, "
        f"against ten epochs of SGD over the same cached logits (batch {BATCH}):"
    )
    grows = "Processor seconds to fit 8000 × 100 logits, and the factor for twice the samples and twice the classes:"
    tables = f"{words}\n\n{table(result['marc'])}\n\n{grows}\n\n{table(result['growth'])}\n"
    DOCS.write_text(before + start + "\n" + tables + end + rest.split(end)[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="only write the committed result into the docs")
    options = parser.parse_args()
    if options.table:
        write_table()
        raise SystemExit
    quick = options.quick
    size = (20_000, 300) if quick else (115_846, 1000)
    speed = marc_against_sgd(*size)
    print(table(speed))
    scaling = growth(2000, 50) if quick else growth(8000, 100)
    print(table(scaling))
    if not quick:
        RESULT.write_text(json.dumps({"machine": describe(), "marc": speed, "growth": scaling}, indent=2) + "\n")
