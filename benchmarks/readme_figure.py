"""The picture in README: accuracy of every class of a plain logistic regression on balanced CIFAR-100 embeddings.

    python benchmarks/readme_figure.py ../shared/data/cifar100_effnetlite0_pca256.npz

100 training samples per class (seed 0), the official test set; writes docs/images/gap.svg and the numbers behind it,
docs/images/gap.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

import classgap
from classgap.measure.render import plot

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PER_CLASS = 100


def main(archive: str) -> None:
    with np.load(archive) as data:
        x_train, y_train = data["x_train"].astype(np.float32), data["y_train"]
        x_test, y_test, names = data["x_test"].astype(np.float32), data["y_test"], data["class_names"]
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(np.flatnonzero(y_train == k))[:PER_CLASS] for k in range(len(names))])
    head = LogisticRegression(C=0.05, max_iter=500).fit(x_train[rows], y_train[rows])
    report = classgap.audit(y_test, head.predict(x_test), class_names=list(names))
    chart = plot.accuracy_by_class(report)
    plot.save(chart, IMAGES / "gap.svg")
    tree = report.to_dict()
    kept = {key: tree[key] for key in ("verdict", "num_samples", "num_classes", "metrics", "groups")}
    best = max(report.per_class, key=lambda row: row["accuracy"])
    worst = min(report.per_class, key=lambda row: row["accuracy"])
    kept["best_class"] = {"name": str(best["name"]), "accuracy": float(best["accuracy"])}
    kept["worst_class"] = {"name": str(worst["name"]), "accuracy": float(worst["accuracy"])}
    (IMAGES / "gap.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(report.verdict, kept["best_class"], kept["worst_class"], sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
