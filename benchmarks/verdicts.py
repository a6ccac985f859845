"""Coverage and false claims in settings where earlier versions failed, by the public functions audit, compare and fix alone.

python benchmarks/verdicts.py no_change --rounds 200              # two equally accurate models; also: audit, fix, seeds
python benchmarks/verdicts.py fix --only "30 × 6" --rounds 200    # one setting
python benchmarks/verdicts.py --page                              # only the tables of docs/audit.md, from verdicts.json

It shares no code with benchmarks/coverage.py: the samples, the true values and the metrics are computed here. Two models agree by
a Gaussian copula; the scores of ``fix`` are those of the best possible classifier of Gaussian classes, so nothing can raise its
accuracy; the runs of ``seeds`` differ by training noise of every class and share the difficulty of every sample.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

import classgap
from classgap import Predictions

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "verdicts.json"
PAGE = HERE.parent / "docs" / "audit.md"
THIRDS = ("easy", "medium", "hard")
RANKED = (*THIRDS, "worst", "worst_decile", "gap", "std", "gini", "harmonic_mean", "geometric_mean")
CORRECTED = ("hard", "worst", "worst_decile", "gap", "std")


def falling(classes: int, most: int, fewest: int = 1) -> np.ndarray:
    """Samples per class that fall geometrically."""
    steps = np.arange(classes) / (classes - 1)
    return np.maximum(1, np.round(most * (fewest / most) ** steps)).astype(int)


def _bell(classes: int) -> np.ndarray:
    return np.clip(0.7 + 0.12 * np.random.default_rng(5).normal(size=classes), 0.05, 0.99)


# name → samples per class, true accuracies, number of the random stream
NO_CHANGE = {
    "10 classes × 1": (np.full(10, 1), np.full(10, 0.7), 1512),
    "30 classes × 1": (np.full(30, 1), np.full(30, 0.7), 1514),
    "100 classes × 1": (np.full(100, 1), np.full(100, 0.7), 1560),
    "100, 100 and 1 samples": (np.array([100, 100, 1]), np.full(3, 0.7), 427),
    "10 × 100 and 20 × 1": (np.r_[np.full(10, 100), np.full(20, 1)], np.full(30, 0.7), 672),
    "10 × 2": (np.full(10, 2), np.full(10, 0.7), 486),
    "100 × 2": (np.full(100, 2), np.full(100, 0.7), 534),
    "100 × 10": (np.full(100, 10), np.full(100, 0.7), 581),
    "100 × 10, uniform .5 to .9": (np.full(100, 10), np.linspace(0.5, 0.9, 100), 1381),
    "30 × 30, accuracy .98": (np.full(30, 30), np.full(30, 0.98), 728),
    "10 × 100, accuracy .98": (np.full(10, 100), np.full(10, 0.98), 772),
    "100 × 100, accuracy .98": (np.full(100, 100), np.full(100, 0.98), 820),
    "10 classes, 1000 … 1": (falling(10, 1000), np.full(10, 0.7), 599),
    "30 classes, 1000 … 1": (falling(30, 1000), np.full(30, 0.7), 601),
}
AUDITS = {
    "half .95, half .4, 100 × 30": (np.full(100, 30), np.repeat([0.95, 0.4], 50), 1026),
    "half .95, half .4, 100 × 100": (np.full(100, 100), np.repeat([0.95, 0.4], 50), 1072),
    "half .95, half .4, 100 × 1000": (np.full(100, 1000), np.repeat([0.95, 0.4], 50), 1120),
    "uniform .5 to .9, 1000 × 50": (np.full(1000, 50), np.linspace(0.5, 0.9, 1000), 1433),
    "equal .7, 30 classes, 1000 … 1": (falling(30, 1000), np.full(30, 0.7), 1302),
    "equal .7, 100 classes, 1000 … 1": (falling(100, 1000), np.full(100, 0.7), 1348),
    "equal .7, 30 × 10": (np.full(30, 10), np.full(30, 0.7), 1236),
    "equal .7, 100 × 10": (np.full(100, 10), np.full(100, 0.7), 1282),
    "equal .7, 100 × 100": (np.full(100, 100), np.full(100, 0.7), 1330),
    "uniform .5 to .9, 30 × 10": (np.full(30, 10), np.linspace(0.5, 0.9, 30), 1335),
    "uniform .5 to .9, 100 × 10": (np.full(100, 10), np.linspace(0.5, 0.9, 100), 1381),
    "bell, 30 × 10": (np.full(30, 10), _bell(30), 982),
    "bell, 100 × 10": (np.full(100, 10), _bell(100), 1028),
    "one class at .01, rest .8, 10 × 100": (np.full(10, 100), np.r_[0.01, np.full(9, 0.8)], 1268),
}
FIXES = {"30 × 6": (np.full(30, 6), 492), "30 classes, 90 … 3": (falling(30, 90, 3), 973)}
SEEDS = {f"{k} × 100, {runs} run{'s' * (runs > 1)} per side": (k, runs) for runs in (1, 3) for k in (10, 100)}


def thirds(accuracy: np.ndarray) -> list[float]:
    return [float(part.mean()) for part in np.array_split(np.sort(accuracy)[::-1], 3)]


def true_values(accuracy: np.ndarray) -> dict[str, float]:
    """Every metric of the true accuracies."""
    ordered, number = np.sort(accuracy), len(accuracy)
    gini = np.abs(accuracy[:, None] - accuracy[None]).mean() / (2 * accuracy.mean())
    return {
        **dict(zip(THIRDS, thirds(accuracy), strict=True)),
        "balanced": accuracy.mean(),
        "worst": ordered[0],
        "worst_decile": ordered[: -(-number // 10)].mean(),
        "gap": ordered[-1] - ordered[0],
        "std": accuracy.std(),
        "gini": gini,
        "harmonic_mean": number / (1 / accuracy).sum(),
        "geometric_mean": np.exp(np.log(accuracy).mean()),
    }


def predictions(y: np.ndarray, right: np.ndarray, classes: int, rng: np.random.Generator) -> Predictions:
    wrong = (y + rng.integers(1, classes, len(y))) % classes
    return Predictions.from_arrays(y, np.where(right, y, wrong), class_names=[str(k) for k in range(classes)])


def holds(estimate: Any, value: float) -> bool:
    return bool(estimate.low - 1e-9 <= value <= estimate.high + 1e-9)


def no_change(name: str, seed: int) -> dict[str, float]:
    """Which intervals of two equally accurate models exclude 0, and what is claimed."""
    support, accuracy, stream = NO_CHANGE[name]
    rng = np.random.default_rng([seed, stream])
    y, classes = np.repeat(np.arange(len(support)), support), len(support)
    common = rng.normal(size=len(y))
    luck = [ndtr(np.sqrt(0.6) * common + np.sqrt(0.4) * rng.normal(size=len(y))) for _ in range(2)]
    sides = [classgap.audit(predictions(y, u < accuracy[y], classes, rng), n_boot=100) for u in luck]
    found = classgap.compare(*sides, n_boot=200, seed=seed)
    deltas = {metric: found.metrics[metric].delta for metric in ("overall", "balanced", *RANKED)}
    deltas |= {f"cross {third}": found.groups["cross"][third].delta for third in THIRDS}
    excluded = {f"excludes 0: {metric}": not holds(delta, 0.0) for metric, delta in deltas.items()}
    return {**excluded, **_claims(found)}


def _claims(found: Any) -> dict[str, float]:
    claims = found.verdict.kind != "noise", bool(found.per_class["significant"].any()), bool(found.verdict.losses)
    return {"verdict": claims[0], "class": claims[1], "loss": claims[2], "anything": any(claims)}


def audit(name: str, seed: int) -> dict[str, float]:
    """Which intervals hold the true value, and the errors of the corrected values."""
    support, accuracy, stream = AUDITS[name]
    rng = np.random.default_rng([seed, stream])
    y = np.repeat(np.arange(len(support)), support)
    found = classgap.audit(predictions(y, rng.random(len(y)) < accuracy[y], len(support), rng), n_boot=200, seed=seed)
    truth, metrics = true_values(accuracy), found.metrics
    result: dict[str, float] = {f"holds: {metric}": holds(metrics[metric], truth[metric]) for metric in truth}
    result["holds: overall"] = holds(found.overall, float(support @ accuracy / support.sum()))
    for third in THIRDS:
        result[f"holds: cross {third}"] = holds(found.groups["cross"][third], truth[third])
        result[f"error: cross {third}"] = found.groups["cross"][third].value - truth[third]
    corrected = {metric: metrics[f"{metric}_corrected"].value for metric in CORRECTED}
    result |= {f"error: {metric}": value - truth[metric] for metric, value in corrected.items()}
    order = corrected["worst"], corrected["worst_decile"], corrected["hard"], metrics["balanced"].value
    result["contradiction"] = bool((np.diff(order) < -1e-9).any() or corrected["gap"] > metrics["gap"].value + 1e-9)
    result["real"] = found.homogeneity.p_value < 0.05
    return result


def fix(name: str, seed: int) -> dict[str, float]:
    """Whether ``fix`` claims an improvement of the best possible classifier, and whether its intervals hold the true change."""
    support, stream = FIXES[name]
    rng, classes = np.random.default_rng([seed, 77, stream]), len(support)
    centre = 1.43 / np.sqrt(2) * rng.normal(size=(classes, 8))

    def scores(y: np.ndarray) -> np.ndarray:
        x = centre[y] + rng.normal(size=(len(y), 8))
        return np.asarray(-0.5 * ((x[:, None] - centre) ** 2).sum(-1) + np.log(support / support.sum()))

    y, new = np.repeat(np.arange(classes), support), np.repeat(np.arange(classes), 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = classgap.fix(y, scores=scores(y), train_counts=support, seed=seed)
    other = scores(new)
    before, after = (
        np.bincount(new[guess == new], minlength=classes) / 300
        for guess in (other.argmax(1), found.method.predict(other).astype(int))
    )
    hard = np.array_split(np.argsort(-before, kind="stable"), 3)[2]
    true = {"hard": (after - before)[hard].mean(), "balanced": (after - before).mean()}
    true["overall"] = support @ (after - before) / support.sum()
    metrics = found.comparison.metrics
    return {
        "claim": found.helps,
        "false claim": found.helps and max(true.values()) <= 0,
        **{f"true change: {part}": float(value) for part, value in true.items()},
        "holds: hard": holds(metrics["hard"].delta, thirds(after)[2] - thirds(before)[2]),
        "holds: cross hard": holds(found.comparison.groups["cross"]["hard"].delta, true["hard"]),
        **{f"holds: {mean}": holds(metrics[mean].delta, true[mean]) for mean in ("balanced", "overall")},
    }


def seeds(name: str, seed: int) -> dict[str, float]:
    """What is claimed about mere re-runs of one training method."""
    classes, runs = SEEDS[name]
    rng = np.random.default_rng([seed, classes, 100, runs, 150])
    y = np.repeat(np.arange(classes), 100)
    difficulty, base = rng.normal(size=len(y)), np.linspace(-0.2, 2.2, classes)

    def run() -> Any:
        level = base + 0.15 * rng.normal(size=classes)
        right = level[y] + 1.2 * difficulty + 0.7 * rng.normal(size=len(y)) > 0
        return classgap.audit(predictions(y, right, classes, rng), n_boot=100)

    sides = [[run() for _ in range(runs)] for _ in range(2)]
    found = classgap.compare(*(side if runs > 1 else side[0] for side in sides), n_boot=200, seed=seed)
    return {
        **_claims(found),
        "headline names the limit": "does not judge the training method" in found.verdict.headline,
    }


PARTS: dict[str, tuple[dict[str, Any], Callable[[str, int], dict[str, float]]]] = {
    "no_change": (NO_CHANGE, no_change),
    "audit": (AUDITS, audit),
    "fix": (FIXES, fix),
    "seeds": (SEEDS, seeds),
}


def simulate(part: str, name: str, rounds: int, jobs: int) -> dict[str, Any]:
    """Means over the rounds; one job needs no other process."""
    one = partial(PARTS[part][1], name)
    if jobs == 1:
        rows = list(map(one, range(rounds)))
    else:
        with ProcessPoolExecutor(jobs) as pool:
            rows = list(pool.map(one, range(rounds)))
    return {"part": part, "name": name, "rounds": rounds} | {
        key: float(np.mean([r[key] for r in rows])) for key in rows[0]
    }


# ---------------------------------------------------------------- the tables of docs/audit.md

_BEGIN, _END = "<!-- named settings: benchmarks/verdicts.py -->", "<!-- end of named settings -->"


def tables(results: list[dict[str, Any]]) -> str:
    by_part = {part: [r for r in results if r["part"] == part] for part in PARTS}
    heads = {
        "no_change": ("no change", "rounds", "overall excludes 0", "balanced excludes 0", "ranked metric excludes 0 (most)",
                      "anything claimed"),
        "audit": ("audit", "rounds", "lowest coverage", "bias of hard, cross-fitted", "bias of worst / gap, corrected",
                  "gap called real"),
        "fix": ("`fix`, best possible scores", "rounds", "improvement claimed", "falsely", "true change of hard",
                "hard interval holds it"),
        "seeds": ("re-runs with another seed", "rounds", "verdict other than no change", "class named"),
    }  # fmt: skip
    rows = {"no_change": _no_change_row, "audit": _audit_row, "fix": _fix_row, "seeds": _seeds_row}
    return "\n\n".join(
        "\n".join(
            ["| " + " | ".join(heads[part]) + " |", "|" + "---|" * len(heads[part])]
            + ["| " + " | ".join((r["name"], str(r["rounds"]), *rows[part](r))) + " |" for r in found]
        )
        for part, found in by_part.items()
        if found
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _no_change_row(r: dict[str, Any]) -> tuple[str, ...]:
    ranked = max(r[f"excludes 0: {metric}"] for metric in (*RANKED, *(f"cross {third}" for third in THIRDS)))
    means = (r[f"excludes 0: {mean}"] for mean in ("overall", "balanced"))
    return (*map(_percent, means), _percent(ranked), _percent(r["anything"]))


def _audit_row(r: dict[str, Any]) -> tuple[str, ...]:
    low, metric = min((value, key.removeprefix("holds: ")) for key, value in r.items() if key.startswith("holds: "))
    worst, gap = (f"{100 * r[f'error: {name}']:+.1f}" for name in ("worst", "gap"))
    return (
        f"{_percent(low)} ({metric})",
        f"{100 * r['error: cross hard']:+.1f}",
        f"{worst} / {gap}",
        _percent(r["real"]),
    )


def _fix_row(r: dict[str, Any]) -> tuple[str, ...]:
    change = f"{100 * r['true change: hard']:+.1f}"
    return _percent(r["claim"]), _percent(r["false claim"]), change, _percent(r["holds: hard"])


def _seeds_row(r: dict[str, Any]) -> tuple[str, ...]:
    return _percent(r["verdict"]), _percent(r["class"])


def page() -> str:
    """``docs/audit.md`` with the tables of the committed results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    text = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    return f"{before}{_BEGIN}\n\n{text}\n\n{_END}{rest.partition(_END)[2]}"


def store(found: dict[str, Any]) -> None:
    """Replace the result of a setting in verdicts.json; the order is that of the settings."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    by_name = {(r["part"], r["name"]): r for r in [*known, found]}
    order = [(part, name) for part, (settings, _) in PARTS.items() for name in settings]
    ordered = [by_name[key] for key in order if key in by_name]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=[*PARTS], help="by default all")
    parser.add_argument("--only", help="name of one setting")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--page", action="store_true", help="only write the tables of docs/audit.md")
    options = parser.parse_args()
    for part in [] if options.page else [options.part] if options.part else PARTS:
        for name in PARTS[part][0]:
            if options.only in (None, name):
                found = simulate(part, name, options.rounds, options.jobs)
                store(found)
                print(json.dumps(found, ensure_ascii=False), flush=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
