"""The few numbers a trainer can log, from counts per class; the same as in an audit, without intervals. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from classgap.arrays import Float64s, Ints, divide
from classgap.measure.audit_report import HEADLINES
from classgap.measure.statistics.metrics import evaluate


def class_scalars(right: ArrayLike, support: ArrayLike) -> dict[str, float]:
    """Headline numbers of an audit from counts per class.

    Args:
        right: ``(K,)`` samples of each class that were classified correctly.
        support: ``(K,)`` samples of each class; a class without samples is left out.
    Returns:
        ``overall, balanced, easy, medium, hard, worst, worst_decile, gap``, as fractions; nan without any sample.
    Example:
        >>> class_scalars([9, 5, 0], [10, 10, 0])["gap"]
        0.4
    """
    hits, counts = np.asarray(right, dtype=np.float64), np.asarray(support, dtype=np.float64)
    names = tuple(name for name in HEADLINES if name != "overall")
    values = evaluate(hits[counts > 0] / counts[counts > 0], names)
    overall = float(hits.sum() / counts.sum()) if counts.sum() else float("nan")
    return {"overall": overall, **dict(zip(names, values.tolist(), strict=True))}


def class_counts(y_true: Ints, y_pred: Ints, num_classes: int) -> tuple[Ints, Ints]:
    """``(right, support)``, each ``(K,)``, for class indices."""
    support = np.bincount(y_true, minlength=num_classes)
    return np.bincount(y_true[y_true == y_pred], minlength=num_classes), support


def class_accuracy(right: ArrayLike, support: ArrayLike) -> Float64s:
    """``(K,)`` accuracy of each class; nan for a class without samples."""
    return divide(np.asarray(right, dtype=np.float64), np.asarray(support, dtype=np.float64))


def prefixed(values: dict[str, float], prefix: str) -> dict[str, Any]:
    """The same values under names with a prefix."""
    return {f"{prefix}{name}": value for name, value in values.items()}
