"""Speed of the audit against what people use today, as ratios in one run, and the weight of its report page.

python benchmarks/audit.py                     # print the table and write benchmarks/audit_results.json (some minutes)
python benchmarks/audit.py --rows 10000000     # a smaller Parquet file

Every contender runs in a process of its own, imports done before the clock starts; peak memory is that process's.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

CLASSES, BOOTSTRAP_ROWS, REPLICATES = 1000, 1_000_000, 1000
LIMITS = {"bootstrap": 50.0, "parquet": 3.0}


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

    return lambda: audit(Predictions.read([folder]))


def parquet_pandas(folder: str) -> Callable[[], object]:
    import pandas as pd
    from sklearn.metrics import classification_report

    def run() -> object:
        frame = pd.read_parquet(folder, engine="pyarrow")
        return classification_report(frame["y_true"], frame["y_pred"], output_dict=True)

    return run


CONTENDERS = {f.__name__: f for f in (bootstrap_classgap, bootstrap_fairlearn, parquet_classgap, parquet_pandas)}


def in_child(name: str, argument: str = "") -> dict[str, float]:
    """Run one contender in a fresh process."""
    command = [sys.executable, __file__, "--child", name, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def child(name: str, argument: str) -> None:
    """Time one contender and print what it took."""
    work = CONTENDERS[name](argument)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": round(wall, 3), "cpu_seconds": round(cpu, 3), "peak_gib": round(peak, 3)}))


# ---------------------------------------------------------------- the three measurements


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


def measure_parquet(rows: int) -> dict[str, Any]:
    """A folder of Parquet parts with true and predicted labels."""
    import polars as pl

    with tempfile.TemporaryDirectory() as folder:
        part = min(rows, 10_000_000)
        for i in range(rows // part):
            y_true, y_pred = labels(part, i)
            pl.DataFrame({"y_true": y_true, "y_pred": y_pred}).write_parquet(Path(folder) / f"{i:03}.parquet")
        ours, theirs = in_child("parquet_classgap", folder), in_child("parquet_pandas", folder)
    ratio = round(theirs["seconds"] / ours["seconds"], 1)
    return {"rows": rows, "classes": CLASSES, "classgap": ours, "pandas_sklearn": theirs, "ratio": ratio}


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
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    results = {
        "machine": describe(),
        "bootstrap": measure_bootstrap(arguments.replicates),
        "parquet": measure_parquet(arguments.rows),
        "page": measure_page(),
    }
    show(results)
    Path(__file__).with_name("audit_results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
