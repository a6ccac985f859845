"""Margins and feature geometry of trained networks (Table 4 and Figure 10 of the MR² paper), from the jobs of a suite.

    classgap bench benchmarks/evidence/fashion.py
    python benchmarks/evidence/geometry.py fashion plain runs/bench/fashion

Writes SUITE_geometry.json beside this file and, for the first seed, t-SNE pictures of the hard classes into docs/images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

import classgap
from classgap.measure import AuditReport
from classgap.measure.diagnostics.geometry.angles import angles_between
from classgap.measure.render import plot
from classgap.measure.statistics.groups import THIRDS
from classgap.suites import load_suite
from classgap.suites.jobs import JobFolder
from classgap.training import TrainConfig
from classgap.training.outputs import Predictions
from classgap.training.run import start

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parents[1] / "docs" / "images"
VARIANTS = {
    "cross_entropy": "ce",
    "compact logits": "compact_logits",
    "label smoothing 0.1": "",  # no picture
}


def main(suite_name: str, task: str, jobs: Path) -> None:
    suite = load_suite(str(HERE / f"{suite_name}.py"))
    rows = []
    for job in suite.jobs(only=[f"{task}/{name}" for name in VARIANTS]):
        folder = JobFolder(jobs, job)
        if not folder.done.exists():
            print(f"not trained yet: {job.variant} seed {job.seed}")
            continue
        found = predictions_of(folder, job.config)
        report = audit_of(found)
        angle = angles_between(np.asarray(found.weight)).margin
        rows.append({"variant": job.variant, "seed": job.seed, **measures(report), "angle": round(angle, 2)})
        print(rows[-1])
        if job.seed == suite.seeds[0] and VARIANTS[job.variant]:
            picture = plot.embedding(report)
            if picture is not None:
                plot.save(picture, IMAGES / f"evidence_tsne_{VARIANTS[job.variant]}.svg")
    result = {"suite": suite_name, "task": task, "rows": rows}
    (HERE / f"{suite_name}_geometry.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def predictions_of(folder: JobFolder, config: TrainConfig) -> Predictions:
    trainer = start(config, folder.path, resume=True)
    saved = torch.load(folder.path / "last.pt", map_location="cpu", weights_only=True)
    trainer.model.load_state_dict(saved["model"])
    return trainer.predictions(trainer.data.test)


def audit_of(found: Predictions) -> AuditReport:
    names = list(found.class_names or ())
    return classgap.audit(found.y_true, scores=found.scores, features=found.features, class_names=names, n_boot=100)


def measures(report: AuditReport) -> dict[str, float]:
    """Output margins and feature spread of each third, ranked by the run itself."""
    table = report.per_class
    made = {f"margin_{third}": float(np.mean(table["output_margin"][table["group"] == third])) for third in THIRDS}
    made |= {f"spread_{third}": float(np.mean(table["spread"][table["group"] == third])) for third in THIRDS}
    return {name: round(value, 4) for name, value in made.items()}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
