"""Audits and comparisons for the tests of pages, figures and the command line."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import numpy as np

from classgap.measure import AuditReport, Comparison, audit, compare

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><b>&amp;",
    "quote \" and ' and `",
    "line\u2028separator",
    "a|b,c;d",
    "=1+1",
]


FORMULAS = [
    "=cmd|'/C calc'!A0",
    "+1 x",
    "-x",
    "@x",
    "\t=x",
    "\r=x",
    "\n=x",
    "\uff1dx",
    '=HYPERLINK("http://example.org","x")',
]


def formula_report() -> AuditReport:
    """An audit whose classes, sample ids, texts, slices and names of slices are all formulas."""
    rng, size = np.random.default_rng(0), len(FORMULAS)
    y_true = np.arange(size).repeat(12)
    scores = 2 * np.eye(size)[np.where(rng.random(len(y_true)) < 0.5, y_true, 0)] + rng.normal(size=(len(y_true), size))
    cells = [FORMULAS[i % size] + str(i // size) for i in range(len(y_true))]
    slices = {name: [name + str(i % 2) for i in range(len(y_true))] for name in FORMULAS[:3]}
    return audit(y_true, scores=scores, class_names=FORMULAS, ids=cells, texts=cells, by=slices)


def run_as_formulas(text: str) -> list[str]:
    """The cells of a CSV file that a spreadsheet would run."""
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    return [
        cell
        for cell in cells
        if cell.startswith(tuple("=+-@\t\r\n\uff1d")) and not re.fullmatch(r"[-+]?[\d.e+-]+", cell)
    ]


def samples(num_classes: int, per_class: int, *, seed: int = 0, shift: float = 2.0) -> dict[str, Any]:
    """Gaussian clouds around random means with a linear head: labels, scores, features, head."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(num_classes, 8))
    y_true = np.repeat(np.arange(num_classes), per_class)
    features = shift * means[y_true] + rng.normal(size=(len(y_true), 8)) * (1 + y_true[:, None] / num_classes)
    return {
        "y_true": y_true,
        "features": features,
        "scores": features @ means.T,
        "weight": means,
        "bias": np.zeros(num_classes),
    }


def full_report(
    num_classes: int = 6, per_class: int = 30, names: list[str] | None = None, **options: Any
) -> AuditReport:
    """An audit of scores, features and a head."""
    s = samples(num_classes, per_class)
    head = (s["weight"], s["bias"])
    return audit(s["y_true"], scores=s["scores"], features=s["features"], head=head, class_names=names, **options)


def label_report(
    num_classes: int, per_class: int = 20, *, seed: int = 0, names: list[str] | None = None
) -> AuditReport:
    """An audit of labels alone; mistakes fall on the next few classes."""
    rng = np.random.default_rng(seed)
    y_true = np.repeat(np.arange(num_classes), per_class)
    right = np.linspace(0.3, 0.95, num_classes)[y_true]
    wrong = (y_true + rng.geometric(0.4, len(y_true))) % num_classes
    y_pred = np.where(rng.random(len(y_true)) < right, y_true, wrong)
    return audit(y_true, y_pred, class_names=names or [f"class {k}" for k in range(num_classes)])


def comparison(num_classes: int = 6, names: list[str] | None = None) -> Comparison:
    """Two label audits of the same samples."""
    return compare(label_report(num_classes, seed=1, names=names), label_report(num_classes, seed=2, names=names))
