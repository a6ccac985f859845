"""How long ``classgap.fix`` takes: all methods with all settings, cross-fitted, with features and the last layer.

    python benchmarks/fix.py                                # 10 000 samples, 100 classes; writes benchmarks/fix.json
    python benchmarks/fix.py --samples 50000 --classes 1000 # adds this size to the file

Samples are drawn around one centre per class, and the last layer knows the centres with some error. ``seconds`` depends on what
else runs on the machine, ``cpu_seconds`` less so.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
from machine import describe

from classgap import Predictions, fix

RESULT = Path(__file__).with_suffix(".json")


def make(samples: int, classes: int, width: int = 64) -> Predictions:
    """Held-out predictions of a model that makes mistakes."""
    rng = np.random.default_rng(0)
    centres = 0.35 * rng.normal(size=(classes, width))
    y = rng.integers(0, classes, samples)
    features = (centres[y] + rng.normal(size=(samples, width))).astype(np.float32)
    weight = (centres + 0.1 * rng.normal(size=centres.shape)).astype(np.float32)
    bias = -(weight**2).sum(1) / 2
    counts = np.geomspace(500, 20, classes).astype(int)
    scores = features @ weight.T + bias
    return Predictions.from_arrays(y, scores=scores, features=features, head=(weight, bias), train_counts=counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    arguments = parser.parse_args()
    found = make(arguments.samples, arguments.classes)
    wall, cpu = time.perf_counter(), time.process_time()
    result = fix(found)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    measured = {
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "methods": len(result.candidates),
    }
    known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    sizes = known.get("sizes", {}) | {f"{arguments.samples} x {arguments.classes}": measured}
    RESULT.write_text(json.dumps({"machine": describe(), "sizes": sizes}, indent=1) + "\n", encoding="utf-8")
    print(measured)


if __name__ == "__main__":
    main()
