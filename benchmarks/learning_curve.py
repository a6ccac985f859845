"""Do learning curves predict the gain from twice the training samples? Measured on CIFAR-100 features, where the truth is known.

python benchmarks/learning_curve.py FEATURES.npz --write   # benchmarks/learning_curve.json, table of docs/learning_curves.md
python benchmarks/learning_curve.py --page                 # only the table, from the committed JSON

FEATURES.npz has x_train, y_train, x_test, y_test: 256 principal components of features of a frozen EfficientNet-Lite0, 500
training images per class. Classifiers on them are trained with nested parts of 12 to 400 samples per class, five seeds each (the
linear head of ``classgap learning-curve --train``: two). The gain from n to 2n is predicted from the runs with at most n
samples, and compared with the difference of the measured accuracies. Nothing is chosen by the results.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from classgap import Predictions, learning_curve
from classgap.measure.learning import GROUPS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "learning_curve.json"
PAGE = HERE.parent / "docs" / "learning_curves.md"
SIZES = (12, 25, 50, 100, 200, 400)
SEEDS = 5
_BEGIN, _END = "<!-- learning curves: benchmarks/learning_curve.py -->", "<!-- end of learning curves -->"
Classify = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def nearest_mean(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    means = np.stack([x[y == k].mean(0) for k in range(int(y.max()) + 1)])
    return np.asarray((test @ means.T - (means**2).sum(1) / 2).argmax(1))


def ridge(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Least squares on one-hot labels with a ridge of a thousandth of the trace."""
    centre, number = x.mean(0), int(y.max()) + 1
    inputs = x - centre
    gram = inputs.T @ inputs
    hot = np.eye(number)[y] - 1 / number
    weight = np.linalg.solve(gram + 1e-3 * np.trace(gram) * np.eye(len(gram)), inputs.T @ hot)
    return np.asarray(((test - centre) @ weight).argmax(1))


def discriminant(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Linear discriminant analysis: nearest mean after whitening by the shared covariance, shrunk by a tenth."""
    means = np.stack([x[y == k].mean(0) for k in range(int(y.max()) + 1)])
    inside = x - means[y]
    covariance = inside.T @ inside / len(x)
    covariance = 0.9 * covariance + 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    weight = np.linalg.solve(covariance, means.T)
    return np.asarray((test @ weight - (means.T * weight).sum(0) / 2).argmax(1))


MODELS: dict[str, Classify] = {
    "nearest class mean": nearest_mean,
    "ridge": ridge,
    "discriminant analysis": discriminant,
}


def runs(path: Path) -> dict[str, list[tuple[int, Predictions]]]:
    """Model → (training samples per class, test predictions) of every size and seed."""
    arrays = np.load(path)
    x, y = arrays["x_train"].astype(np.float32), arrays["y_train"].astype(np.int64)
    test, truth = arrays["x_test"].astype(np.float32), arrays["y_test"].astype(np.int64)
    found: dict[str, list[tuple[int, Predictions]]] = {name: [] for name in MODELS}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(y))
        rank = np.empty(len(y), dtype=np.int64)  # place of each sample among those of its class
        for k in range(int(y.max()) + 1):
            rank[order[y[order] == k]] = np.arange((y == k).sum())
        for size in SIZES:
            rows = np.flatnonzero(rank < size)
            for name, classify in MODELS.items():
                found[name].append((size, Predictions.from_arrays(truth, classify(x[rows], y[rows], test))))
    return found | {"linear head (--train)": _heads(x, y, test, truth)}


def _heads(x: np.ndarray, y: np.ndarray, test: np.ndarray, truth: np.ndarray) -> list[tuple[int, Predictions]]:
    from classgap.training.probe_sizes import probe_sizes

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.npz"
        np.savez(file, x_train=x, y_train=y, x_test=test, y_test=truth)
        settings = ["data.per_class=400", "epochs=5", "batch=512", "optim.lr=0.3"]
        heads = probe_sizes(str(file), [size / SIZES[-1] for size in SIZES], seeds=2, settings=settings)
    return [(round(head.share * SIZES[-1]), head.predictions) for head in heads]


def evaluate(found: dict[str, list[tuple[int, Predictions]]]) -> list[dict[str, Any]]:
    """Predicted and measured gains of every model, group and doubling."""
    results = []
    for model, pairs in found.items():
        for place in range(3, len(SIZES)):
            known = [(size, run) for size, run in pairs if size < SIZES[place]]
            factor = SIZES[place] / SIZES[place - 1]
            curve = learning_curve([run for _, run in known], [size for size, _ in known], factor=factor)
            # the thirds of the measured gain are those of the larger models
            seen = [(size, run) for size, run in pairs if SIZES[place - 2] <= size <= SIZES[place]]
            both = learning_curve([run for _, run in seen], [size for size, _ in seen], factor=1.001)
            for name in GROUPS:
                gain = curve.predicted[name].gain
                measured = both.accuracy[name][-1].value - both.accuracy[name][-2].value
                results.append({
                    "model": model, "from": list(SIZES[:place]), "to": SIZES[place], "group": name,
                    "predicted": gain.value, "low": gain.low, "high": gain.high, "measured": measured,
                })  # fmt: skip
    return results


def table(results: list[dict[str, Any]]) -> str:
    """One row per model and doubling."""
    head = ["classifier", "from", "to", *(f"{name}: predicted; measured" for name in ("overall", "hard", "easy"))]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for model in dict.fromkeys(r["model"] for r in results):
        for to in SIZES[3:]:
            rows = {r["group"]: r for r in results if r["model"] == model and r["to"] == to}
            first = rows["overall"]["from"]
            cells = [_cell(rows[name]) for name in ("overall", "hard", "easy")]
            lines.append(f"| {model} | {first[0]} … {first[-1]} | {to} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + summary(results)


def _cell(r: dict[str, Any]) -> str:
    low, high, value, measured = (100 * r[key] for key in ("low", "high", "predicted", "measured"))
    return f"{value:+.1f} [{low:.1f}, {high:.1f}]; {measured:+.1f}{'' if low <= measured <= high else ' (missed)'}"


def summary(results: list[dict[str, Any]]) -> str:
    """Error and coverage over all rows, medium third included."""
    error = np.array([r["predicted"] - r["measured"] for r in results])
    held = [r["low"] <= r["measured"] <= r["high"] for r in results]
    return (
        f"Over all {len(results)} predictions (four groups): mean error {100 * error.mean():+.2f} points, mean absolute error "
        f"{100 * np.abs(error).mean():.2f}, largest {100 * np.abs(error).max():.1f}; {sum(held)} intervals hold the measured "
        "gain."
    )


def page(results: list[dict[str, Any]]) -> str:
    """The docs page with the table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n{table(results)}\n\n{_END}{rest.partition(_END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="?", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/learning_curve.json and the table in the docs"
    )
    parser.add_argument("--page", action="store_true", help="only write the table in the docs")
    options = parser.parse_args()
    if options.page:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        results = evaluate(runs(options.features))
        print(table(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.write or options.page:
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
