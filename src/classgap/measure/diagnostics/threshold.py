"""Two classes: what the threshold of the positive class does to the accuracy of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide
from classgap.measure.render.plain import records, structured
from classgap.measure.statistics.intervals import wilson
from classgap.predictions.binary import positive_probability

_GRID = np.arange(1, 10) / 10
_CURVE = 200  # points of the curve in the page


@dataclass(frozen=True, eq=False)
class Threshold:
    """Accuracy of both classes by threshold.

    Attributes:
        positive: Name of the class that is predicted where its probability is at least the threshold; ``negative``: the other.
        used: The threshold of the audited predictions; nan if they were not made with a threshold.
        table: Structured array: ``threshold, positive_accuracy, positive_low, positive_high, negative_accuracy, negative_low,
            negative_high, overall, balanced, precision, mark``; ``mark`` names special thresholds. Thresholds marked "equal
            accuracy" and "highest balanced accuracy" were found on these samples, so their numbers are slightly too good.
        curve: The same thresholds as the table and about 200 others: ``threshold, positive, negative``.
    """

    positive: str
    negative: str
    used: float
    table: NDArray[np.void]
    curve: NDArray[np.void]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"positive": self.positive, "negative": self.negative, "used": self.used, "table": records(self.table)}


def describe(
    scores: NDArray[Any],
    kind: str,
    y_true: Ints,
    classes: tuple[str, ...],
    *,
    positive: int,
    used: float | None,
    confidence: float,
) -> Threshold:
    """The table and the curve for two classes."""
    chance = positive_probability(scores, kind, positive)
    sides = [np.sort(chance[y_true == k]) for k in (positive, 1 - positive)]
    everywhere = np.unique(np.concatenate([chance, [0.0, 1.0]]))
    first, second = _accuracies(sides, everywhere)
    marks = {float(everywhere[np.nanargmin(np.abs(first - second))]): "equal accuracy"} if len(everywhere) else {}
    balanced = (first + second) / 2
    marks[float(everywhere[np.nanargmax(balanced)])] = "highest balanced accuracy"
    if used is not None:
        marks[float(used)] = "used here"
    chosen = np.unique(np.concatenate([_GRID, list(marks)]))
    return Threshold(
        positive=classes[positive],
        negative=classes[1 - positive],
        used=float("nan") if used is None else float(used),
        table=_table(sides, chosen, marks, confidence),
        curve=_curve(sides, np.unique(np.concatenate([chosen, everywhere[:: max(1, len(everywhere) // _CURVE)]]))),
    )


def _accuracies(sides: list[Float64s], threshold: Float64s) -> tuple[Float64s, Float64s]:
    """Share of positive samples at or above, and of negative samples below, each threshold."""
    below = [np.searchsorted(side, threshold, side="left") for side in sides]
    return divide(len(sides[0]) - below[0], len(sides[0])), divide(below[1], len(sides[1]))


def _table(sides: list[Float64s], chosen: Float64s, marks: dict[float, str], confidence: float) -> NDArray[np.void]:
    first, second = _accuracies(sides, chosen)
    sizes = [len(side) for side in sides]
    hits = np.nan_to_num(first) * sizes[0]
    kept = np.nan_to_num(second) * sizes[1]
    low, high = wilson(first, np.full(len(chosen), sizes[0]), confidence)
    other_low, other_high = wilson(second, np.full(len(chosen), sizes[1]), confidence)
    return structured({
        "threshold": chosen, "positive_accuracy": first, "positive_low": low, "positive_high": high, "negative_accuracy": second,
        "negative_low": other_low, "negative_high": other_high, "overall": (hits + kept) / sum(sizes),
        "balanced": (first + second) / 2, "precision": divide(hits, hits + sizes[1] - kept),
        "mark": np.array([marks.get(float(value), "") for value in chosen]),
    })  # fmt: skip


def _curve(sides: list[Float64s], chosen: Float64s) -> NDArray[np.void]:
    first, second = _accuracies(sides, chosen)
    return structured({"threshold": chosen, "positive": first, "negative": second})
