"""How often the intervals of audit and compare hold the truth, in simulations whose true accuracies are known.

python benchmarks/coverage.py --write          # the whole grid: benchmarks/coverage.json and the tables of docs/audit.md
python benchmarks/coverage.py --rounds 20      # quicker and rougher; the tables are only printed
python benchmarks/coverage.py --write --progress done.jsonl    # continues where a run with the same arguments and code ended
python benchmarks/coverage.py --recheck 1000   # every committed coverage below 93 % again, with 1000 new rounds
python benchmarks/coverage.py --page           # only the tables of docs/audit.md, from the committed JSON

A setting is a shape of the true class accuracies, a number of classes and a layout of samples per class. Audit: draw the
counts, estimate, and look whether each 95 % interval holds the metric of the true accuracies. Compare: draw paired predictions
of a model and of a changed one, and look whether each interval of a difference holds the true one; where the two are
equally accurate, how often anything is claimed (by the verdict, about a class, the worst class or the gap).
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

import classgap
from classgap import Predictions, audit
from classgap.measure import AuditReport, Comparison
from classgap.measure.comparing import _assemble, judged_changes
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.estimating import cross_fitted, estimate_metrics
from classgap.measure.statistics.metric_changes import mean_changes
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate
from classgap.measure.statistics.noise import homogeneity
from classgap.measure.statistics.true_intervals import true_intervals

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "coverage.json"
PAGE = HERE.parent / "docs" / "audit.md"
CONFIDENCE = 0.95
CORRECTED = ("hard", "worst", "worst_decile", "gap", "std")
MEANS = ("overall", "balanced")
RANKED = tuple(name for name in FROM_ACCURACY if name != "balanced")
PROMISED = 0.93  # coverage that every interval should reach
FALSE = 0.05  # share of false claims that is allowed
CORRECTED_ROUNDS = 20  # rounds in which the corrected values are computed, for their bias
CLAIM_ROUNDS = 5  # times as many rounds for false claims, which are quicker to find than intervals of ranked metrics
SHORT = 1.3  # standard errors below the promise at which more rounds are simulated
MEAN_ROUNDS = 4  # times as many rounds in a second check of means alone
FURTHER = 5  # times as many further rounds where the first ones fall short
AGREEMENT = 0.7  # share of samples on which a second model repeats the luck of the first


def shape(name: str, num_classes: int) -> np.ndarray:
    """True accuracies of the classes."""
    steps = (np.arange(num_classes) + 0.5) / num_classes
    return {
        "equal .7": np.full(num_classes, 0.7),
        "equal .98": np.full(num_classes, 0.98),
        "bell": np.clip([NormalDist(0.75, 0.1).inv_cdf(step) for step in steps], 0, 1),
        "half .95, half .4": np.repeat([0.95, 0.4], [num_classes - num_classes // 2, num_classes // 2]),
        "uniform .5 to .9": np.linspace(0.5, 0.9, num_classes),
        "one bad class": np.append(np.full(num_classes - 1, 0.85), 0.4),
        "near 1": np.linspace(0.96, 1.0, num_classes),
    }[name]


SHAPES = ("equal .7", "equal .98", "bell", "half .95, half .4", "uniform .5 to .9", "one bad class", "near 1")


def layout(name: str, num_classes: int) -> np.ndarray:
    """Samples per class: a number for all, or one of the uneven layouts."""
    falling = np.maximum(1, np.round(1000 ** (1 - np.arange(num_classes) / (num_classes - 1)))).astype(np.int64)
    third = num_classes // 3
    uneven = {
        "1000 … 1": falling,
        "1 … 1000": falling[::-1].copy(),  # the low accuracies of most shapes then have the many samples
        "third 100, rest 1": np.repeat([100, 1], [third, num_classes - third]),
        "30, every 4th absent": np.where(np.arange(num_classes) % 4 == 1, 0, 30),
    }
    return uneven[name] if name in uneven else np.full(num_classes, int(name))


LAYOUTS = ("1", "2", "3", "5", "10", "30", "50", "100", "1000", "1000 … 1", "1 … 1000", "third 100, rest 1",
           "30, every 4th absent")  # fmt: skip


def changed(name: str, accuracy: np.ndarray) -> np.ndarray:
    """True accuracies after a change."""
    mean = accuracy.mean()
    return {
        "none": accuracy,
        "spread halved": mean + (accuracy - mean) / 2,
        "worst third +10": np.minimum(1, accuracy + 0.1 * (accuracy < np.quantile(accuracy, 0.34))),
    }[name]


CHANGES = ("none", "spread halved", "worst third +10")


@dataclass(frozen=True)
class Setting:
    """One cell of the grid; ``change`` is empty for an audit."""

    shape: str
    num_classes: int
    samples: str
    change: str = ""


def audit_setting(setting: Setting, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Coverage of every interval, bias of observed and corrected values, and how often the gap is called real."""
    rng = np.random.default_rng(seed)
    truth, support = shape(setting.shape, setting.num_classes), layout(setting.samples, setting.num_classes)
    present = support > 0
    target = dict(zip(FROM_ACCURACY, evaluate(truth[present]).tolist(), strict=True))
    held: dict[str, list[bool]] = {name: [] for name in FROM_ACCURACY}
    error: dict[str, list[float]] = {name: [] for name in CORRECTED}
    width: list[float] = []
    real = 0
    for turn in range(rounds):
        correct = rng.binomial(support, truth)
        bounds = interval_bounds(correct[present], support[present], rng)
        for name, value in target.items():
            held[name].append(bool(bounds[name][0] - 1e-9 <= value <= bounds[name][1] + 1e-9) or np.isnan(value))
        width.append(bounds["gap"][1] - bounds["gap"][0])
        if turn < CORRECTED_ROUNDS:
            metrics = estimate_metrics(correct, support, confidence=CONFIDENCE, draws=200, rng=rng).metrics
            for name in CORRECTED:
                error[name].append(metrics[f"{name}_corrected"].value - target[name])
            assert_consistent(metrics)
        if setting.shape.startswith("equal"):
            real += homogeneity(correct[present], support[present], rng, draws=99)[1] < 1 - CONFIDENCE
    return {
        "coverage": {name: float(np.mean(values)) for name, values in held.items()},
        "bias": {name: float(np.mean(values)) for name, values in error.items()},
        "gap_width": float(np.mean(width)),
        "false_gap": real / rounds if setting.shape.startswith("equal") else None,
    }


def interval_bounds(
    correct: np.ndarray, support: np.ndarray, rng: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """The intervals of :func:`estimate_metrics`, without the corrected values, which take most of its time."""
    observed = dict(zip(FROM_ACCURACY, np.clip(evaluate(correct / support), 0, 1).tolist(), strict=True))
    crossed = cross_fitted(correct, support, rng, "first")
    return true_intervals(correct, support, crossed, observed, confidence=CONFIDENCE)


def assert_consistent(metrics: Any) -> None:
    """The corrected numbers do not contradict each other or the observed ones."""
    worst, tenth, hard = (metrics[f"{name}_corrected"].value for name in ("worst", "worst_decile", "hard"))
    assert worst <= tenth + 1e-9
    assert np.isnan(hard) or tenth <= hard + 1e-9
    assert max(worst, tenth) <= metrics["balanced"].value + 1e-9
    assert metrics["gap_corrected"].value <= metrics["gap"].value + 1e-9


@cache
def _blank(num_classes: int) -> AuditReport:
    """A report that stands for both sides; its confidence differs so that no number of it is shown."""
    return replace(audit(Predictions.from_counts(np.eye(num_classes, dtype=int)), n_boot=100), confidence=0.5)


def paired_cells(support: np.ndarray, before: np.ndarray, after: np.ndarray, rng: np.random.Generator) -> Cells:
    """Predictions of two models with these true accuracies that share part of their luck on every sample."""
    y_true = np.repeat(np.arange(len(support)), support)
    luck = rng.random(len(y_true))
    other = np.where(rng.random(len(y_true)) < AGREEMENT, luck, rng.random(len(y_true)))
    place = 4 * y_true + 2 * (luck < before[y_true]) + (other < after[y_true])
    return Cells.from_tables(np.bincount(place, minlength=4 * len(support)).reshape(-1, 2, 2))


def compare_once(cells: Cells, rng: np.random.Generator) -> Comparison:
    """The comparison of two models."""
    blank, seed = _blank(cells.num_classes), int(rng.integers(2**31))
    return _assemble(((blank,), (blank,)), blank.classes, cells, CONFIDENCE, seed, None, 200, "first")


def true_change(setting: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, float]]:
    """Samples per class, true accuracies before and after, and the true change of every metric."""
    before, support = shape(setting.shape, setting.num_classes), layout(setting.samples, setting.num_classes)
    after = changed(setting.change, before)
    present = support > 0
    difference = evaluate(after[present]) - evaluate(before[present])
    target = dict(zip(FROM_ACCURACY, difference.tolist(), strict=True))
    return support, before, after, target | {"overall": float(support @ (after - before) / support.sum())}


def compare_setting(setting: Setting, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Coverage of every interval of a difference; without a change also how often anything, or a loss, is claimed."""
    rng = np.random.default_rng(seed)
    support, before, after, target = true_change(setting)
    held: dict[str, list[bool]] = {name: [] for name in target}
    claims: list[tuple[bool, bool]] = []
    for _ in range(rounds):
        found = compare_once(paired_cells(support, before, after, rng), rng)
        for name, value in target.items():
            delta = found.metrics[name].delta
            held[name].append(bool(delta.low - 1e-9 <= value <= delta.high + 1e-9) or np.isnan(value))
        claimed = found.verdict.kind != "noise" or bool(found.verdict.losses or found.per_class["significant"].any())
        claims.append((claimed, bool(found.verdict.losses)))
    result: dict[str, Any] = {"coverage": {name: float(np.mean(values)) for name, values in held.items()}}
    if setting.change == "none":
        for _ in range(CLAIM_ROUNDS * rounds):
            tested = judged_changes(paired_cells(support, before, after, rng), CONFIDENCE, rng, "first")
            claims.append(
                (
                    tested.changed,
                    bool((tested.by_class.delta[tested.q_value <= 1 - CONFIDENCE] < 0).any() and tested.changed),
                )
            )
        result |= {"false_claim": float(np.mean(claims, axis=0)[0]), "false_loss": float(np.mean(claims, axis=0)[1])}
    return result


def compare_means(setting: Setting, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Coverage of the intervals for the overall and the balanced accuracy alone, which take little time.

    The 2×2 tables of the classes are drawn as a whole, with the probabilities that :func:`paired_cells` has.
    """
    rng = np.random.default_rng(seed)
    support, before, after, target = true_change(setting)
    both = AGREEMENT * np.minimum(before, after) + (1 - AGREEMENT) * before * after
    share = np.stack([1 - before - after + both, after - both, before - both, both], axis=1)
    held: dict[str, list[bool]] = {name: [] for name in MEANS}
    for _ in range(rounds):
        found = mean_changes(Cells.from_tables(rng.multinomial(support, share).reshape(-1, 2, 2)))
        for name in MEANS:
            delta = found[name].at(CONFIDENCE)
            held[name].append(bool(delta.low - 1e-9 <= target[name] <= delta.high + 1e-9))
    return {"coverage": {name: float(np.mean(values)) for name, values in held.items()}}


def grid(*, full: bool = True) -> Iterator[Setting]:
    """All settings; 1000 classes and the comparison with fewer shapes and layouts."""
    for samples in LAYOUTS:
        for name in SHAPES:
            yield from (Setting(name, number, samples) for number in (3, 10, 30, 100))
            if full and samples in ("1", "5", "50", "1000 … 1"):
                yield Setting(name, 1000, samples)
    for samples in LAYOUTS:
        for number in (10, 100):
            for name in ("equal .7", "equal .98", "half .95, half .4", "uniform .5 to .9", "one bad class"):
                yield Setting(name, number, samples, "none")
            for name in ("half .95, half .4", "uniform .5 to .9", "one bad class"):
                yield Setting(name, number, samples, "spread halved")
            for name in ("equal .7", "uniform .5 to .9"):
                yield Setting(name, number, samples, "worst third +10")


def simulate(setting: Setting, rounds: int) -> dict[str, Any]:
    """One setting, in fewer rounds where each is slow; the seed is the setting's.

    Among thousands of coverages some are low by chance. A setting with one below what chance explains gets more rounds with
    another seed, pooled with the first ones; the result keeps the first coverage too.
    """
    if setting.num_classes == 1000 or setting.change:
        rounds = max(20, rounds // 2)
    run = compare_setting if setting.change else audit_setting
    seed = zlib.crc32(repr(setting).encode())
    found = run(setting, rounds, seed=seed)
    if not falls_short(found, rounds):
        return {**vars(setting), "rounds": rounds, **found}
    further = run(setting, FURTHER * rounds, seed=seed + 1_000_000)
    both = {**vars(setting), "rounds": (1 + FURTHER) * rounds, **_pooled(found, further)}
    return both | {"first_coverage": found["coverage"], "first_rounds": rounds}


def falls_short(found: dict[str, Any], rounds: int) -> bool:
    """Whether a coverage is so low, or false claims so frequent, that more rounds are needed to judge it."""
    low = min(found["coverage"].values()) < PROMISED - SHORT * np.sqrt(PROMISED * (1 - PROMISED) / rounds)
    spare = SHORT * np.sqrt(FALSE * (1 - FALSE) / (rounds * (1 + CLAIM_ROUNDS)))
    return bool(low or found.get("false_claim", 0.0) > FALSE + spare)


def _pooled(first: Any, further: Any) -> Any:
    """Mean over the rounds of both; none is discarded."""
    if isinstance(first, dict):
        return {key: _pooled(first[key], further[key]) for key in first}
    return None if first is None else (first + FURTHER * further) / (1 + FURTHER)


def short_metrics(found: dict[str, Any]) -> list[str]:
    """Metrics of a setting whose coverage was measured below the promise."""
    return [name for name, value in found["coverage"].items() if value < PROMISED]


def recheck_rounds(found: dict[str, Any], rounds: int) -> int:
    """Rounds of a second check: more for means alone, which take little time."""
    quick = found["change"] and set(short_metrics(found)) <= set(MEANS)
    return MEAN_ROUNDS * rounds if quick else rounds


def recheck(found: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The metrics below the promise with new rounds only: they were selected for low coverage, so the first rounds are biased."""
    rounds = recheck_rounds(found, rounds)
    setting = Setting(*(found[field] for field in vars(Setting("", 0, ""))))
    short = short_metrics(found)
    run = audit_setting if not setting.change else compare_means if set(short) <= set(MEANS) else compare_setting
    again = run(setting, rounds, seed=zlib.crc32(repr(setting).encode()) + 2_000_000)
    return {"rounds": rounds, "coverage": {name: again["coverage"][name] for name in short}}


def coverage_of(found: dict[str, Any], name: str) -> float:
    """Coverage of a metric in a setting, by the new rounds if it was checked again."""
    again = found.get("recheck", {"coverage": {}})["coverage"]
    return float(again.get(name, found["coverage"][name]))


# ---------------------------------------------------------------- the tables of docs/audit.md

_BEGIN, _END = "<!-- coverage tables: benchmarks/coverage.py -->", "<!-- end of coverage tables -->"


def tables(results: list[dict[str, Any]]) -> str:
    """Both tables in Markdown."""
    audits = [r for r in results if not r["change"]]
    compares = [r for r in results if r["change"]]
    rows = [_audit_row(samples, [r for r in audits if r["samples"] == samples]) for samples in LAYOUTS]
    heads = ("samples per class", "balanced", "thirds", "worst, worst tenth", "gap", "std, Gini", "geometric, harmonic",
             "largest bias of worst / gap, corrected (K ≥ 10)", "gap called real, classes equal")  # fmt: skip
    parts = [_markdown(heads, rows)]
    rows = [_compare_row(samples, [r for r in compares if r["samples"] == samples]) for samples in LAYOUTS]
    heads = ("samples per class", "no change: overall, balanced", "no change: ranked metrics", "no change: anything claimed",
             "no change: a loss claimed", "changed: overall, balanced", "changed: ranked metrics")  # fmt: skip
    parts.append(_markdown(heads, rows))
    return "\n\n".join(parts)


def _share(results: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """Mean and lowest coverage in percent."""
    values = [coverage_of(r, name) for r in results for name in names]
    return f"{100 * np.mean(values):.1f} ({100 * min(values):.0f})" if values else "–"


def _rate(results: list[dict[str, Any]], key: str) -> str:
    """Mean and highest rate in percent."""
    values = [100 * r[key] for r in results]
    return f"{np.mean(values):.1f} ({max(values):.0f})"


def _audit_row(samples: str, results: list[dict[str, Any]]) -> tuple[str, ...]:
    large = [r for r in results if r["num_classes"] >= 10]
    bias = (max((r["bias"][name] for r in large), key=abs) for name in ("worst", "gap"))
    false = [r["false_gap"] for r in results if r["false_gap"] is not None]
    return (
        samples,
        _share(results, ("balanced",)),
        _share(results, ("easy", "medium", "hard")),
        _share(results, ("worst", "worst_decile")),
        _share(results, ("gap",)),
        _share(results, ("std", "gini")),
        _share(results, ("geometric_mean", "harmonic_mean")),
        " / ".join(f"{100 * value:+.0f}" for value in bias),
        f"{100 * np.mean(false):.1f}",
    )


def _compare_row(samples: str, results: list[dict[str, Any]]) -> tuple[str, ...]:
    null = [r for r in results if r["change"] == "none"]
    other = [r for r in results if r["change"] != "none"]
    return (
        samples,
        _share(null, ("overall", "balanced")),
        _share(null, RANKED),
        *(_rate(null, key) for key in ("false_claim", "false_loss")),
        _share(other, ("overall", "balanced")),
        _share(other, RANKED),
    )


def _markdown(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def page() -> str:
    """``docs/audit.md`` with the tables of the committed results."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    return f"{before}{_BEGIN}\n\n{tables(results)}\n\n{_END}{after}"


MEASURED = ("cells", "class_changes", "deconvolution", "estimating", "false_discovery", "groups", "intervals", "metric_changes",
            "metrics", "noise", "pooling", "true_intervals", "../comparing", "../verdict")  # fmt: skip


def code_version() -> str:
    """Checksum of the measured code: results of another version are not continued."""
    folder = Path(classgap.__file__).parent / "measure" / "statistics"
    files = [*((folder / f"{name}.py").resolve() for name in MEASURED), Path(__file__)]
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in files)):08x}"


def run_grid(rounds: int, jobs: int, progress: Path | None) -> list[dict[str, Any]]:
    """Results of all settings in the order of the grid; those in ``progress`` are not simulated again."""
    run = {"rounds": rounds, "code": code_version()}
    lines = progress.read_text(encoding="utf-8").splitlines() if progress and progress.exists() else []
    known = [entry["result"] for entry in map(json.loads, lines) if entry["run"] == run]
    done = {Setting(*(found[field] for field in vars(Setting("", 0, "")))): found for found in known}
    left = [setting for setting in grid() if setting not in done]
    start = time.perf_counter()
    with ProcessPoolExecutor(jobs) as pool:
        for setting, found in zip(left, pool.map(partial(simulate, rounds=rounds), left), strict=True):
            done[setting] = found
            if progress:
                with progress.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"run": run, "result": found}) + "\n")
            name, low = " ".join(map(str, vars(setting).values())), min(found["coverage"].values())
            print(f"{time.perf_counter() - start:6.0f} s  {name}  lowest coverage {low:.3f}", flush=True)
    return [done[setting] for setting in grid()]


def recheck_all(rounds: int, jobs: int) -> None:
    """Check the committed coverages below the promise again, and write them to the committed results."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    left = [
        found
        for found in stored["results"]
        if short_metrics(found) and found.get("recheck", {"rounds": 0})["rounds"] < recheck_rounds(found, rounds)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for found, again in zip(left, pool.map(partial(recheck, rounds=rounds), left), strict=True):
            found["recheck"] = again
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            name = " ".join(str(found[field]) for field in vars(Setting("", 0, "")))
            print(
                name,
                {metric: (found["coverage"][metric], again["coverage"][metric]) for metric in again["coverage"]},
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=200, help="rounds per setting; half of it with 1000 classes and in comparisons"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--progress", type=Path, help="file of finished settings, to continue after an interruption")
    parser.add_argument("--write", action="store_true", help="write benchmarks/coverage.json and docs/audit.md")
    parser.add_argument("--page", action="store_true", help="only write the tables of docs/audit.md")
    parser.add_argument("--recheck", type=int, metavar="ROUNDS", help="check the committed coverages below 93 %% again")
    options = parser.parse_args()
    if options.recheck:
        recheck_all(options.recheck, options.jobs)
    elif not options.page:
        results = run_grid(options.rounds, options.jobs, options.progress)
        if not options.write:
            print(tables(results))
            return
        text = json.dumps({"confidence": CONFIDENCE, "results": results}, indent=1) + "\n"
        RESULTS.write_text(text, encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
