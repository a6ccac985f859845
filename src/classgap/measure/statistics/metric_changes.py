"""Differences of the metrics that depend on a ranking (thirds, worst class, gap, …), and of the means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from classgap.arrays import Float64s, Ints
from classgap.measure.audit_report import Estimate
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.estimating import Estimates, estimate_metrics
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.intervals import replicate_blocks
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate
from classgap.measure.statistics.pooling import Pooled, group_changes, half_width, pool, variance_between

SMALL = 8  # fewer samples per class do not determine the differences of the true accuracies
SMALL_SHARE = 0.1  # of the classes: if more of them are that small, no third is determined
SMALL_ALONE = 15  # a metric that a single class determines needs at least this many samples per class
ONE_CLASS_DECIDES = ("worst", "worst_decile", "gap", "harmonic_mean", "geometric_mean")
_UNCERTAIN_NOISE = 0.5  # share of the removed noise of each side that is regarded as uncertain


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after, pooled over the runs of each side, and its difference."""

    before: Estimate
    after: Estimate
    delta: Pooled


def metric_changes(
    cells: Cells, *, n_boot: int, confidence: float, rng: np.random.Generator, remainder: Remainder
) -> dict[str, MetricChange]:
    """Before, after and delta of every metric under each run's own ranking.

    Overall and balanced accuracy are weighted means (:func:`group_changes`). The noise of the other differences is measured
    by exchanging *before* and *after* at random, sample by sample: under "no difference" every such exchange is as likely as
    what was seen, so the interval excludes 0 in at most the stated share of cases, for any metric and any class size.
    It is widened where the difference is not 0 and the sampling noise of the two sides need not cancel: it holds the
    noise-corrected difference too (:mod:`classgap.measure.statistics.deconvolution`), with half of what was removed regarded as
    uncertain, and where classes are small (:data:`SMALL`, :data:`SMALL_ALONE`) it is as wide as each side's own interval for
    the truth.
    """
    runs = _estimate_runs(cells, confidence, n_boot, rng, remainder)
    spread = _exchange_spread(cells, confidence, n_boot, rng, remainder)
    linear = mean_changes(cells)
    decided = _decided_by_small_classes(cells.support)
    results = {}
    for m, name in enumerate(METRIC_NAMES):
        estimates = [run.metrics[name] for run in runs]
        by_seed = np.array([estimate.value for estimate in estimates])
        delta = linear.get(name)
        if delta is None:
            sampling = float(spread[m]) ** 2
            noise_between = _seed_share(cells) * sampling * (cells.num_before * cells.num_after / len(runs))
            sides = _sides(cells, [run.clean[name] - run.metrics[name].value for run in runs])
            delta = replace(
                pool(cells, "delta", by_seed, sampling, noise_between),
                shift=sides[1] - sides[0],
                slack=_UNCERTAIN_NOISE * float(np.hypot(*sides)),
                outer=_outer(cells, estimates) if name in decided else None,
            )
        levels = _levels(cells, estimates, confidence)
        results[name] = MetricChange(*levels, delta)
    return results


METRIC_NAMES = ("overall", *FROM_ACCURACY)


def _estimate_runs(
    cells: Cells, confidence: float, draws: int, rng: np.random.Generator, remainder: Remainder
) -> list[Estimates]:
    """Estimates of every single run."""
    hits = np.rint(np.nan_to_num(cells.accuracy) * cells.support[:, None]).astype(np.int64)
    settings: dict[str, Any] = {"confidence": confidence, "draws": min(draws, 200), "remainder": remainder}
    return [estimate_metrics(column, cells.support, rng=rng, **settings) for column in hits.T]


def _exchange_spread(
    cells: Cells, confidence: float, n_boot: int, rng: np.random.Generator, remainder: Remainder
) -> Float64s:
    """Standard error of every metric's difference such that a normal interval ends where few exchanges go beyond."""
    from scipy.special import ndtri

    share = cells.support[cells.support > 0] / cells.support.sum()

    def evaluated(accuracy: Float64s) -> Float64s:
        overall = (accuracy * share).sum(-1, keepdims=True)
        return np.concatenate([overall, evaluate(accuracy, remainder=remainder)], axis=-1)

    exchanged = np.concatenate(
        [evaluated(_exchange(cells, block, rng)) for block in replicate_blocks(n_boot, len(cells.count))]
    )  # (B, 2, M)
    noise = np.abs(exchanged[:, 1] - exchanged[:, 0])
    # the smallest bound that at most the stated share of exchanges exceeds, what was seen being one of them
    place = min(len(noise) - 1, int(np.ceil(confidence * (len(noise) + 1))) - 1)
    return np.asarray(np.maximum(np.sort(noise, axis=0)[place] / ndtri((1 + confidence) / 2), noise.std(0)))


def mean_changes(cells: Cells) -> dict[str, Pooled]:
    """Differences of the means over samples and over classes."""
    present = cells.support > 0
    weight = np.stack([cells.support / cells.support.sum(), present / present.sum()])
    found = group_changes(cells, weight**2, weight @ np.nan_to_num(cells.accuracy))
    return {"overall": found[0]["delta"], "balanced": found[1]["delta"]}


def _sides(cells: Cells, by_run: Sequence[float]) -> tuple[float, float]:
    """Mean over the runs before and over the runs after."""
    split = cells.num_before
    return float(np.mean(by_run[:split])), float(np.mean(by_run[split:]))


def _outer(cells: Cells, estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Differences between the ends of each side's intervals for the true accuracies."""
    lows, highs = (_sides(cells, [getattr(e, end) for e in estimates]) for end in ("low", "high"))
    return lows[1] - highs[0], highs[1] - lows[0]


def _levels(cells: Cells, estimates: Sequence[Estimate], confidence: float) -> tuple[Estimate, Estimate]:
    """Mean estimate of each side; with several runs the variance between them is added to the distance of both ends."""
    values, lows, highs = (_sides(cells, [getattr(e, end) for e in estimates]) for end in ("value", "low", "high"))
    between = float(variance_between(cells, np.array([e.value for e in estimates]))) if len(estimates) > 2 else 0.0
    sides = []
    for value, low, high, runs in zip(values, lows, highs, (cells.num_before, cells.num_after), strict=True):
        extra = float(half_width(0.0, between / runs, len(estimates) - 2, (1 - confidence) / 2)) if between else 0.0
        below, above = np.hypot(value - low, extra), np.hypot(high - value, extra)
        sides.append(Estimate(value, float(np.maximum(0.0, value - below)), float(np.minimum(1.0, value + above))))
    return sides[0], sides[1]


def _seed_share(cells: Cells) -> float:
    """Share of the sampling variance of the mean change that also shows between the runs of a side."""
    if cells.paired_once:
        return 0.0
    change = (cells.after - cells.before) ** 2
    total = float((cells.count * change).sum())
    scale = 1 / cells.num_before + 1 / cells.num_after
    between = scale * float((cells.support * np.nan_to_num(cells.seed_noise)).sum())
    return min(1.0, between / total) if total > 0 else 0.0


def _decided_by_small_classes(support: Ints) -> tuple[str, ...]:
    """Metrics whose truth the samples do not tell: all ranked ones where many classes are small (:data:`SMALL_SHARE`), and
    those that a single class decides where any class is (:data:`SMALL_ALONE`).
    """
    size = support[support > 0]
    if many_small(size):
        return FROM_ACCURACY
    return ONE_CLASS_DECIDES if size.min() < SMALL_ALONE else ()


def many_small(size: Ints) -> bool:
    """Whether so many classes are small that they decide which classes are in which third."""
    return bool((size < SMALL).mean() > SMALL_SHARE)


def _exchange(cells: Cells, size: int, rng: np.random.Generator) -> Float64s:
    """Class accuracies ``(size, 2, K present)`` of *before* and *after*, exchanged in half of each cell's samples at random.

    With several runs per side a sample's value is its share of runs that are right.
    """
    starts = np.flatnonzero(np.concatenate(([True], cells.class_of[1:] != cells.class_of[:-1])))
    support = np.add.reduceat(cells.count, starts)
    change = cells.after - cells.before
    moved = np.flatnonzero(change != 0)
    total = np.add.reduceat(cells.count * (cells.before + cells.after), starts)
    owner = np.searchsorted(starts, moved, side="right") - 1
    flipped = rng.binomial(cells.count[moved], 0.5, size=(size, len(moved)))
    by_cell = (2 * flipped - cells.count[moved]) * change[moved]
    difference = np.zeros((size, len(starts)))
    if len(moved):
        first = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
        difference[:, owner[first]] = np.add.reduceat(by_cell, first, axis=1)
    return np.asarray(np.stack([total - difference, total + difference], axis=1) / (2 * support))
