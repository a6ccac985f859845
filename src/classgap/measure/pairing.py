"""The two sides of a comparison: read, audited, and checked to hold the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.measure.audit_report import AuditReport
from classgap.measure.auditing import audit
from classgap.predictions import Columns, Predictions, align
from classgap.predictions.spelling import in_one_spelling
from classgap.predictions.tables import is_frame

Side = Any
"""Predictions, an audit, the path of a prediction file or a table; or a sequence of one of these, one per training seed."""


def several_runs(side: Side) -> list[Any]:
    """One side of a comparison as a list of runs."""
    runs = list(side) if isinstance(side, (list, tuple)) else [side]
    if not runs:
        raise InputError("before and after must each hold at least one run, got an empty sequence")
    return runs


def read_run(run: Any, columns: Columns, class_names: Sequence[str] | None) -> AuditReport | Predictions:
    if isinstance(run, (AuditReport, Predictions)):
        return run
    if isinstance(run, (str, Path)):
        return Predictions.read(run, columns, class_names=class_names, rows=True)
    if is_frame(run):
        return Predictions.from_frame(run, columns, class_names=class_names, rows=True)
    raise InputError(
        f"before and after must be predictions, audits, files or tables, got {type(run).__name__}; "
        "for arrays pass audit(y_true, y_pred)"
    )


def audited_sides(
    before: Sequence[AuditReport | Predictions],
    after: Sequence[AuditReport | Predictions],
    confidence: float,
    seed: int,
    common: bool,
) -> tuple[tuple[AuditReport, ...], tuple[AuditReport, ...]]:
    """Audits of both sides; predictions with sample ids are first brought into the same order.

    Classes have one spelling in all of them: 1.0 in a CSV file is 1 in an array.
    """
    runs = [*before, *after]
    runs = [
        _renamed(run, names) for run, names in zip(runs, in_one_spelling([run.classes for run in runs]), strict=True)
    ]
    if all(isinstance(run, Predictions) for run in runs):
        runs = list(align([run for run in runs if isinstance(run, Predictions)], common=common))
    elif common:
        raise InputError("common=True needs predictions, files or tables with sample ids; audits cannot be reduced")
    reports = tuple(
        run if isinstance(run, AuditReport) else audit(run.labels_only(), confidence=confidence, seed=seed)
        for run in runs
    )
    for report in reports:
        if report.samples is None:
            raise InputError(
                "predictions that hold only counts cannot be paired; pass predictions with rows, or use compare_counts"
            )
        report.samples.without_weights("compare")
    return reports[: len(before)], reports[len(before) :]


def _renamed(run: AuditReport | Predictions, names: tuple[str, ...]) -> AuditReport | Predictions:
    """The run with other names of its classes."""
    if run.classes == names:
        return run
    if isinstance(run, Predictions):
        return replace(run, classes=names)
    per_class = run.per_class.copy()
    per_class["name"] = names
    samples = None if run.samples is None else replace(run.samples, classes=names)
    return replace(run, classes=names, per_class=per_class, samples=samples)


def common_classes(reports: Sequence[AuditReport]) -> tuple[str, ...]:
    """All class names; the report of one model may lack a class that it never predicts."""
    return tuple(dict.fromkeys(name for report in reports for name in report.classes))


def same_samples(reports: Sequence[AuditReport], classes: tuple[str, ...]) -> tuple[Ints, list[Ints]]:
    """True classes of the samples, and the predicted classes of each run; rows are matched by sample id if all runs have ids."""
    place = {name: k for k, name in enumerate(classes)}
    y_true: Ints | None = None
    predictions = []
    found = [report.samples for report in reports if report.samples is not None]  # all of them, see audited_sides
    for report, samples in zip(reports, _in_one_order(found), strict=True):
        code = np.array([place[name] for name in report.classes])
        truth = code[samples.y_true]
        if y_true is None:
            y_true = truth
        elif len(truth) != len(y_true):
            raise InputError(f"before and after must hold the same samples, got {len(y_true)} and {len(truth)} samples")
        elif (truth != y_true).any():
            rows = np.flatnonzero(truth != y_true)
            raise InputError(
                "before and after must hold the same samples in the same order, but the true labels differ in "
                f"{len(rows)} of {len(truth)} rows (first: row {rows[0]}); {_advice(reports)}"
            )
        predictions.append(code[samples.y_pred])
    assert y_true is not None
    return y_true, predictions


def _in_one_order(runs: Sequence[Predictions]) -> Sequence[Predictions]:
    """The runs with their rows in the order of the first run, if all have sample ids."""
    ids = [run.ids for run in runs if run.ids is not None]
    if len(ids) < len(runs) or all(np.array_equal(ids[0], one) for one in ids):
        return runs
    return align([run.labels_only() for run in runs])


def _advice(reports: Sequence[AuditReport]) -> str:
    """What to do about true labels that differ."""
    if all(report.samples is not None and report.samples.ids is not None for report in reports):
        return "the sample ids agree, so check the labels and the class names of both files"
    return "match the rows by sample id (--id or Columns(id=…)), or sort both files by it"
