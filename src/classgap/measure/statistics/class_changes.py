"""Differences of single classes between models before and after, with McNemar's exact test for one run per side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s, Ints, divide
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.pooling import half_width, variance_between

_BORROWED_FREEDOM = 4  # weight of the mean over classes in the seed variance of each class, in seeds


@dataclass(frozen=True, eq=False)
class ClassChanges:
    """Per class: paired difference with interval and p-value, and the numbers of samples that became correct or wrong."""

    delta: Float64s
    low: Float64s
    high: Float64s
    gained: Float64s
    lost: Float64s
    p_value: Float64s


def class_changes(cells: Cells, confidence: float) -> ClassChanges:
    """Differences of single classes.

    Intervals are Bonett and Price's (one pseudo-sample each way) plus the variance between seeds, which is shrunk
    towards the mean over classes: with few seeds, the estimate of a single class can be much too small by chance. With
    one run per side the p-value is McNemar's exact test with mid-p; with several runs it is derived from the interval.
    """
    change = cells.after - cells.before
    gained = cells.class_sum((1 - cells.before) * cells.after)
    lost = cells.class_sum(cells.before * (1 - cells.after))
    sums, squares = cells.class_sum(change), cells.class_sum(change**2)
    size = cells.support + 2
    sampling = ((squares + 2) / size - (sums / size) ** 2) / size
    seeds, freedom = np.zeros(cells.num_classes), 0
    if not cells.paired_once:
        scale = 1 / cells.num_before + 1 / cells.num_after
        noise = scale * np.nan_to_num(cells.seed_noise) / np.maximum(cells.support, 1)
        sampling = np.maximum(sampling - noise, 0)
        between = np.nan_to_num(variance_between(cells, cells.accuracy))
        own = cells.right.shape[1] - 2
        freedom = own + _BORROWED_FREEDOM
        typical = between[cells.support > 0].mean()
        seeds = scale * (own * between + _BORROWED_FREEDOM * typical) / freedom
    delta = divide(sums, cells.support)
    half = half_width(sampling, seeds, freedom, (1 - confidence) / 2)
    low, high = np.minimum(sums / size - half, delta), np.maximum(sums / size + half, delta)
    if cells.paired_once:
        p_value = mcnemar(gained.astype(np.int64), lost.astype(np.int64))
    else:
        p_value = _p_value(np.abs(sums / size), sampling, seeds, freedom)
    p_value = np.where(cells.support > 0, p_value, np.nan)
    return ClassChanges(delta, np.maximum(low, -1), np.minimum(high, 1), gained, lost, p_value)


def _p_value(distance: Float64s, sampling: Float64s, seeds: Float64s, freedom: int) -> Float64s:
    """Two-sided p-values: twice the tail whose half-width just reaches ``distance``, found by bisection."""
    low, high = np.full(len(distance), -50.0), np.full(len(distance), np.log(0.5))  # log of the tail
    for _ in range(60):
        middle = (low + high) / 2
        wide = half_width(sampling, seeds, freedom, np.exp(middle)) > distance
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return np.asarray(2 * np.exp(high))


def mcnemar(gained: Ints, lost: Ints) -> Float64s:
    """Exact two-sided McNemar p-values with mid-p correction: half the weight of the observed table.

    Example:
        >>> mcnemar(np.array([0, 8]), np.array([0, 1])).round(4)
        array([1.    , 0.0215])
    """
    from scipy.special import bdtr

    fewer, total = np.minimum(gained, lost), gained + lost
    below = np.where(fewer > 0, bdtr(np.maximum(fewer - 1, 0), np.maximum(total, 1), 0.5), 0.0)
    up_to = bdtr(fewer, np.maximum(total, 1), 0.5)
    return np.where(gained == lost, 1.0, np.minimum(1.0, below + up_to))
