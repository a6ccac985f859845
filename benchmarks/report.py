"""Time of an audit and of its report for many classes.

python benchmarks/report.py          # print the table and write benchmarks/report.json (about a minute)

Every number of classes runs in a process of its own, and the report is that of `classgap audit --out`: page, Markdown, JSON,
figures and mistakes.csv. `seconds` is the time by the clock, `processor` the time that the process used, which other programs
on the machine change little; on an idle machine the former is the smaller one.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe

CLASSES = (100, 1000, 10_000, 50_000)
PER_CLASS = 20
LIMIT = 30.0  # seconds of the processor for audit and report of the largest number of classes


def run(num_classes: int) -> dict[str, float]:
    """Seconds of both steps, size of the page and peak memory."""
    from classgap import audit
    from classgap.measure.render.folder import write_report

    rng = np.random.default_rng(0)
    y_true = np.repeat(np.arange(num_classes), PER_CLASS)
    accuracy = np.clip(rng.normal(0.8, 0.1, num_classes), 0, 1)
    wrong = (y_true + rng.geometric(0.05, len(y_true))) % num_classes
    y_pred = np.where(rng.random(len(y_true)) < accuracy[y_true], y_true, wrong)
    with tempfile.TemporaryDirectory() as folder:
        clocks = [(time.perf_counter(), time.process_time())]
        report = audit(y_true, y_pred)
        clocks.append((time.perf_counter(), time.process_time()))
        write_report(report, Path(folder) / "report")
        clocks.append((time.perf_counter(), time.process_time()))
        page = (Path(folder) / "report" / "report.html").stat().st_size
    audit_time, report_time = ([b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(clocks))
    return {
        "classes": num_classes,
        "audit_seconds": round(audit_time[0], 2),
        "audit_processor": round(audit_time[1], 2),
        "report_seconds": round(report_time[0], 2),
        "report_processor": round(report_time[1], 2),
        "page_megabytes": round(page / 1e6, 2),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(run(int(sys.argv[1]))))
        return
    rows = []
    for num_classes in CLASSES:
        done = subprocess.run(
            [sys.executable, __file__, str(num_classes)], check=True, capture_output=True, text=True
        ).stdout
        rows.append(json.loads(done.splitlines()[-1]))
        print(rows[-1], flush=True)
    largest = rows[-1]["audit_processor"] + rows[-1]["report_processor"]
    print(f"{CLASSES[-1]:,} classes: {largest:.1f} s of the processor, limit {LIMIT:g} s")
    result = {"machine": describe(), "samples_per_class": PER_CLASS, "limit": LIMIT, "rows": rows}
    (Path(__file__).parent / "report.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if largest > LIMIT:
        raise SystemExit("slower than the limit")


if __name__ == "__main__":
    main()
