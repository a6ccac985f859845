"""Paired statistics: predictions of models before and after for the same samples, with one or several runs per side.

Two things vary: the samples of the test set and, with several seeds per side, the training. A difference is the mean over seeds
after minus the mean over seeds before. Its variance has two parts: the sampling variance, common to all seeds, and the variance
between seeds (estimated within each side and pooled over both sides). The interval is ``value ± sqrt(z² · first + t² · second)``:
the second part is estimated from few seeds, hence Student's t. With one seed per side it is unknown and not included. What the
choice of samples alone puts between seeds is known better than from few seeds, so the interval is never narrower than with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from classgap.arrays import Float64s, divide
from classgap.measure.audit_report import Estimate
from classgap.measure.statistics.cells import Cells

# For each view, the weight of the mean over seeds before and after.
VIEWS = {"before": (1, 0), "after": (0, 1), "delta": (-1, 1)}


@dataclass(frozen=True)
class Pooled:
    """A number pooled over samples and seeds, its two variances, and the degrees of freedom of the second."""

    value: float
    sampling: float
    seeds: float
    freedom: int
    shift: float = 0.0  # the interval has a second centre: value + shift
    slack: float = 0.0  # added to each side
    outer: tuple[float, float] | None = None  # the interval is never narrower than this
    least: float = 0.0  # nor than with this sampling variance alone: two seeds may agree by chance

    def at(self, confidence: float, *, low: float = -1.0, high: float = 1.0) -> Estimate:
        """The estimate with its interval, clipped to what is possible; all nan if the value is."""
        if np.isnan(self.value):
            return Estimate(np.nan, np.nan, np.nan)
        tail = (1 - confidence) / 2
        half = float(half_width(self.sampling, self.seeds, self.freedom, tail))
        half = max(half, float(half_width(self.least, 0.0, 0, tail))) + self.slack
        bottom, top = self.value + min(0.0, self.shift) - half, self.value + max(0.0, self.shift) + half
        if self.outer is not None:
            bottom, top = min(bottom, self.outer[0]), max(top, self.outer[1])
        return Estimate(self.value, max(low, bottom), min(high, top))


def half_width(sampling: Any, seeds: Any, freedom: int, tail: Any) -> Any:
    """Half the width of the interval that leaves ``tail`` on each side."""
    from scipy.special import ndtri, stdtrit

    normal = ndtri(tail) ** 2
    return np.sqrt(normal * sampling + (stdtrit(freedom, tail) ** 2 * seeds if freedom else 0.0))


def pool(cells: Cells, view: str, by_seed: Float64s, sampling: float, seed_noise: float) -> Pooled:
    """A number for each run ``(S,)`` as before, after or delta.

    Args:
        sampling: Variance of the view's seed-averaged number from the choice of samples.
        seed_noise: Variance that the choice of samples alone puts between runs of one side.
    """
    split = cells.num_before
    signs = VIEWS[view]
    value = float(signs[0] * by_seed[:split].mean() + signs[1] * by_seed[split:].mean())
    freedom = len(by_seed) - 2
    if freedom == 0:
        return Pooled(value, sampling, 0.0, 0)
    scale = abs(signs[0]) / split + abs(signs[1]) / cells.num_after
    common = max(0.0, sampling - scale * seed_noise)
    return Pooled(value, common, scale * variance_between(cells, by_seed), freedom, least=sampling)


def variance_between(cells: Cells, by_seed: Float64s) -> Any:
    """Variance between runs of a side along the last axis, pooled over both sides."""
    sides = by_seed[..., : cells.num_before], by_seed[..., cells.num_before :]
    squares = sum(((side - side.mean(-1, keepdims=True)) ** 2).sum(-1) for side in sides)
    return squares / (by_seed.shape[-1] - 2)


def group_changes(cells: Cells, squared: Float64s, by_seed: Float64s) -> list[dict[str, Pooled]]:
    """Before, after and delta of groups of classes.

    Args:
        squared: ``(G, K)`` squared weights of the classes in each group, for the variances.
        by_seed: ``(G, S)`` the group's number for every run.
    """
    size = np.maximum(cells.support, 1)
    results = []
    for row, values in zip(squared, by_seed, strict=True):
        noise = float((row * np.nan_to_num(cells.seed_noise) / size).sum())
        results.append({view: pool(cells, view, values, _sampling_variance(cells, row, view), noise) for view in VIEWS})
    return results


def _sampling_variance(cells: Cells, squared: Float64s, view: str) -> float:
    """Variance of a weighted mean of class means, for classes of any size.

    A sample of weight ``w`` that changed by ``d`` adds ``w² d²``: the variance it has if gains and losses are equally
    likely, which needs no second sample of its class. Of the square of a class's mean change, the share
    ``(n - 1) / (n + 9)`` is taken off: nothing with one sample, nearly all with many. Two further changed samples, with the
    weight that the changed samples have on average, keep a group in which few samples changed from looking certain.
    For the accuracies before and after (``view``), the variance within classes is estimated from classes with two
    samples or more, with one pseudo-sample of the variance within the group as a whole.
    """
    signs = VIEWS[view]
    value = signs[0] * cells.before + signs[1] * cells.after
    size = np.maximum(cells.support, 1)
    mean = np.nan_to_num(divide(cells.class_sum(value), cells.support))
    square = cells.class_sum(value**2)
    member = squared > 0
    if not member.any():
        return 0.0
    if view == "delta":
        spread = square - (size - 1) / (size + 9) * size * mean**2
        weight = squared / size**2  # of one sample
        changed = square + cells.support / cells.support[member].sum()
        extra = 2 * (weight**2 * changed).sum() / (weight * changed).sum()
        typical = square[member].sum() / cells.support[member].sum()
        return float((weight * (spread + 0.5 * typical * member)).sum() + extra)
    centre = cells.class_sum(value)[member].sum() / cells.support[member].sum()
    typical = (square[member].sum() + 1) / (cells.support[member].sum() + 2) - centre**2
    return float((squared * (square - size * mean**2 + max(typical, 0.0)) / size**2).sum())
