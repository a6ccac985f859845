"""Metrics of class accuracies and of their inequality: one table, with direction and meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s
from classgap.measure.statistics.groups import THIRDS, Remainder, third_sizes


@dataclass(frozen=True)
class Metric:
    """One aggregate of class accuracies.

    Attributes:
        label: Text for tables.
        meaning: One line for reports and docs.
        higher_is_better: Whether a larger value is better.
        of_sorted: The value from accuracies sorted in descending order along the last axis (without classes that have no
            samples); None for metrics that need more than the accuracies.
    """

    label: str
    meaning: str
    higher_is_better: bool
    of_sorted: Callable[[Float64s], Float64s] | None = None


def _third(which: int, remainder: Remainder = "first") -> Callable[[Float64s], Float64s]:
    def mean(accuracy: Float64s) -> Float64s:
        ends = np.concatenate(([0], np.cumsum(third_sizes(accuracy.shape[-1], remainder))))
        part = accuracy[..., ends[which] : ends[which + 1]]
        return np.asarray(part.mean(-1)) if part.shape[-1] else np.full(accuracy.shape[:-1], np.nan)

    return mean


def worst_decile_size(num_classes: int) -> int:
    """Number of classes in the worst tenth: at least one."""
    return max(1, round(num_classes / 10))


def _worst_decile(accuracy: Float64s) -> Float64s:
    return np.asarray(accuracy[..., -worst_decile_size(accuracy.shape[-1]) :].mean(-1))


def gini_weights(num_classes: int) -> Float64s:
    """Weight of each class, best first; the weighted sum divided by the mean accuracy is the Gini index."""
    return (num_classes - 1 - 2 * np.arange(num_classes)) / max(num_classes, 1) ** 2


def _gini(accuracy: Float64s) -> Float64s:
    """Mean absolute difference of two classes divided by twice the mean; 0 if all are equal (also if all are 0)."""
    mean = accuracy.mean(-1)
    spread = (accuracy * gini_weights(accuracy.shape[-1])).sum(-1)
    return np.asarray(np.divide(spread, mean, out=np.zeros_like(mean), where=mean > 0))


def _harmonic_mean(accuracy: Float64s) -> Float64s:
    zero = accuracy[..., -1] == 0
    inverse = 1 / np.where(accuracy > 0, accuracy, 1)
    return np.asarray(np.where(zero, 0.0, 1 / inverse.mean(-1)))


def _geometric_mean(accuracy: Float64s) -> Float64s:
    zero = accuracy[..., -1] == 0
    return np.asarray(np.where(zero, 0.0, np.exp(np.log(np.where(accuracy > 0, accuracy, 1)).mean(-1))))


METRICS: Mapping[str, Metric] = {
    "overall": Metric("overall accuracy", "share of samples that are predicted correctly", True),
    "balanced": Metric("balanced accuracy", "mean class accuracy", True, lambda a: a.mean(-1)),
    "easy": Metric("easy third", "mean accuracy of the best third of classes", True, _third(0)),
    "medium": Metric("medium third", "mean accuracy of the middle third of classes", True, _third(1)),
    "hard": Metric("hard third", "mean accuracy of the worst third of classes", True, _third(2)),
    "worst": Metric("worst class", "lowest class accuracy", True, lambda a: a[..., -1]),
    "worst_decile": Metric("worst 10 %", "mean accuracy of the worst tenth of classes", True, _worst_decile),
    "gap": Metric("gap", "highest minus lowest class accuracy", False, lambda a: a[..., 0] - a[..., -1]),
    "std": Metric(
        "standard deviation", "standard deviation of class accuracies (divisor K)", False, lambda a: a.std(-1)
    ),
    "gini": Metric("Gini index", "inequality of class accuracies, 0 (equal) to 1", False, _gini),
    "harmonic_mean": Metric(
        "harmonic mean", "harmonic mean of class accuracies; 0 if one of them is 0", True, _harmonic_mean
    ),
    "geometric_mean": Metric(
        "geometric mean", "geometric mean of class accuracies; 0 if one of them is 0", True, _geometric_mean
    ),
}
# The extremes and the spread of K noisy numbers exceed those of the K true numbers; these metrics are also given corrected.
CORRECTED = ("hard", "worst", "worst_decile", "gap", "std")
FROM_ACCURACY = tuple(name for name, metric in METRICS.items() if metric.of_sorted is not None)


def label(name: str) -> str:
    """Text for a metric in a table, also for ``*_corrected`` metrics."""
    base = name.removesuffix("_corrected")
    return METRICS[base].label + (", corrected" if base != name else "")


def evaluate(accuracy: Float64s, names: tuple[str, ...] = FROM_ACCURACY, *, remainder: Remainder = "first") -> Float64s:
    """The named metrics of class accuracies ``(..., K)``, stacked on the last axis: ``(..., len(names))``.

    Example:
        >>> evaluate(np.array([0.9, 0.5, 0.7]), ("balanced", "worst", "gap")).round(3)
        array([0.7, 0.5, 0.4])
    """
    if accuracy.shape[-1] == 0:
        return np.full((*accuracy.shape[:-1], len(names)), np.nan)
    ordered = np.sort(accuracy, axis=-1)[..., ::-1]
    return np.stack([_function(name, remainder)(ordered) for name in names], axis=-1)


def _function(name: str, remainder: Remainder) -> Callable[[Float64s], Float64s]:
    if name in THIRDS:
        return _third(THIRDS.index(name), remainder)
    function = METRICS[name].of_sorted
    if function is None:
        raise KeyError(f"{name} cannot be computed from class accuracies alone")
    return function
