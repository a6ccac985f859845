"""Paired statistics: predictions of models before and after for the same samples, with one or several runs per side.

Two things vary: the samples of the test set and, with several seeds per side, the training. A difference is the mean over seeds
after minus the mean over seeds before. Its variance has two parts: the sampling variance, common to all seeds, and the variance
between seeds (estimated within each side and pooled over both sides). The interval is ``value ± sqrt(z² · first + t² · second)``:
the second part is estimated from few seeds, hence Student's t. With one seed per side it is unknown and not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide, group_sums
from classgap.measure.audit_report import Estimate
from classgap.measure.statistics.estimating import Estimates, estimate_metrics
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.intervals import replicate_blocks
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate

_BORROWED_FREEDOM = 4  # weight of the mean over classes in the seed variance of each class, in seeds
SMALL = 8  # fewer samples per class do not determine the differences of the true accuracies
SMALL_ALONE = 15  # a metric that a single class determines needs at least this many samples per class
ONE_CLASS_DECIDES = ("worst", "worst_decile", "gap", "harmonic_mean", "geometric_mean")
_UNCERTAIN_NOISE = 0.5  # share of the removed noise of each side that is regarded as uncertain
_MAX_PACKED_RUNS = 40  # the pattern of hits and the class index share one 64-bit key


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples grouped by class and by the runs that are correct: ``count[i]`` samples of ``class_of[i]`` with ``right[i]``.

    ``right`` is ``(C, S)`` of 0 and 1; the first ``num_before`` columns are the runs before, the others those after.
    Cells are sorted by class.
    """

    class_of: Ints
    count: Ints
    right: Float64s
    num_before: int
    num_classes: int

    @classmethod
    def from_samples(cls, y_true: Ints, before: Sequence[Ints], after: Sequence[Ints], num_classes: int) -> Cells:
        """From predictions, one array per run."""
        hits = np.stack([pred == y_true for pred in (*before, *after)], axis=1)
        if hits.shape[1] > _MAX_PACKED_RUNS:  # too many patterns to share: every sample is a cell
            first, count = np.argsort(y_true, kind="stable"), np.ones(len(y_true), dtype=np.int64)
        else:
            pattern = hits @ (1 << np.arange(hits.shape[1], dtype=np.int64))
            keys = (y_true.astype(np.int64) << hits.shape[1]) | pattern  # class first: cells come out sorted by class
            _, first, count = np.unique(keys, return_index=True, return_counts=True)
        return cls(y_true[first], count, hits[first].astype(np.float64), len(before), num_classes)

    @classmethod
    def from_tables(cls, tables: Ints) -> Cells:
        """From one 2×2 table per class: ``tables[k, b, a]`` samples; b and a are 1 if *before* and *after* are correct."""
        num_classes = len(tables)
        class_of = np.repeat(np.arange(num_classes), 4)
        right = np.tile([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], (num_classes, 1))
        count = tables.transpose(0, 2, 1).reshape(-1)  # cells in the order of from_samples, so that both redraw alike
        keep = count > 0
        return cls(class_of[keep], count[keep], right[keep], 1, num_classes)

    @property
    def num_after(self) -> int:
        return int(self.right.shape[1]) - self.num_before

    @property
    def paired_once(self) -> bool:
        """One run per side."""
        return bool(self.right.shape[1] == 2)

    @cached_property
    def support(self) -> Ints:
        return self.class_sum(np.ones(len(self.count))).astype(np.int64)

    @cached_property
    def accuracy(self) -> Float64s:
        """``(K, S)`` class accuracies of every run; nan where a class is absent."""
        return np.stack([divide(self.class_sum(column), self.support) for column in self.right.T], axis=1)

    @property
    def before(self) -> Float64s:
        """``(C,)`` share of the runs before that are right."""
        return np.asarray(self.right[:, : self.num_before].mean(1))

    @property
    def after(self) -> Float64s:
        return np.asarray(self.right[:, self.num_before :].mean(1))

    @cached_property
    def seed_noise(self) -> Float64s:
        """``(K,)`` variance between runs of one side on the same sample, averaged over the class's samples."""
        sides = (self.right[:, : self.num_before], self.right[:, self.num_before :])
        squares = sum(((side - side.mean(1, keepdims=True)) ** 2).sum(1) for side in sides)
        return divide(self.class_sum(np.asarray(squares) / max(self.right.shape[1] - 2, 1)), self.support)

    def class_sum(self, value: Float64s) -> Float64s:
        """Sum over the samples of each class of a value given per cell."""
        return group_sums(self.count * value, self.class_of, self.num_classes)


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

    def at(self, confidence: float, *, low: float = -1.0, high: float = 1.0) -> Estimate:
        """The estimate with its interval, clipped to what is possible."""
        half = float(half_width(self.sampling, self.seeds, self.freedom, (1 - confidence) / 2)) + self.slack
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
    return Pooled(value, common, scale * _between(cells, by_seed), freedom)


def _between(cells: Cells, by_seed: Float64s) -> Any:
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
    linear = _linear_changes(cells)
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
        levels = _levels(cells, estimates)
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


def _linear_changes(cells: Cells) -> dict[str, Pooled]:
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


def _levels(cells: Cells, estimates: Sequence[Estimate]) -> tuple[Estimate, Estimate]:
    """Mean estimate of each side; with several runs the variance between them is added to the distance of both ends."""
    values, lows, highs = (_sides(cells, [getattr(e, end) for e in estimates]) for end in ("value", "low", "high"))
    between = float(_between(cells, np.array([e.value for e in estimates]))) if len(estimates) > 2 else 0.0
    sides = []
    for value, low, high, runs in zip(values, lows, highs, (cells.num_before, cells.num_after), strict=True):
        extra = float(half_width(0.0, between / runs, len(estimates) - 2, 0.025)) if between else 0.0
        below, above = np.hypot(value - low, extra), np.hypot(high - value, extra)
        sides.append(Estimate(value, float(max(0.0, value - below)), float(min(1.0, value + above))))
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
    """Metrics whose truth the samples do not tell: all ranked ones where most classes are small, and those that a single
    class decides where any class is (:data:`SMALL_ALONE`).
    """
    size = support[support > 0]
    if np.median(size) < SMALL:
        return FROM_ACCURACY
    return ONE_CLASS_DECIDES if size.min() < SMALL_ALONE else ()


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
        between = np.nan_to_num(_between(cells, cells.accuracy))
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


def benjamini_hochberg(p_value: Float64s) -> Float64s:
    """p-values after Benjamini-Hochberg correction: selecting those at most q gives a false discovery rate of at most q.

    nan stays nan.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, np.nan, 0.03])).round(3)
        array([0.03, 0.04,  nan, 0.04])
    """
    adjusted = np.full(len(p_value), np.nan)
    tested = np.flatnonzero(~np.isnan(p_value))
    order: NDArray[np.int64] = tested[np.argsort(p_value[tested])]
    ratio = p_value[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum(1, np.minimum.accumulate(ratio[::-1])[::-1])
    return adjusted
