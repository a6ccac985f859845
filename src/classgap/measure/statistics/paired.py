"""Paired statistics: the same samples judged by models before and after, each side perhaps trained several times.

Two things vary: which samples are in the test set, and, with several seeds a side, how training went. A difference is
the mean over seeds after minus the mean over seeds before. Its variance has two parts: what the choice of samples does to
all seeds alike, and what differs from seed to seed (measured between the seeds of a side, pooled over both sides). The
interval is ``value ± sqrt(z² · first + t² · second)``: the second part is known from few seeds only, hence Student's t.
With one seed a side it cannot be seen and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide, group_sums
from classgap.measure.audit_report import Estimate
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.intervals import replicate_blocks
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate

_BORROWED_FREEDOM = 4  # how many seeds' worth of evidence the average class lends to each class's seed variance
_MAX_PACKED_RUNS = 40  # the pattern of hits and the class index share one 64-bit key


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples grouped by class and by who got them right: ``count[i]`` samples of ``class_of[i]`` with ``right[i]``.

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
        """From predictions, one array a run."""
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
        """From one 2×2 table a class: ``tables[k, b, a]`` samples with *before* right if b, *after* right if a."""
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
        """One run a side."""
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

    def at(self, confidence: float, *, low: float = -1.0, high: float = 1.0) -> Estimate:
        """The estimate with its interval, clipped to what is possible."""
        half = float(half_width(self.sampling, self.seeds, self.freedom, (1 - confidence) / 2))
        return Estimate(self.value, max(low, self.value - half), min(high, self.value + half))


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
    """Variance of a weighted mean of class means; each class gets a pseudo-sample of the group's average square.

    Two further pseudo-samples, one each way, keep a group in which no sample changed from looking certain.
    """
    signs = VIEWS[view]
    value = signs[0] * cells.before + signs[1] * cells.after
    mean = divide(cells.class_sum(value), cells.support)
    value = value - mean[cells.class_of]
    spread = cells.class_sum(value**2)
    member = squared > 0
    typical = (spread[member].sum() + 2) / (cells.support[member].sum() + 2)
    return float((squared * (spread + typical) / np.maximum(cells.support, 1) ** 2).sum())


def metric_changes(
    cells: Cells, *, n_boot: int, rng: np.random.Generator, remainder: Remainder
) -> dict[str, dict[str, Pooled]]:
    """Before, after and delta of every metric under each run's own ranking, by a paired bootstrap of the samples."""
    names = ("overall", *FROM_ACCURACY)
    present = np.flatnonzero(cells.support)
    share = cells.support[present] / cells.support.sum()

    def evaluated(accuracy: Float64s) -> Float64s:
        overall = (accuracy * share).sum(-1, keepdims=True)
        return np.concatenate([overall, evaluate(accuracy, remainder=remainder)], axis=-1)

    value = evaluated(cells.accuracy[present].T)  # (S, M)
    draws = np.concatenate(
        [evaluated(_resample(cells, block, rng)) for block in replicate_blocks(n_boot, len(cells.count))]
    )  # (B, S, M)
    split = cells.num_before
    within = draws.var(0)  # of one run
    results: dict[str, dict[str, Pooled]] = {}
    for m, name in enumerate(names):
        sides = draws[:, :split, m].mean(1), draws[:, split:, m].mean(1)
        results[name] = {}
        for view, signs in VIEWS.items():
            sampling = float(np.var(signs[0] * sides[0] + signs[1] * sides[1], ddof=1))
            shared = _shared_variance(draws[:, :split, m], draws[:, split:, m])
            noise = max(0.0, float(within[:, m].mean()) - shared)
            results[name][view] = pool(cells, view, value[:, m], sampling, noise)
    return results


def _shared_variance(*sides: Float64s) -> float:
    """Mean covariance between runs of the same side over replicates ``(B, runs)``: the part all runs have in common."""
    covariances = []
    for side in sides:
        matrix = np.atleast_2d(np.cov(side, rowvar=False))
        covariances += list(matrix[np.triu_indices(len(matrix), 1)])
    return float(np.mean(covariances)) if covariances else 0.0


def _resample(cells: Cells, size: int, rng: np.random.Generator) -> Float64s:
    """Class accuracies ``(size, S, K present)`` after redrawing each class's samples with replacement.

    Counts are multinomial over the cells of a class, drawn cell by cell as binomials of what is left.
    """
    starts = np.flatnonzero(np.concatenate(([True], cells.class_of[1:] != cells.class_of[:-1])))
    lengths = np.diff(np.append(starts, len(cells.count)))
    support = np.add.reduceat(cells.count, starts)
    left = np.broadcast_to(support, (size, len(support))).copy()
    mass = support.copy()
    drawn = np.zeros((size, len(cells.count)), dtype=np.int64)
    for position in range(int(lengths.max())):
        which = np.flatnonzero(lengths > position)
        cell = starts[which] + position
        drawn[:, cell] = rng.binomial(left[:, which], cells.count[cell] / mass[which])
        left[:, which] -= drawn[:, cell]
        mass[which] -= cells.count[cell]
        mass[mass == 0] = 1  # nothing left to draw: the share is 0/1
    hits = [np.add.reduceat(drawn * column.astype(np.int64), starts, axis=1) for column in cells.right.T]
    return np.stack(hits, axis=1) / support


@dataclass(frozen=True, eq=False)
class ClassChanges:
    """Per class: paired difference with interval and p-value, and the samples that turned right or wrong."""

    delta: Float64s
    low: Float64s
    high: Float64s
    gained: Float64s
    lost: Float64s
    p_value: Float64s


def class_changes(cells: Cells, confidence: float) -> ClassChanges:
    """Differences of single classes.

    Intervals are Bonett and Price's (one pseudo-sample each way) plus the variance between seeds, where each class
    borrows from the others: with few seeds its own estimate would be tiny by luck for some. With one run a side the
    p-value is McNemar's exact test with mid-p; with several it goes with the interval.
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
    """Adjusted p-values; rejecting those below q keeps the expected share of false discoveries below q. nan stays nan.

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
