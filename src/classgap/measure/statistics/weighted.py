"""Weighted samples: class accuracies with weights, and the number of samples that they are worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from classgap.arrays import Float64s, Ints, divide, group_sums
from classgap.measure.audit_report import Estimate
from classgap.measure.statistics.estimating import Estimates
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.intervals import wilson
from classgap.measure.statistics.metrics import CORRECTED, FROM_ACCURACY, evaluate


@dataclass(frozen=True, eq=False)
class Weighted:
    """Weighted shares per class.

    Attributes:
        accuracy, precision, f1: ``(K,)`` weighted; nan where a class has no weight.
        size: ``(K,)`` effective number of samples, see :func:`effective_size`.
        overall: Weighted overall accuracy.
    """

    accuracy: Float64s
    precision: Float64s
    f1: Float64s
    size: Float64s
    overall: Estimate

    @cached_property
    def support(self) -> Ints:
        """Effective numbers of samples as whole numbers, rounded down but at least 1 where a class has weight."""
        return np.where(self.size > 0, np.maximum(np.floor(self.size + 1e-9), 1), 0).astype(np.int64)

    @cached_property
    def correct(self) -> Ints:
        """Whole numbers of correct predictions, whose mean accuracy is that of the classes (:func:`_whole`)."""
        return _whole(np.nan_to_num(self.accuracy), self.support)

    @cached_property
    def inflation(self) -> float:
        """Mean variance of ``correct``, relative to that of samples of the same number: whole numbers vary more than accuracies.

        :func:`~classgap.measure.statistics.noise.homogeneity` needs it, so that classes of equal accuracy do not seem to differ.
        """
        used = self.size > 0
        size, support = self.size[used], self.support[used]
        part = self.accuracy[used] * support % 1
        binomial = self.overall.value * (1 - self.overall.value)
        if binomial == 0:
            return 1.0
        return max(1.0, float((support / size + part * (1 - part) / (support * binomial)).mean()))


def _whole(accuracy: Float64s, support: Ints) -> Ints:
    """Numbers of correct predictions next to ``accuracy * support``, above or below, such that the mean accuracy is kept.

    The nearest numbers would be biased: of two samples in three that are worth 2 samples, 1 is correct in every class. The
    error of each class is passed on to the next class of similar size and accuracy.
    """
    exact = accuracy * support
    correct = np.floor(exact + 1e-9)
    part = np.maximum(exact - correct, 0.0)
    carried = 0.0  # accuracy that the classes so far lack
    for k in np.lexsort((accuracy, support)):
        if part[k] > 1e-9:
            correct[k] += carried * support[k] + part[k] >= 0.5
            carried += (exact[k] - correct[k]) / support[k]
    return correct.astype(np.int64)


def weigh(y_true: Ints, y_pred: Ints, weight: Float64s, num_classes: int, confidence: float) -> Weighted:
    """Weighted accuracy, precision and effective size of every class."""
    right = (y_true == y_pred).astype(np.float64)
    total = group_sums(weight, y_true, num_classes)
    hits = group_sums(weight * right, y_true, num_classes)
    predicted = group_sums(weight, y_pred, num_classes)
    accuracy = divide(hits, total)
    size = effective_size(right, weight, y_true, num_classes)
    everything = np.zeros(len(y_true), dtype=np.int64)
    share = np.array([float((weight * right).sum() / weight.sum())])
    low, high = wilson(share, effective_size(right, weight, everything, 1), confidence)
    f1 = np.where(total > 0, divide(2 * hits, total + predicted), np.nan)
    overall = Estimate(float(share[0]), float(low[0]), float(high[0]))
    return Weighted(accuracy, divide(hits, predicted), f1, size, overall)


def effective_size(right: Float64s, weight: Float64s, group: Ints, num_groups: int) -> Float64s:
    r"""Number of equally weighted samples with the same information about the share of ``right`` in each group.

    The smaller of two numbers: Kish's :math:`(\sum w)^2 / \sum w^2`, and the size at which a share would have the
    variance :math:`\sum w^2 (r - \hat p)^2 / (\sum w)^2`, which is larger if heavy samples are wrong (or right) more often.

    Example:
        >>> effective_size(np.array([1.0, 0.0, 1.0]), np.array([1.0, 1.0, 2.0]), np.zeros(3, int), 1).round(3)
        array([2.667])
    """
    total, squares = group_sums(weight, group, num_groups), group_sums(weight**2, group, num_groups)
    share = np.nan_to_num(divide(group_sums(weight * right, group, num_groups), total))
    spread = group_sums(weight**2 * (right - share[group]) ** 2, group, num_groups)
    kish = np.nan_to_num(divide(total**2, squares))
    by_variance = divide(share * (1 - share) * total**2, spread)
    return np.asarray(np.fmin(kish, by_variance))


def with_values(found: Estimates, weighted: Weighted, remainder: Remainder) -> Estimates:
    """Estimates from effective counts, with the observed values replaced by those of the exact weighted accuracies."""
    accuracy = weighted.accuracy[weighted.size > 0]
    exact = dict(zip(FROM_ACCURACY, np.clip(evaluate(accuracy, remainder=remainder), 0, 1).tolist(), strict=True))
    metrics = {**found.metrics, "overall": weighted.overall}
    for name, value in exact.items():
        metrics[name] = _including(value, found.metrics[name])
    for name in CORRECTED:
        value = found.metrics[f"{name}_corrected"].value
        lowest = min(max(value, exact[name]), exact["balanced"])
        limit = min(value, exact[name]) if name in ("gap", "std") else lowest
        metrics[f"{name}_corrected"] = _including(limit, metrics[name])
    return replace(found, metrics=metrics)


def _including(value: float, estimate: Estimate) -> Estimate:
    if np.isnan(value):
        return Estimate(value, value, value)
    return Estimate(value, min(estimate.low, value), max(estimate.high, value))
