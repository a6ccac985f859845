"""Prediction sets: for each sample the classes that are probable enough, so that the true class is among them in 90 %.

Split conformal prediction: thresholds are set on one half of the samples and evaluated on the other. One threshold for all
classes promises the coverage on average over samples, so hard classes are covered less often. One threshold per class
(label-conditional, Vovk 2012) promises it for every class, often with larger sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, class_means, divide, group_sums, row_blocks
from classgap.measure.statistics.intervals import wilson

COVERAGE = 0.9


@dataclass(frozen=True, eq=False)
class PredictionSetReport:
    """Coverage and size of prediction sets, evaluated on samples that did not set the thresholds; nan for absent classes.

    Attributes:
        coverage: The promised coverage.
        common: ``(K,)`` share of the samples of each class whose set holds their class, with one threshold for all classes.
        per_class: The same with one threshold per class; ``low`` and ``high`` are its intervals.
        common_size, per_class_size: ``(K,)`` mean number of classes in the sets of the samples of each class.
    """

    coverage: float
    common: Float64s
    common_size: Float64s
    per_class: Float64s
    low: Float64s
    high: Float64s
    per_class_size: Float64s
    support: Ints

    def columns(self) -> dict[str, Float64s]:
        """Columns of the table of classes."""
        return {
            "common_set_coverage": self.common,
            "common_set_size": self.common_size,
            "class_set_coverage": self.per_class,
            "class_set_size": self.per_class_size,
        }

    def summary(self) -> dict[str, float]:
        """Means over the samples, and the lowest coverage of a class."""
        weight = divide(self.support, self.support.sum())
        found = {"coverage": self.coverage}
        for name, share, size in (
            ("common", self.common, self.common_size),
            ("class", self.per_class, self.per_class_size),
        ):
            found[f"{name}_set_size"] = float(np.nansum(weight * size))
            found[f"{name}_set_lowest_coverage"] = float(np.nanmin(share))
        return found


def thresholds(true_probability: NDArray[Any], group: Ints, num_groups: int, coverage: float) -> Float64s:
    """Probability from which a class belongs to the set, per group of samples; 0 (always) for a group with too few samples.

    The ``floor((n + 1)(1 - coverage))``-th smallest probability of the true class: a further sample of the group has at least
    this probability with a chance of at least ``coverage``.

    Example:
        >>> thresholds(np.array([0.9, 0.2, 0.5, 0.7]), np.zeros(4, int), 2, 0.6)
        array([0.5, 0. ])
    """
    order = np.lexsort((true_probability, group))
    size = np.bincount(group, minlength=num_groups)
    rank = np.floor((size + 1) * (1 - coverage) + 1e-9).astype(np.int64)
    start = np.cumsum(size) - size
    usable = rank > 0
    found = np.zeros(num_groups)
    found[usable] = true_probability[order[(start + rank - 1)[usable]]]
    return found


def describe(
    probabilities: NDArray[Any], y_true: Ints, num_classes: int, confidence: float, rng: np.random.Generator
) -> PredictionSetReport:
    """Coverage and size by two-fold cross-fitting: each half is evaluated with the thresholds of the other."""
    own = probabilities[np.arange(len(y_true)), y_true]
    half = _halves(y_true, rng)
    held, sizes = np.zeros((2, len(y_true))), np.zeros((2, len(y_true)))
    for fold in (0, 1):
        fit, rows = half != fold, np.flatnonzero(half == fold)
        common = np.full(num_classes, thresholds(own[fit], np.zeros(int(fit.sum()), np.int64), 1, COVERAGE)[0])
        for i, limit in enumerate((common, thresholds(own[fit], y_true[fit], num_classes, COVERAGE))):
            held[i, rows] = own[rows] >= limit[y_true[rows]]
            for block in row_blocks(len(rows), num_classes):
                sizes[i, rows[block]] = (probabilities[rows[block]] >= limit).sum(1)
    support = np.bincount(y_true, minlength=num_classes)
    share = [class_means(found, y_true, num_classes) for found in held]
    size = [divide(group_sums(found, y_true, num_classes), support) for found in sizes]
    low, high = wilson(share[1], support, confidence)
    return PredictionSetReport(COVERAGE, share[0], size[0], share[1], low, high, size[1], support)


def _halves(y_true: Ints, rng: np.random.Generator) -> Ints:
    """A random half of every class; the odd sample goes to either half by chance."""
    order = rng.permutation(len(y_true))
    order = order[np.argsort(y_true[order], kind="stable")]
    counts = np.bincount(y_true)
    rank = np.arange(len(y_true)) - (np.cumsum(counts) - counts)[y_true[order]]
    half = np.empty(len(y_true), dtype=np.int64)
    half[order] = (rank + rng.integers(2, size=len(counts))[y_true[order]]) % 2
    return half
