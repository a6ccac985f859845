"""Speed of the audit against what people use today, as ratios in one run, and the weight of its report page.

python benchmarks/audit.py                          # print the table and write benchmarks/audit_results.json (some minutes)
python benchmarks/audit.py --rows 10000000          # a smaller Parquet file
python benchmarks/audit.py --only compare           # one measurement; the others stay in audit_results.json
python benchmarks/audit.py --only generated         # a table of 1 G rows that is generated while it is counted

Every contender runs in a process of its own, imports done before the clock starts; peak memory is that process's. Contenders
take turns, and the least time of each counts: other processes only ever add time. ``ratio`` is of elapsed times,
``cpu_ratio`` of processor times, which depend less on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

CLASSES, BOOTSTRAP_ROWS, REPLICATES = 1000, 1_000_000, 1000
JOINED_ROWS, GENERATED_ROWS = 10_000_000, 1_000_000_000
LIMITS = {"bootstrap": 50.0, "parquet": 3.0, "group_by": 1.5, "compare": 2.0}


def labels(rows: int, seed: int) -> tuple[Any, Any]:
    """True and predicted labels: every class has its own accuracy between 0.4 and 0.95."""
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, CLASSES, rows)
    right = rng.random(rows) < np.linspace(0.4, 0.95, CLASSES)[y_true]
    return y_true, np.where(right, y_true, rng.integers(0, CLASSES, rows))


# ---------------------------------------------------------------- contenders, each in its own process


def bootstrap_classgap(_: str) -> Callable[[], object]:
    from classgap import audit
    from classgap.measure.statistics.intervals import bootstrap_accuracy

    y_true, y_pred = labels(BOOTSTRAP_ROWS, 0)

    def run() -> object:
        confusion = audit(y_true, y_pred, n_boot=REPLICATES).confusion
        return bootstrap_accuracy(confusion.correct, confusion.support, n_boot=REPLICATES)

    return run


def bootstrap_fairlearn(replicates: str) -> Callable[[], object]:
    from fairlearn.metrics import MetricFrame
    from sklearn.metrics import accuracy_score

    y_true, y_pred = labels(BOOTSTRAP_ROWS, 0)

    def run() -> object:
        frame = MetricFrame(metrics=accuracy_score, y_true=y_true, y_pred=y_pred, sensitive_features=y_true,
                            n_boot=int(replicates), ci_quantiles=[0.025, 0.975], random_state=0)  # fmt: skip
        return frame.by_group_ci

    return run


def parquet_classgap(folder: str) -> Callable[[], object]:
    from classgap import Predictions, audit

    audit([0, 1], [0, 0])  # loads what is loaded when it is needed
    return lambda: audit(Predictions.read([folder]))


def parquet_pandas(folder: str) -> Callable[[], object]:
    import pandas as pd
    from sklearn.metrics import classification_report

    def run() -> object:
        frame = pd.read_parquet(folder, engine="pyarrow")
        return classification_report(frame["y_true"], frame["y_pred"], output_dict=True)

    return run


def parquet_polars(folder: str) -> Callable[[], object]:
    """The bare query that the audit cannot do without."""
    import polars as pl

    data = pl.scan_parquet(f"{folder}/*.parquet")
    return lambda: data.group_by("y_true", "y_pred").len().collect(engine="streaming")


def compare_classgap(folder: str) -> Callable[[], object]:
    from classgap import Columns, audit, compare

    compare(audit([0, 1], [0, 0]), audit([0, 1], [0, 1]))  # loads what is loaded when it is needed
    return lambda: compare(f"{folder}/before.parquet", f"{folder}/after.parquet", columns=Columns(id="id"))


def compare_polars(folder: str) -> Callable[[], object]:
    """The bare query with the same information: join by id, then group by the class and both predictions."""
    return _joined(folder, lambda true, before, after: (true, before, after))


def compare_polars_correct(folder: str) -> Callable[[], object]:
    """A bare query with less information: without the two confusion matrices."""
    return _joined(folder, lambda true, before, after: (true, (before == true).alias("b"), (after == true).alias("a")))


def _joined(folder: str, keys: Callable[..., Any]) -> Callable[[], object]:
    import polars as pl

    before, after = (pl.scan_parquet(f"{folder}/{name}.parquet") for name in ("before", "after"))
    groups = before.join(after, on="id").group_by(*keys(*map(pl.col, ("y_true", "y_pred", "y_pred_right"))))
    return lambda: groups.len().collect(engine="streaming")


def generated_classgap(rows: str) -> Callable[[], object]:
    """A table whose rows are generated while it is counted; it never exists as a whole."""
    import polars as pl
    from polars.io.plugins import register_io_source

    from classgap import audit

    def batches(columns: Any, predicate: Any, limit: Any, size: Any) -> Iterator[Any]:
        for i in range(int(rows) // 2_000_000):
            y_true, y_pred = labels(2_000_000, i)
            yield pl.DataFrame({"y_true": y_true, "y_pred": y_pred}).select(columns or ["y_true", "y_pred"])

    table = register_io_source(batches, schema={"y_true": pl.Int64, "y_pred": pl.Int64})

    def run() -> object:
        report = audit(table)
        assert report.num_samples == int(rows)
        return report

    return run


CONTENDERS = {
    f.__name__: f
    for f in (bootstrap_classgap, bootstrap_fairlearn, parquet_classgap, parquet_pandas, parquet_polars,
              compare_classgap, compare_polars, compare_polars_correct, generated_classgap)
}  # fmt: skip


def in_child(name: str, argument: str = "") -> dict[str, float]:
    """Run one contender in a fresh process."""
    command = [sys.executable, __file__, "--child", name, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def in_turns(names: Sequence[str], argument: str, times: int) -> list[dict[str, float]]:
    """The least time and memory of each contender; they take turns, so that all meet the same load of the machine."""
    rounds = [[in_child(name, argument) for name in names] for _ in range(times)]
    return [{key: min(found[key] for found in runs) for key in runs[0]} for runs in zip(*rounds, strict=True)]


def child(name: str, argument: str) -> None:
    """Time one contender and print what it took."""
    work = CONTENDERS[name](argument)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": round(wall, 3), "cpu_seconds": round(cpu, 3), "peak_gib": round(peak, 3)}))


# ---------------------------------------------------------------- the measurements


def measure_bootstrap(replicates: int) -> dict[str, Any]:
    """A whole audit and per-class bootstrap intervals against fairlearn's per-class intervals alone, same replicates.

    (The audit's own per-class intervals are Wilson's, in closed form; its aggregates are bootstrapped from class counts.)
    Fairlearn's time grows linearly with replicates, so a few are timed and the rest extrapolated.
    """
    ours, theirs = in_child("bootstrap_classgap"), in_child("bootstrap_fairlearn", str(replicates))
    none = in_child("bootstrap_fairlearn", "1")
    each = (theirs["seconds"] - none["seconds"]) / (replicates - 1)
    whole = none["seconds"] + each * (REPLICATES - 1)
    return {
        "rows": BOOTSTRAP_ROWS, "classes": CLASSES, "replicates": REPLICATES, "classgap": ours,
        "fairlearn": {"timed_replicates": replicates, "seconds_each": round(each, 3), "seconds": round(whole, 1)},
        "ratio": round(whole / ours["seconds"], 1),
    }  # fmt: skip


@contextlib.contextmanager
def parquet_folder(rows: int) -> Iterator[str]:
    """A folder of Parquet parts with true and predicted labels."""
    import polars as pl

    with tempfile.TemporaryDirectory() as folder:
        part = min(rows, 10_000_000)
        for i in range(rows // part):
            y_true, y_pred = labels(part, i)
            pl.DataFrame({"y_true": y_true, "y_pred": y_pred}).write_parquet(Path(folder) / f"{i:03}.parquet")
        yield folder


def measure_parquet(rows: int) -> dict[str, Any]:
    """The audit of a Parquet folder against pandas and scikit-learn."""
    with parquet_folder(rows) as folder:
        ours, theirs = in_child("parquet_classgap", folder), in_child("parquet_pandas", folder)
    ratio = round(theirs["seconds"] / ours["seconds"], 1)
    return {"rows": rows, "classes": CLASSES, "classgap": ours, "pandas_sklearn": theirs, "ratio": ratio}


def measure_group_by(rows: int) -> dict[str, Any]:
    """The audit of a Parquet folder against the bare group_by of polars."""
    with parquet_folder(rows) as folder:
        ours, bare = in_turns(["parquet_classgap", "parquet_polars"], folder, 3)
    return {"rows": rows, "classes": CLASSES, "classgap": ours, "polars": bare, **against(ours, bare)}


def against(ours: dict[str, float], bare: dict[str, float]) -> dict[str, float]:
    """How many times the time of the bare query classgap takes."""
    names = {"ratio": "seconds", "cpu_ratio": "cpu_seconds"}
    return {name: round(ours[key] / bare[key], 2) for name, key in names.items()}


def measure_compare() -> dict[str, Any]:
    """Two Parquet files of the same samples in different orders, matched by id."""
    import polars as pl

    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(1)
        y_true, y_pred = labels(JOINED_ROWS, 0)
        frame = pl.DataFrame({"id": rng.permutation(JOINED_ROWS), "y_true": y_true, "y_pred": y_pred})
        frame.write_parquet(f"{folder}/before.parquet")
        better = np.where(rng.random(JOINED_ROWS) < 0.1, y_true, y_pred)
        frame.with_columns(y_pred=better)[rng.permutation(JOINED_ROWS)].write_parquet(f"{folder}/after.parquet")
        ours, bare, less = in_turns(["compare_classgap", "compare_polars", "compare_polars_correct"], folder, 3)
    return {
        "rows": JOINED_ROWS, "classes": CLASSES, "classgap": ours, "polars": bare, **against(ours, bare),
        "polars_without_matrices": {**less, **against(ours, less)},
    }  # fmt: skip


def measure_generated() -> dict[str, Any]:
    return {"rows": GENERATED_ROWS, "classes": CLASSES, "classgap": in_child("generated_classgap", str(GENERATED_ROWS))}


def measure_page() -> dict[str, Any]:
    """Size of the page for 1000 classes, and the time until its tables answer in headless Chromium."""
    from classgap import audit

    with tempfile.TemporaryDirectory() as folder:
        file = audit(*labels(BOOTSTRAP_ROWS, 0)).to_html(Path(folder) / "report.html")
        result: dict[str, Any] = {"classes": CLASSES, "megabytes": round(file.stat().st_size / 1e6, 2)}
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is not None:
            from playwright.sync_api import sync_playwright

            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                times = []
                for _ in range(5):
                    page = browser.new_page()
                    page.goto(file.as_uri())
                    page.wait_for_selector("html[data-interactive]", state="attached")
                    times.append(page.evaluate("performance.getEntriesByName('interactive')[0].startTime"))
                    page.close()
                browser.close()
            result["milliseconds_to_interactive"] = round(sorted(times)[len(times) // 2])
    return result


def show(results: dict[str, Any]) -> None:
    """Print the results as a table."""
    rows = [("what", "classgap", "other", "ratio", "wanted")]
    boot, parquet, page = results["bootstrap"], results["parquet"], results["page"]
    rows.append((f"{boot['replicates']} bootstrap replicates, {boot['rows']:,} rows, {boot['classes']} classes",
                 f"{boot['classgap']['seconds']:.2f} s", f"fairlearn {boot['fairlearn']['seconds']:.0f} s (extrapolated)",
                 f"{boot['ratio']}×", f"≥ {LIMITS['bootstrap']:g}×"))  # fmt: skip
    ours, theirs = parquet["classgap"], parquet["pandas_sklearn"]
    rows.append((f"audit of a Parquet folder, {parquet['rows']:,} rows", f"{ours['seconds']:.1f} s, {ours['peak_gib']} GiB",
                 f"pandas + sklearn {theirs['seconds']:.1f} s, {theirs['peak_gib']} GiB",
                 f"{parquet['ratio']}×", f"≥ {LIMITS['parquet']:g}×, < 1 GiB"))  # fmt: skip
    bare_queries = {"group_by": "audit of a Parquet folder", "compare": "comparison of two Parquet files by id"}
    for name, what in bare_queries.items():
        if name in results:
            found = results[name]
            ours, bare = found["classgap"], found["polars"]
            rows.append((f"{what}, {found['rows']:,} rows", f"{ours['seconds']:.1f} s, {ours['peak_gib']} GiB",
                         f"bare query of polars {bare['seconds']:.1f} s, {bare['peak_gib']} GiB",
                         f"{found['ratio']}× (processor {found['cpu_ratio']}×)", f"≤ {LIMITS[name]:g}×"))  # fmt: skip
    if "generated" in results:
        made = results["generated"]
        rows.append((f"{made['rows']:,} rows generated while they are counted",
                     f"{made['classgap']['seconds']:.0f} s, {made['classgap']['peak_gib']} GiB", "", "", ""))  # fmt: skip
    rows.append((f"page for {page['classes']} classes", f"{page['megabytes']} MB", "", "", "< 5 MB"))
    if "milliseconds_to_interactive" in page:
        rows.append(("page answers after", f"{page['milliseconds_to_interactive']} ms", "", "", "< 2000 ms"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000, help="rows of the Parquet folder")
    parser.add_argument("--replicates", type=int, default=5, help="replicates of fairlearn that are really run")
    parser.add_argument(
        "--only", action="append", help="measure only this: bootstrap, parquet, group_by, compare, generated or page"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    file = Path(__file__).with_name("audit_results.json")
    measurements: dict[str, Callable[[], dict[str, Any]]] = {
        "bootstrap": lambda: measure_bootstrap(arguments.replicates),
        "parquet": lambda: measure_parquet(arguments.rows),
        "group_by": lambda: measure_group_by(arguments.rows),
        "compare": measure_compare,
        "generated": measure_generated,
        "page": measure_page,
    }
    results = json.loads(file.read_text(encoding="utf-8")) if arguments.only else {}
    for name in arguments.only or [name for name in measurements if name != "generated"]:
        results[name] = measurements[name]()
    results = {"machine": describe(), **{name: results[name] for name in measurements if name in results}}
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)


if __name__ == "__main__":
    main()
