"""How often audit(by=…) claims a difference between slices that do not differ, and how often its intervals hold the truth.

python benchmarks/slices.py --write          # the whole grid: benchmarks/slices.json and the table of docs/slices.md
python benchmarks/slices.py --rounds 20      # quicker and rougher; the table is only printed
python benchmarks/slices.py --write --progress done.jsonl    # continues where a run with the same number of rounds ended
python benchmarks/slices.py --page           # only the table of docs/slices.md, from the committed JSON

A setting is a shape of true class accuracies, numbers of classes and slices, a layout of samples per cell (class × slice), and
an effect of the slices. Without an effect, every claim about a slice, a class or a cell is false. With an effect, claims about
cells that do not differ from the rest of their class are false, and their share of all claims is the false discovery rate.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from classgap.measure.statistics.slices import POOLED, SliceCounts, describe

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "slices.json"
PAGE = HERE.parent / "docs" / "slices.md"
SHAPES = ("equal .7", "equal .98", "uniform .3 to .95")
LAYOUTS = (
    "2 per cell",
    "12 per cell",
    "100 per cell",
    "1000 … 1 per class",
    "classes differ between slices",
    "one large slice",
)
EFFECTS = ("none", "one slice -15", "three cells -40", "two cells -40")
SIZES = ((2, 3), (10, 5), (40, 8))
MANY = (100, 4)  # classes and slices where two cells are hard to find


@dataclass(frozen=True)
class Setting:
    """One cell of the grid."""

    shape: str
    num_classes: int
    num_slices: int
    layout: str
    effect: str

    @property
    def seed(self) -> int:
        return zlib.crc32(repr(asdict(self)).encode())


def accuracies(setting: Setting) -> np.ndarray:
    """True accuracy of every cell."""
    number = setting.num_classes
    base = {
        "equal .7": np.full(number, 0.7),
        "equal .98": np.full(number, 0.98),
        "uniform .3 to .95": np.linspace(0.3, 0.95, number),
    }[setting.shape]
    truth = np.repeat(base[:, None], setting.num_slices, axis=1)
    if setting.effect == "one slice -15":
        truth[:, 1] -= 0.15
    if setting.effect == "three cells -40":
        truth.flat[:: max(1, truth.size // 3)] -= 0.4
    if setting.effect == "two cells -40":
        truth[number // 3, 1] -= 0.4
        truth[-number // 4, 2] -= 0.4
    return np.clip(truth, 0, 1)


def supports(setting: Setting, rng: np.random.Generator) -> np.ndarray:
    """Number of samples of every cell, drawn around the layout."""
    shape = (setting.num_classes, setting.num_slices)
    steps = np.arange(shape[0]) / max(shape[0] - 1, 1)
    mean = {
        "2 per cell": np.full(shape, 2.0),
        "12 per cell": np.full(shape, 12.0),
        "100 per cell": np.full(shape, 100.0),
        "1000 … 1 per class": np.repeat((1000 ** (1 - steps) / shape[1])[:, None], shape[1], axis=1),
        "classes differ between slices": 60.0
        * np.exp(-2.0 * (np.arange(shape[0])[:, None] % shape[1] != np.arange(shape[1]))),
        "one large slice": np.repeat([np.where(np.arange(shape[1]) == 0, 200.0, 8.0)], shape[0], axis=0),
    }[setting.layout]
    return rng.poisson(mean)


def simulate(setting: Setting, rounds: int) -> dict[str, Any]:
    """False claims and coverage in one setting; a third of the rounds where slices have an effect or classes are many."""
    if setting.num_classes == MANY[0]:
        rounds = max(1, rounds // 2)
    else:
        rounds = max(1, rounds // (1 if setting.effect == "none" else 3) // (3 if setting.num_classes > 10 else 1))
    rng = np.random.default_rng(setting.seed)
    names = tuple(f"s{s}" for s in range(setting.num_slices))
    classes = [f"c{k}" for k in range(setting.num_classes)]
    truth = accuracies(setting)
    seen: dict[str, list[float]] = {name: [] for name in ("any", "cell", "slice", "class", "fdr", "power")}
    held: dict[str, list[bool]] = {
        name: [] for name in ("cell difference", "slice difference", "class gap", "worst cell")
    }
    for _ in range(rounds):
        support = supports(setting, rng)
        correct = rng.binomial(support, truth)
        if not support.any():
            continue
        column = describe({"s": SliceCounts(names, correct, support)}, classes, confidence=0.95, draws=200, rng=rng)[
            "s"
        ]
        flags = {"cell": column.cells, "slice": column.per_slice, "class": column.per_class}
        claims = {name: bool(table["significant"].any()) for name, table in flags.items()}
        for name, claimed in claims.items():
            seen[name].append(claimed)
        seen["any"].append(column.q_value <= 0.05)
        _cells(column.cells, truth, support, seen, held)
        _others(column, truth, support, held)
    return {
        **asdict(setting), "seed": setting.seed, "rounds": rounds,
        "claims": {name: float(np.mean(values)) for name, values in seen.items() if values},
        "coverage": {name: float(np.mean(values)) for name, values in held.items() if values},
        "intervals": {name: len(values) for name, values in held.items()},
    }  # fmt: skip


def _cells(cells: np.ndarray, truth: np.ndarray, support: np.ndarray, seen: Any, held: Any) -> None:
    total = (truth * support).sum(1)
    wrong = claims = found = real = 0
    for row in cells[(cells["slice"] != POOLED) & ~np.isnan(cells["p_value"])]:
        k, s = int(row["class"][1:]), int(row["slice"][1:])
        n = support[k].sum() - support[k, s]
        difference = truth[k, s] - (total[k] - truth[k, s] * support[k, s]) / n
        held["cell difference"].append(_holds(row, difference))
        claims += bool(row["significant"])
        wrong += bool(row["significant"] and (abs(difference) < 1e-9 or difference * row["difference"] < 0))
        real += difference < -0.05
        found += bool(row["significant"] and row["difference"] < 0 and difference < -0.05)
    seen["fdr"].append(wrong / max(claims, 1))
    if real:
        seen["power"].append(found / real)


def _others(column: Any, truth: np.ndarray, support: np.ndarray, held: Any) -> None:
    total = support.sum(1, keepdims=True)
    rest = np.maximum(total - support, 1)
    other = ((truth * support).sum(1, keepdims=True) - truth * support) / rest
    weight = support * (total - support) / np.maximum(total, 1)
    for row in column.per_slice[(column.per_slice["name"] != POOLED) & ~np.isnan(column.per_slice["difference"])]:
        s = int(row["name"][1:])
        difference = float((weight[:, s] * (truth - other)[:, s]).sum() / weight[:, s].sum())
        held["slice difference"].append(_holds(row, difference))
    if column.pooled:
        return
    present = support > 0
    for row in column.per_class[~np.isnan(column.per_class["gap_corrected"])]:
        k = int(row["name"][1:])
        gap = float(np.ptp(truth[k][present[k]]))
        held["class gap"].append(row["low"] <= gap + 1e-9 and gap - 1e-9 <= row["high"])
    worst = float(truth[present].min())
    e = column.metrics["worst"]
    held["worst cell"].append(e.low <= worst + 1e-9 and worst - 1e-9 <= e.high)


def _holds(row: Any, difference: float) -> bool:
    return bool(row["difference_low"] <= difference + 1e-9 and difference - 1e-9 <= row["difference_high"])


def grid() -> Iterator[Setting]:
    """All settings; 40 classes, which are slow, only with equal accuracies, and 100 with unequal ones."""
    for shape in SHAPES:
        for num_classes, num_slices in SIZES if shape == "equal .7" else SIZES[:2]:
            for layout in LAYOUTS:
                for effect in EFFECTS[:3]:
                    yield Setting(shape, num_classes, num_slices, layout, effect)
    for layout in LAYOUTS[1:]:
        for effect in ("none", "two cells -40"):
            yield Setting("uniform .3 to .95", *MANY, layout, effect)


def table(results: list[dict[str, Any]]) -> str:
    """One Markdown row per layout."""
    head = ("samples per cell", "no effect: any claim (largest setting)", "effect: false discoveries among cells",
            "two of 400 cells worse: detected; cells named",
            "cell difference", "slice difference", "gap within a class", "worst cell")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for layout in LAYOUTS:
        rows = [r for r in results if r["layout"] == layout]
        none = [100 * r["claims"]["any"] for r in rows if r["effect"] == "none"]
        fdr = [100 * r["claims"].get("fdr", 0) for r in rows if r["effect"] != "none"]
        cells = [layout, f"{np.mean(none):.1f} ({max(none):.0f})", f"{np.mean(fdr):.1f} ({max(fdr):.0f})"]
        sparse = [r["claims"] for r in rows if r["effect"] == "two cells -40"]
        cells.append("; ".join(f"{100 * sparse[0][key]:.0f}" for key in ("any", "power")) if sparse else "–")
        for name in ("cell difference", "slice difference", "class gap", "worst cell"):
            values = [100 * r["coverage"][name] for r in rows if name in r["coverage"]]
            cells.append(f"{np.mean(values):.1f} ({min(values):.0f})" if values else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_page(results: list[dict[str, Any]]) -> None:
    """Replace the table in the docs."""
    start, end = "<!-- slices table: benchmarks/slices.py -->", "<!-- end of slices table -->"
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(start)
    PAGE.write_text(f"{before}{start}\n\n{table(results)}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def run_grid(rounds: int, jobs: int, progress: Path | None) -> list[dict[str, Any]]:
    """Results of all settings in the order of the grid; those in ``progress`` are not simulated again."""
    lines = progress.read_text(encoding="utf-8").splitlines() if progress and progress.exists() else []
    entries = [entry for entry in map(json.loads, lines) if entry["wanted"] == rounds]
    done = {entry["result"]["seed"]: entry["result"] for entry in entries}
    left = [setting for setting in grid() if setting.seed not in done]
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(partial(simulate, rounds=rounds), left):
            done[found["seed"]] = found
            if progress:
                with progress.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"wanted": rounds, "result": found}) + "\n")
    return [done[setting.seed] for setting in grid()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--progress", type=Path, help="file of finished settings, to continue after an interruption")
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/slices.json and the table of docs/slices.md"
    )
    parser.add_argument("--page", action="store_true", help="only write the table of docs/slices.md from the JSON")
    args = parser.parse_args()
    if args.page:
        write_page(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    results = run_grid(args.rounds, args.jobs, args.progress)
    print(table(results))
    if args.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page(results)


if __name__ == "__main__":
    main()
