"""Each class against all others by its probability: area under the ROC curve and average precision, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Floats, Ints, divide, row_blocks
from classgap.measure.statistics.intervals import wilson, z_value

MAX_ENTRIES = 200_000_000  # samples × classes that are sorted; more would take minutes
_CURVE_POINTS = 100
_STEPS = 60  # of the bisection
_FEW = 10  # with fewer samples on one side, the variance is not estimated


@dataclass(frozen=True, eq=False)
class Ranking:
    """One-against-the-rest curves of the classes, by the probability of the class; nan for a class without samples or with all.

    Attributes:
        auc, average_precision: ``(K,)`` values; ``*_low`` and ``*_high`` are their intervals.
        prevalence: ``(K,)`` share of the samples, which is the average precision of a random ranking.
        curves: Points ``(recall, precision)`` of each class, by class index; at most 100 points.
    """

    auc: Float64s
    auc_low: Float64s
    auc_high: Float64s
    average_precision: Float64s
    average_precision_low: Float64s
    average_precision_high: Float64s
    prevalence: Float64s
    curves: dict[int, tuple[Float64s, Float64s]]

    def columns(self) -> dict[str, Float64s]:
        """Columns of the table of classes."""
        names = ("auc", "auc_low", "auc_high", "average_precision", "average_precision_low", "average_precision_high")
        return {name: getattr(self, name) for name in names}

    def summary(self) -> dict[str, float]:
        """Means over the classes."""
        if np.isnan(self.auc).all():
            return {"mean_auc": float("nan"), "mean_average_precision": float("nan")}
        return {
            "mean_auc": float(np.nanmean(self.auc)),
            "mean_average_precision": float(np.nanmean(self.average_precision)),
        }


def log_odds(logits: Floats) -> Floats:
    """``log(p / (1 - p))`` of every class, as float32: in the order of the probabilities, but without their rounding to 0 and 1.

    Example:
        >>> log_odds(np.array([[0.0, 30.0], [0.0, 40.0]])).tolist()
        [[-30.0, 30.0], [-40.0, 40.0]]
    """
    result = np.empty(logits.shape, np.float32)
    for block in row_blocks(*logits.shape):
        values = logits[block].astype(np.float64)
        rows, top = np.arange(len(values)), values.argmax(axis=1)
        values -= values[rows, top][:, None]
        share = np.exp(values)
        share[rows, top] = 0
        odds = values - np.log1p(share.sum(axis=1, keepdims=True) - share)
        values[rows, top] = -np.inf
        second = values.max(axis=1, keepdims=True)
        odds[rows, top] = -second[:, 0] - np.log(np.exp(values - second).sum(axis=1))
        with np.errstate(over="ignore"):  # beyond float32: infinite
            result[block] = odds
    return result


def describe(scores: NDArray[Any], y_true: Ints, num_classes: int, confidence: float, shown: int) -> Ranking:
    """Both areas of every class, and the curves of the ``shown`` classes with the lowest average precision.

    Args:
        scores: ``(n, K)`` probabilities, or :func:`log_odds` of logits; only their order within a column counts.
    """
    support = np.bincount(y_true, minlength=num_classes)
    auc, variance, precision = np.full((3, num_classes), np.nan)
    for k in np.flatnonzero((support > 0) & (support < len(y_true))):
        sides = scores[y_true == k, k], scores[y_true != k, k]
        (auc[k], variance[k]), precision[k] = roc_area(*sides), average_precision(*sides)
    lowest = np.argsort(precision, kind="stable")[: min(shown, int((~np.isnan(precision)).sum()))]
    curves = {int(k): _curve(scores[y_true == k, k], scores[y_true != k, k]) for k in lowest}
    auc_low, auc_high = auc_interval(auc, variance, support, len(y_true) - support, confidence)
    low, high = wilson(precision, support, confidence)
    return Ranking(auc, auc_low, auc_high, precision, low, high, support / len(y_true), curves)


def roc_area(positive: NDArray[Any], negative: NDArray[Any]) -> tuple[float, float]:
    """Area under the ROC curve and its variance (DeLong et al. 1988, with one more sample of the largest spread per side).

    Example:
        >>> round(roc_area(np.array([0.9, 0.4]), np.array([0.5, 0.1, 0.2]))[0], 4)
        0.8333
    """
    first = _placements(positive, np.sort(negative))
    second = 1 - _placements(negative, np.sort(positive))
    value, least = float(first.mean()), min(len(first), len(second))
    share = (value * least + 0.5) / (least + 1)
    parts = [(((side - value) ** 2).sum() + share * (1 - share)) / len(side) ** 2 for side in (first, second)]
    return value, float(sum(parts))


def _placements(values: NDArray[Any], others: NDArray[Any]) -> Float64s:
    """Share of the sorted ``others`` below each value; ties count half."""
    below, up_to = np.searchsorted(others, values, side="left"), np.searchsorted(others, values, side="right")
    return np.asarray((below + up_to) / (2 * len(others)))


def average_precision(positive: NDArray[Any], negative: NDArray[Any]) -> float:
    """Sum over the recall steps of the precision there; samples with equal scores form one step.

    Example:
        >>> round(average_precision(np.array([0.9, 0.4]), np.array([0.5, 0.1, 0.2])), 4)
        0.8333
    """
    step, hits, precision = _precision(positive, np.sort(negative))
    return float((step * precision).sum() / hits[-1])


def _precision(positive: NDArray[Any], others: NDArray[Any]) -> tuple[Ints, Ints, Float64s]:
    """At every distinct score of a positive sample, highest first: samples there, samples up to there, precision."""
    value, count = np.unique(positive, return_counts=True)
    value, count = value[::-1], count[::-1]
    hits = np.cumsum(count)
    return count, hits, np.asarray(hits / (hits + len(others) - np.searchsorted(others, value, side="left")))


def _curve(positive: NDArray[Any], negative: NDArray[Any]) -> tuple[Float64s, Float64s]:
    _, hits, precision = _precision(positive, np.sort(negative))
    keep = np.unique(np.linspace(0, len(hits) - 1, _CURVE_POINTS).astype(np.int64))
    return np.asarray(hits[keep] / hits[-1]), precision[keep]


def auc_interval(
    auc: Float64s, variance: Float64s, positive: Ints, negative: Ints, confidence: float
) -> tuple[Float64s, Float64s]:
    """Interval of the area under the ROC curve, for any distributions of the scores.

    Wilson's interval at the number of samples that a share with the variance of DeLong et al. would need, together with the
    interval of Newcombe (2006, method 5), which does not collapse for an area of 1. With fewer than 10 samples on one side the
    variance cannot be estimated; the largest possible one is then used, that of a share of this many samples.
    """
    least = np.minimum(positive, negative)
    share = np.clip(auc, 0.5 / (least + 1), 1 - 0.5 / (least + 1))
    size = np.where(least < _FEW, least, np.fmax(divide(share * (1 - share), variance), least))
    low, high = wilson(auc, size, confidence)
    other_low, other_high = _newcombe(auc, positive, negative, confidence)
    return np.minimum(low, other_low), np.maximum(high, other_high)


def _newcombe(auc: Float64s, positive: Ints, negative: Ints, confidence: float) -> tuple[Float64s, Float64s]:
    """Values from which the area does not differ, by the variance of Hanley and McNeil (1982) at the value in question."""
    z = z_value(confidence)
    pairs, extra = np.maximum(positive * negative, 1), (positive + negative) / 2 - 1
    ends = []
    for end in (0.0, 1.0):
        near, far = auc.copy(), np.full(len(auc), end)
        for _ in range(_STEPS):
            value = (near + far) / 2
            spread = 1 + extra * (1 - value) / (2 - value) + extra * value / (1 + value)
            inside = (auc - value) ** 2 <= z**2 * value * (1 - value) * spread / pairs
            near, far = np.where(inside, value, near), np.where(inside, far, value)
        ends.append(near)
    return ends[0], ends[1]
