"""Post-hoc methods on real embeddings: a long-tailed and a balanced head, several seeds, paired with the uncorrected head.

    python benchmarks/posthoc_evidence.py ../shared/data/cifar100_effnetlite0_pca256.npz      # writes results.jsonl
    python benchmarks/posthoc_evidence.py --table                              # writes tables and frontier into docs

For each seed a training set is drawn (balanced: 100 a class; long-tailed: exponential profile from 500 to 5, classes in random
order). A head (linear, or one hidden layer) is trained on it, and five more on four fifths each for out-of-fold scores. Every
method is fitted on those out-of-fold scores only, hyper-parameters included; the official test set (100 a class) is scored once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import posthoc_frontier

import classgap
from classgap.posthoc import (
    CRT,
    LWS,
    MARC,
    DisAlign,
    GapDial,
    LogitAdjustment,
    MatrixScaling,
    PostHocMethod,
    TauNorm,
    TemperatureScaling,
    VectorScaling,
)
from classgap.suites.records import read_records

HERE = Path(__file__).parent
RESULTS = HERE / "evidence" / "posthoc" / "results.jsonl"
DOCS = HERE.parent / "docs" / "posthoc.md"
SEEDS, FOLDS = range(5), 5
STRENGTHS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0)  # of the gap dial's frontier
POWERS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the rough dial's
METRICS = ("overall", "easy", "medium", "hard", "worst_decile", "gap")


class Head(NamedTuple):
    """A trained head with what the methods may see (``scores``, out-of-fold) and what judges them (``test``)."""

    scores: np.ndarray
    y: np.ndarray
    features: np.ndarray | None
    weight: np.ndarray | None
    bias: np.ndarray | None
    test: np.ndarray
    test_features: np.ndarray | None


def training_set(y: np.ndarray, task: str, seed: int) -> np.ndarray:
    """Rows of one draw."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(int(y.max()) + 1)
    sizes = [100 if task == "balanced" else int(500 * 0.01 ** (i / (len(order) - 1))) for i in range(len(order))]
    return np.concatenate([rng.permutation(np.flatnonzero(y == c))[:n] for c, n in zip(order, sizes, strict=True)])


def train(x: np.ndarray, y: np.ndarray, kind: str, seed: int) -> Any:
    """A linear or one-hidden-layer head: AdamW, one cycle, 25 epochs, batch 128."""
    import torch

    torch.manual_seed(seed)
    nn, K = torch.nn, int(y.max()) + 1
    if kind == "linear":
        net, rate, decay = nn.Sequential(nn.Linear(x.shape[1], K)), 5e-3, 0.5
    else:
        net = nn.Sequential(nn.Linear(x.shape[1], 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, K))
        rate, decay = 1e-3, 0.05
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay)
    epochs, batch = 25, 128
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * (len(y) // batch) + 1)
    inputs, target = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(epochs):
        for rows in torch.randperm(len(y))[: len(y) // batch * batch].split(batch):
            loss = nn.functional.cross_entropy(net(inputs[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def make_head(data: Any, task: str, kind: str, seed: int) -> Head:
    """Train the head and its five fold copies."""
    import torch

    from classgap.posthoc.selection import fold_numbers

    rows = training_set(data["y_train"], task, seed)
    x, y = data["x_train"][rows].astype(np.float32), data["y_train"][rows].astype(np.int64)
    x_test = data["x_test"].astype(np.float32)
    fold = fold_numbers(y, FOLDS, seed)
    scores = np.empty((len(y), int(y.max()) + 1), np.float32)
    with torch.no_grad():
        for k in range(FOLDS):
            with torch.enable_grad():
                part = train(x[fold != k], y[fold != k], kind, 10 * seed + k)
            scores[fold == k] = part(torch.from_numpy(x[fold == k])).numpy()
        with torch.enable_grad():
            net = train(x, y, kind, 10 * seed + 9)
        test = net(torch.from_numpy(x_test)).numpy()
    if kind != "linear":  # each fold has features of its own, so methods on features do not apply
        return Head(scores, y, None, None, None, test, None)
    weight, bias = net[0].weight.detach().numpy(), net[0].bias.detach().numpy()
    return Head(scores, y, x, weight, bias, test, x_test)


def methods(*, on_features: bool) -> Iterator[tuple[str, PostHocMethod]]:
    """All methods with the settings shown in the table."""
    yield "logit_adjustment", LogitAdjustment()
    yield "logit_adjustment (tau tuned)", LogitAdjustment(tau=None)
    yield "marc", MARC()
    yield "marc (2000 steps)", MARC(steps=2000)
    yield "marc (gamma 0)", MARC(gamma=0.0)
    yield "marc (ridge 0.1)", MARC(ridge=0.1)
    yield "marc (ridge 0.1, weighted mean)", MARC(ridge=0.1, normalize="weights")
    yield "marc (gamma 0, ridge 0.1)", MARC(gamma=0.0, ridge=0.1)
    yield "lws", LWS()
    yield "temperature_scaling", TemperatureScaling()
    yield "vector_scaling", VectorScaling()
    yield "matrix_scaling", MatrixScaling()
    if on_features:
        yield "lws (weights)", LWS(form="weights")
        yield "tau_norm", TauNorm()
        yield "crt", CRT()
        yield "disalign", DisAlign()
        yield "disalign (code)", DisAlign(form="code")
    yield "gap_dial (chosen)", GapDial()
    for strength in STRENGTHS:
        yield f"gap_dial ({strength:g})", GapDial(strength=strength, ridge=1.0)


def rough_offsets(scores: np.ndarray, y: np.ndarray, power: float) -> np.ndarray:
    """The dial's forerunner, for comparison: offsets minimising the mean of (1 - soft accuracy)^(1 + power), nothing else."""
    from scipy.optimize import minimize
    from scipy.special import softmax

    scores, at, n = scores.astype(np.float64), np.arange(len(y)), np.bincount(y)

    def objective(b: np.ndarray) -> tuple[float, np.ndarray]:
        p = softmax(scores + b, axis=1)
        own = p[at, y]
        miss = 1 - np.bincount(y, own) / n
        pull = (-(1 + power) * miss**power / len(n) / n)[y] * own
        return 100 * float((miss ** (1 + power)).mean()), 100 * (np.bincount(y, pull) - pull @ p)

    return minimize(objective, np.zeros(len(n)), jac=True, method="L-BFGS-B", options={"maxiter": 300}).x


def predictions(head: Head, done: set[str]) -> Iterator[tuple[str, np.ndarray, dict[str, Any], float]]:
    """Name, corrected test predictions, what was chosen on out-of-fold scores, and seconds to fit; of what is not ``done``."""
    norms = None if head.weight is None else np.linalg.norm(head.weight, axis=1)
    for name, method in methods(on_features=head.features is not None):
        if name in done:
            continue
        start = time.perf_counter()
        counts = np.bincount(head.y)
        method.fit(head.scores, head.y, class_counts=counts, weight_norms=norms, bias=head.bias, features=head.features)
        seconds = time.perf_counter() - start
        chosen = {k: getattr(method, k) for k in ("tau_", "strength_", "ridge_", "temperature_") if hasattr(method, k)}
        yield name, method.predict(head.test, features=head.test_features), chosen, seconds
    for power in POWERS:
        if (name := f"rough dial ({power:g})") in done:
            continue
        start = time.perf_counter()
        offsets = rough_offsets(head.scores, head.y, power)
        yield name, (head.test + offsets).argmax(1), {}, time.perf_counter() - start


def wanted(kind: str) -> set[str]:
    """Names of all lines of a head."""
    names = {name for name, _ in methods(on_features=kind == "linear")}
    return names | {f"rough dial ({power:g})" for power in POWERS}


def run(path: Path, heads: list[str], tasks: list[str]) -> None:
    """Fit what is missing; a line for each method and seed, compared with the same seed's uncorrected head."""
    data = dict(np.load(path))
    y_test = data["y_test"].astype(np.int64)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for kind, task, seed in itertools.product(heads, tasks, SEEDS):
        present = [line for line in results() if (line["head"], line["task"], line["seed"]) == (kind, task, seed)]
        done = {line["method"] for line in present}
        if done >= wanted(kind):
            continue
        head = make_head(data, task, kind, seed)
        lines = []
        before = classgap.audit(y_test, head.test.argmax(1), n_boot=200)
        if any(line["overall"]["before"] != before.metrics["overall"].value for line in present):
            raise SystemExit(f"{kind}, {task}, seed {seed}: not the head of the lines already there; delete them")
        for name, predicted, chosen, seconds in predictions(head, done):
            change = classgap.compare(before, classgap.audit(y_test, predicted, n_boot=200), n_boot=500).metrics
            line = {
                "task": task,
                "head": kind,
                "method": name,
                "seed": seed,
                "chosen": chosen,
                "seconds": round(seconds, 2),
            }
            line |= {
                m: {"before": c.before.value, "delta": c.delta.value, "low": c.delta.low, "high": c.delta.high}
                for m, c in change.items()
                if m in METRICS
            }
            lines.append(json.dumps(line) + "\n")
        with RESULTS.open("a") as file:  # all methods of a head or none: what is there need not be done again
            file.writelines(lines)
        print(kind, task, seed, flush=True)


def results() -> list[dict[str, Any]]:
    """All lines so far."""
    return read_records(RESULTS)


def pooled(lines: list[dict[str, Any]], metric: str) -> tuple[float, float, float]:
    """Mean change over seeds with its interval: the noise of the one test set (shared by all seeds) plus that between seeds."""
    deltas = np.array([line[metric]["delta"] for line in lines])
    sampling = np.mean([((line[metric]["high"] - line[metric]["low"]) / (2 * 1.96)) ** 2 for line in lines])
    half = 1.96 * float(np.sqrt(sampling + deltas.var(ddof=1) / len(deltas)))
    return float(deltas.mean()), float(deltas.mean()) - half, float(deltas.mean()) + half


def tables() -> str:
    """All lines as Markdown, one table for each head and task."""
    lines = results()
    out: list[str] = []
    for kind, task in itertools.product(("linear", "mlp"), ("long-tailed", "balanced")):
        here = [line for line in lines if (line["head"], line["task"]) == (kind, task)]
        if not here:
            continue
        start = {m: f"{100 * np.mean([line[m]['before'] for line in here]):.1f} %" for m in METRICS}
        out += [
            f"### {'Linear head' if kind == 'linear' else 'Head with one hidden layer'}, {task}",
            "",
            f"Uncorrected: {start['overall']} overall, {start['easy']} easy, {start['hard']} hard, "
            f"{start['worst_decile']} worst ten classes.",
            "",
            "| method | overall | easy | hard | worst ten |",
            "|---|---|---|---|---|",
        ]
        for name in dict.fromkeys(line["method"] for line in here):
            if posthoc_frontier.SETTING.fullmatch(name):
                continue  # single strengths are in the frontier
            same = [line for line in here if line["method"] == name]
            cells = " | ".join(_cell(*pooled(same, m)) for m in ("overall", "easy", "hard", "worst_decile"))
            out.append(f"| {name} | {cells} |")
        out.append("")
    return "\n".join(out)


def _cell(value: float, low: float, high: float) -> str:
    text = f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def write_tables() -> None:
    """Replace what stands between the markers in the docs, and draw the frontier."""
    posthoc_frontier.figure(results())
    text = DOCS.read_text()
    for name, content in (("evidence", tables()), ("frontier", posthoc_frontier.table(results()) + "\n")):
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = text.split(start)
        text = before + start + "\n" + content + end + rest.split(end)[1]
    DOCS.write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="the embeddings")
    parser.add_argument("--table", action="store_true", help="only write tables and frontier into the docs")
    parser.add_argument("--head", choices=("linear", "mlp"), action="append")
    parser.add_argument("--task", choices=("long-tailed", "balanced"), action="append")
    options = parser.parse_args()
    if not options.table:
        run(options.data, options.head or ["linear", "mlp"], options.task or ["long-tailed", "balanced"])
    else:
        write_tables()
