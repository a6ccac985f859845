"""A grid of 32 linear heads on features, trained at once, against 32 runs of ``classgap.train``.

    python benchmarks/probe.py [FEATURES] [--runs 32]

FEATURES is a file of ``classgap features`` or an NPZ archive of vectors; by default 20 Gaussian classes in 256 dimensions, 100
training samples each. Both ways are timed in one process with one thread, alternating, in processor seconds. With ``--runs``
below 32 only so many runs are timed, and their mean is multiplied by 32. Writes ``probe.json`` beside this file: seconds of
both, their ratio, and the largest difference of a score.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from machine import describe

import classgap

GRID = {"tau": [0.5, 1.0], "lr": [0.01, 0.03, 0.1, 0.3], "seed": [0, 1, 2, 3]}
SHARED = ["method=logit_adjusted", "epochs=10", "batch=128"]


def gaussian(folder: Path) -> str:
    """Classes that overlap."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, 256)) / 4
    y, y_test = np.repeat(np.arange(20), 100), np.repeat(np.arange(20), 50)
    x, x_test = (centres[labels] + rng.normal(size=(len(labels), 256)) / 2 for labels in (y, y_test))
    np.savez(folder / "g.npz", x_train=x.astype("f"), y_train=y, x_test=x_test.astype("f"), y_test=y_test)
    return str(folder / "g.npz")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("features", nargs="?")
    parser.add_argument("--runs", type=int, default=32)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = arguments.features or gaussian(folder)
        classgap.probe(data, {"lr": [0.1]}, settings=[*SHARED, "epochs=1"])  # everything is loaded
        grids, runs, differences = [], [], []
        for place in np.linspace(0, 31, arguments.runs).astype(int):
            if len(grids) < 3:
                started = time.process_time()
                report = classgap.probe(data, GRID, settings=SHARED)
                grids.append(time.process_time() - started)
            head = report.heads[place]
            settings = [f"data={data}", "model=linear", *SHARED, *report.settings(head)]
            started = time.process_time()
            result = classgap.train(settings=settings, folder=folder / f"run{place}")
            runs.append(time.process_time() - started)
            differences.append(float(np.abs(result.test.scores - report.outputs(head).scores).max()))
    grid, single = min(grids), 32 * float(np.mean(runs))
    found = {
        "machine": describe(),
        "data": "20 Gaussian classes, 256 dimensions, 100 samples each"
        if arguments.features is None
        else Path(data).name,
        "heads": len(report.heads),
        "runs_timed": len(runs),
        "processor_seconds_grid": round(grid, 2),
        "processor_seconds_32_runs": round(single, 2),
        "ratio": round(single / grid, 1),
        "largest_difference_of_a_score": max(differences),
    }
    print(json.dumps(found, indent=2))
    (Path(__file__).parent / "probe.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
