"""Memory and time of an audit of scores that are read in batches, against the same audit in memory.

    python benchmarks/scores.py                   # 5 million rows × 10 classes
    python benchmarks/scores.py --rows 20000000   # more than 100 million scores: in batches by default

Each measurement runs in a process of its own, which reports its largest resident memory. The file is written in parts, so that
this program itself needs little memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKER = """
import json, resource, sys, time
from classgap import audit
path, sample = sys.argv[1], int(sys.argv[2])
start, used = time.perf_counter(), time.process_time()
report = audit(path, sample=sample or None)
print(json.dumps({"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used,
                  "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                  "sampled": report.sampling and report.sampling.rows, "overall": report.overall.value,
                  "ece": report.calibration.ece, "log_loss": report.calibration.summary()["log_loss"],
                  "mean_auc": report.ranking and report.ranking.summary()["mean_auc"]}))
"""


def write_scores(path: Path, rows: int, classes: int, part: int = 500_000) -> None:
    """Logits of a classifier with classes of different accuracy, as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    names = [f"score_{k}" for k in range(classes)]
    writer = None
    for start in range(0, rows, part):
        label = rng.integers(classes, size=min(part, rows - start))
        scores = rng.normal(size=(len(label), classes))
        scores[np.arange(len(label)), label] += np.linspace(1, 3, classes)[label]
        table = pa.table({"label": label, **{name: scores[:, k] for k, name in enumerate(names)}})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--sample", type=int, default=200_000)
    parser.add_argument("--skip-memory", action="store_true", help="do not measure the audit in memory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.parquet"
        write_scores(path, given.rows, given.classes)
        print(f"{given.rows:,} rows × {given.classes} classes, {path.stat().st_size / 2**30:.2f} GiB")
        for title, sample in (("in batches", given.sample), ("default", 0)):
            if title == "default" and given.skip_memory:
                continue
            done = subprocess.run(
                [sys.executable, "-c", WORKER, str(path), str(sample)], capture_output=True, text=True, check=True
            )
            print(
                title,
                json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in json.loads(done.stdout).items()}),
            )


if __name__ == "__main__":
    main()
