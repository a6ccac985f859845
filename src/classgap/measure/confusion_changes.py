"""Confusions before and after a change: how often each class is predicted instead of another on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from classgap.arrays import Float64s, Ints, divide

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Comparison


def confusion_changes(comparison: Comparison, n: int | None) -> dict[str, list[Any]]:
    """The columns of :meth:`Comparison.confusions`: at most ``n`` confused pairs, largest change first."""
    sides = [_confusions(side, comparison.classes) for side in (comparison.before, comparison.after)]
    pairs = np.unique(np.concatenate([keys for keys, _ in sides]))
    true, predicted = np.divmod(pairs, comparison.num_classes)
    counts = [np.bincount(np.searchsorted(pairs, keys), values, len(pairs)) for keys, values in sides]
    support = comparison.per_class["support"][true]
    change = counts[1] - counts[0]
    order = np.lexsort((predicted, true, -(counts[0] + counts[1]), -np.abs(change)))[:n]
    names = np.asarray(comparison.classes, dtype=object)
    columns: dict[str, Any] = {
        "true": names[true],
        "predicted": names[predicted],
        "before": counts[0],
        "after": counts[1],
        "change": change,
        "share_before": divide(counts[0], support),
        "share_after": divide(counts[1], support),
    }
    return {name: values[order].tolist() for name, values in columns.items()}


def _confusions(reports: Sequence[AuditReport], classes: Sequence[str]) -> tuple[Ints, Float64s]:
    """Confused pairs of the runs of a side as ``true * K + predicted``, and their counts divided by the number of runs.

    Classes are numbered in the order of ``classes``; a run may lack a class that it never predicts.
    """
    place = {name: k for k, name in enumerate(classes)}
    keys, values = [], []
    for report in reports:
        code = np.array([place[name] for name in report.classes])
        true, predicted, count = report.confusion.off_diagonal()
        keys.append(code[true] * len(place) + code[predicted])
        values.append(count / len(reports))
    return np.concatenate(keys), np.concatenate(values)
