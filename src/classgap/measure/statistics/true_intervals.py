"""Intervals for metrics of the *true* class accuracies that hold whatever the shape of those accuracies.

What the metric would be on endlessly many samples of the same K classes is unknown, and the metric of the observed
accuracies is biased for it: the lowest of K noisy numbers is too low. None of the intervals below assumes a distribution
of the true accuracies; each follows from one of three arguments.

*Worst and best class.* The true worst class is one particular class, so the smallest of all K lower bounds (exact, Clopper
and Pearson, each at the full level) is a lower bound for it. Its upper bound is the smallest of three: the smallest of the K
upper bounds, widened for choosing among K (Šidák); the upper bound of all classes pooled; that of the cross-fitted hard third.

*Thirds, worst tenth, Gini index.* The mean of the m lowest observed accuracies is at most that of the m truly worst classes
as observed, whose noise is that of m fixed classes: minus that noise it is a lower bound. The m classes that look worst on
one half of the samples are on average at least as good as the m truly worst, and the other half measures them without bias:
the cross-fitted mean plus its noise is an upper bound. The truth lies between.

*Standard deviation.* The unbiased estimate of the variance between classes, with its own variance. A class with one sample
says nothing about its own square; its contribution is bounded from both sides. Where few samples differ from the rest (hardly
any error, or hardly any hit), the estimate is far from normal; the interval then reaches at least from the smallest to the
largest deviation that the bounds of the gap and of the mean allow (Bhatia and Davis 2000).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from classgap.arrays import Float64s, Ints
from classgap.measure.statistics.groups import CrossFit, Remainder, rank_weights, third_sizes
from classgap.measure.statistics.intervals import clopper_pearson, mean_bound, z_value
from classgap.measure.statistics.metrics import gini_weights, worst_decile_size

Bounds = tuple[float, float]
_FEW_EVENTS = 20  # rarer outcomes (errors or hits) behind an estimate below which it is not taken for normal
_MAX_FRONTIER = 1500  # classes on each side of the pairs tried for the largest possible gap


def cross_weights(num_classes: int, remainder: Remainder = "first") -> Float64s:
    """Rank weights whose cross-fitted sums :func:`true_intervals` needs: thirds, worst tenth, numerator of the Gini index."""
    tenth = np.zeros(num_classes)
    size = worst_decile_size(num_classes)
    tenth[-size:] = 1 / size
    return np.vstack([rank_weights(num_classes, remainder), tenth, gini_weights(num_classes)])


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of the classes that have samples, and what was cross-fitted on them (rows of :func:`cross_weights`)."""

    correct: Ints
    support: Ints
    crossed: Float64s
    squared: Float64s
    sizes: tuple[int, int, int]

    @property
    def num_classes(self) -> int:
        return len(self.support)

    @cached_property
    def smooth(self) -> Float64s:
        """Accuracies for variances: with one pseudo-sample at the mean of all samples, and with the rarer outcome (right or
        wrong) made more frequent in all classes, to its upper bound: after few errors the true error may be larger.
        """
        total, hits = int(self.support.sum()), int(self.correct.sum())
        rare = self.correct if hits < total - hits else self.support - self.correct
        rate = (rare.sum() + 0.5) / (total + 1)
        share = (rare + rate) / (self.support + 1)
        bound = clopper_pearson(rare.sum(keepdims=True), np.array([total]), 0.025, upper=True)[0]
        share = np.minimum(share * max(1.0, bound / rate), np.maximum(share, 0.5))
        return np.asarray(share if hits < total - hits else 1 - share)

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """The distinct pairs of ``correct`` and ``support``."""
        correct, support = np.unique(np.stack([self.correct, self.support]), axis=1)
        return correct, support

    def bound(self, tail: float, *, upper: bool) -> Float64s:
        """One-sided exact bound, which fails with probability ``tail``, of every distinct pair."""
        return clopper_pearson(*self.pairs, tail, upper=upper)

    def pooled(self, tail: float, *, upper: bool) -> float:
        total = clopper_pearson(self.correct.sum(keepdims=True), self.support.sum(keepdims=True), tail, upper=upper)
        return float(total[0])

    def cross(self, row: int, tail: float, *, upper: bool) -> float:
        """One-sided bound of a cross-fitted mean."""
        value = np.clip(self.crossed[row : row + 1], 0, 1)
        return self._bound(value, self.squared[row : row + 1], tail, upper)

    def mean(self, tail: float, *, upper: bool) -> float:
        """One-sided bound of the mean class accuracy."""
        value = np.array([(self.correct / self.support).mean()])
        equal = np.full((1, self.num_classes), 1 / self.num_classes**2)
        return self._bound(value, equal, tail, upper)

    def lowest(self, own: float, size: int, tail: float, *, upper: bool) -> float:
        """One-sided bound of the mean of ``size`` classes at ``own``, of those classes whose mean is least certain."""
        least_certain = np.argsort(-self.smooth * (1 - self.smooth) / self.support, kind="stable")[:size]
        squared = np.zeros((1, self.num_classes))
        squared[0, least_certain] = 1 / size**2
        return self._bound(np.array([own]), squared, tail, upper)

    def _bound(self, value: Float64s, squared: Float64s, tail: float, upper: bool) -> float:
        return float(mean_bound(value, squared, self.correct, self.support, tail, upper=upper)[0])


def true_intervals(
    correct: Ints,
    support: Ints,
    fit: CrossFit,
    observed: Mapping[str, float],
    *,
    confidence: float,
    remainder: Remainder = "first",
) -> dict[str, Bounds]:
    """Interval of every metric of the true accuracies (module docstring); absent classes must have been left out.

    Args:
        fit: Cross-fitted with the weights of :func:`cross_weights`.
        observed: The metrics of the observed accuracies; each lies in its interval.
    """
    counts = Counts(correct, support, fit.means[:, 0], fit.squared, third_sizes(len(support), remainder))
    tail = (1 - confidence) / 2
    found: dict[str, Bounds] = {"balanced": (counts.mean(tail, upper=False), counts.mean(tail, upper=True))}
    found["worst"] = _extreme(counts, tail, worst=True)
    best = _extreme(counts, tail, worst=False)
    found["hard"] = _lowest_mean(counts, observed["hard"], 2, counts.sizes[2], found["worst"], tail)
    tenth = worst_decile_size(counts.num_classes)
    found["worst_decile"] = _lowest_mean(counts, observed["worst_decile"], 3, tenth, found["worst"], tail)
    found["easy"] = _highest_mean(counts, observed["easy"], best, tail)
    found["medium"] = _middle_mean(counts, found)
    found["std"] = _standard_deviation(counts, tail)
    found["gap"] = _gap(counts, tail)
    found["gini"] = _gini(counts, observed["gini"], tail)
    found["geometric_mean"] = _power_mean(counts, observed["geometric_mean"], tail, harmonic=False)
    found["harmonic_mean"] = _power_mean(counts, observed["harmonic_mean"], tail, harmonic=True)
    low = min(found[name][0] for name in ("worst", "worst_decile", "hard"))
    found["worst"] = (low, found["worst"][1])
    found["worst_decile"] = (min(found["worst_decile"][0], found["hard"][0]), found["worst_decile"][1])
    return {name: _around(observed[name], *bounds) for name, bounds in found.items()}


def _around(value: float, low: float, high: float) -> Bounds:
    """The interval within 0 and 1, and with the value inside; nan stays nan."""
    if np.isnan(value):
        return value, value
    return float(np.clip(min(low, value), 0, 1)), float(np.clip(max(high, value), 0, 1))


def _sidak(tail: float, number: int) -> float:
    """Level of each of ``number`` bounds that fail together with probability ``tail`` at most."""
    return float(-np.expm1(np.log1p(-tail) / number))


def _extreme(counts: Counts, tail: float, *, worst: bool) -> Bounds:
    """Interval of the lowest (or highest) true accuracy."""
    third = tail / 3
    each = counts.bound(_sidak(third, counts.num_classes), upper=worst)
    inner = [each.min() if worst else each.max(), counts.pooled(third, upper=worst)]
    row = 2 if worst else 0
    if counts.sizes[row]:
        inner.append(counts.cross(row, third, upper=worst))
    if worst:
        return float(counts.bound(tail, upper=False).min()), float(min(inner))
    return float(max(inner)), float(counts.bound(tail, upper=True).max())


def _lowest_mean(counts: Counts, own: float, row: int, size: int, worst: Bounds, tail: float) -> Bounds:
    """Mean of the ``size`` truly worst classes."""
    if size == 0:
        return np.nan, np.nan
    if size == 1:
        return worst
    inner = min(counts.cross(row, tail / 2, upper=True), counts.mean(tail / 2, upper=True))
    return counts.lowest(own, size, tail, upper=False), inner


def _highest_mean(counts: Counts, own: float, best: Bounds, tail: float) -> Bounds:
    """Mean of the truly best third."""
    size = counts.sizes[0]
    if size == 1:
        return best
    inner = max(counts.cross(0, tail / 2, upper=False), counts.mean(tail / 2, upper=False))
    return inner, counts.lowest(own, size, tail, upper=True)


def _middle_mean(counts: Counts, found: Mapping[str, Bounds]) -> Bounds:
    """The middle third is what the mean of all classes leaves; it lies between the hard and the easy third."""
    easy, medium, hard = counts.sizes
    if medium == 0:
        return np.nan, np.nan
    total = [counts.num_classes * bound for bound in found["balanced"]]
    low = (total[0] - easy * found["easy"][1] - hard * found["hard"][1]) / medium
    high = (total[1] - easy * found["easy"][0] - hard * found["hard"][0]) / medium
    return max(low, found["hard"][0]), min(high, found["easy"][1])


def _standard_deviation(counts: Counts, tail: float) -> Bounds:
    """From the unbiased estimate of the mean square and of the squared mean, with single samples bounded."""
    if counts.num_classes < 2:
        return 0.0, 0.0
    size, p = counts.support.astype(np.float64), counts.smooth
    number, single = counts.num_classes, counts.support == 1
    share = counts.correct / size
    pairs = np.where(single, 1.0, size * (size - 1))
    square = np.where(single, 0.0, counts.correct * (counts.correct - 1) / pairs)
    noise = p * (1 - p) / size
    mean, mean_noise = float(share.mean()), float(noise.sum()) / number**2
    fourth = np.maximum((size - 2) * (size - 3), 0) / pairs * p**4 + 4 * np.maximum(size - 2, 0) / pairs * p**3
    square_noise = np.where(single, 0.0, fourth + 2 * p**2 / pairs - p**4)
    joint = np.where(single, 0.0, ((size - 2) * p**3 + 2 * p**2) / size - p**3)
    z = z_value(1 - tail)  # half the tail: with few classes the estimate is skewed
    ones = int(single.sum())
    of_ones = float(share[single].mean()) if ones else 0.0
    results, spread = [], np.zeros(number)
    for sign in (-1, 1):
        # squares of classes with one sample: at least the square of their mean, at most their mean
        contribution = ones * of_ones**2 - of_ones * (1 - of_ones) if sign < 0 else ones * of_ones
        slope = np.where(single, 2 * of_ones if sign < 0 else 1.0, 0.0) - 2 * mean
        variance = (square.sum() + contribution) / number - mean**2 + mean_noise
        spread = np.maximum(square_noise + 2 * slope * joint + slope**2 * noise, 0.0) / number**2
        half = z * np.sqrt(spread.sum() + 2 * mean_noise**2)
        results.append(float(np.sqrt(max(0.0, variance + sign * half))))
    events = spread.sum() ** 2 / max(float((spread**2 / (size * p * (1 - p))).sum()), 1e-300)
    if events < _FEW_EVENTS:
        # two classes that far apart with all others in the middle have the smallest deviation
        results[0] = min(results[0], _smallest_gap(counts, tail) / np.sqrt(2 * number))
        results[1] = max(results[1], _largest_deviation(counts, tail))
    return results[0], results[1]


def _largest_deviation(counts: Counts, tail: float) -> float:
    """Largest standard deviation of numbers from 0 to 1 whose mean and range are within their bounds.

    Numbers between a and b with mean m have a variance of at most (b - m) (m - a).
    """
    reach = _largest_gap(counts, tail / 2)
    low, high = counts.mean(tail / 2, upper=False), counts.mean(tail / 2, upper=True)
    above = np.clip(reach / 2, reach - (1 - low), high)  # distance of the mean from the lowest number
    return float(np.sqrt(max(0.0, above * (reach - above))))


def _gap(counts: Counts, tail: float) -> Bounds:
    """Interval of the highest minus the lowest true accuracy."""
    if counts.num_classes < 2:
        return 0.0, 0.0
    third = tail / 3
    lows = [_smallest_gap(counts, third)]
    lows.append(2 * _standard_deviation(counts, third)[0])  # the largest deviation has half the classes at each end
    easy, hard = counts.crossed[0], counts.crossed[2]
    down, up = easy - counts.cross(0, third, upper=False), counts.cross(2, third, upper=True) - hard
    lows.append(float(easy - hard - np.hypot(down, up)))
    return max(0.0, *lows), _largest_gap(counts, tail)


def _smallest_gap(counts: Counts, tail: float) -> float:
    """Highest lower bound minus lowest upper bound of single classes, with allowance for choosing them (Šidák)."""
    each = _sidak(tail / 2, counts.num_classes)
    return max(0.0, float(counts.bound(each, upper=False).max() - counts.bound(each, upper=True).min()))


def _largest_gap(counts: Counts, tail: float) -> float:
    """Largest upper bound of the difference of two classes, over all pairs.

    The truly best and the truly worst class are one particular pair, so no allowance for choosing is due. The bound of a
    difference joins those of both classes (Newcombe 1998, "square-and-add").
    """
    share = counts.pairs[0] / counts.pairs[1]
    above = counts.bound(tail, upper=True) - share
    below = share - counts.bound(tail, upper=False)
    high, low = _frontier(share, above), _frontier(-share, below)
    if max(len(high), len(low)) > _MAX_FRONTIER:
        return float(np.clip((share + above).max() - (share - below).min(), 0, 1))
    widest = share[high][:, None] - share[low] + np.hypot(above[high][:, None], below[low])
    return float(np.clip(widest.max(), 0, 1))


def _frontier(value: Float64s, width: Float64s) -> Ints:
    """Indices such that no other has both a larger value and a larger width."""
    order = np.lexsort((-width, -value))
    best = np.maximum.accumulate(width[order])
    keep = np.concatenate(([True], width[order][1:] > best[:-1]))
    return np.asarray(order[keep])


def _gini(counts: Counts, own: float, tail: float) -> Bounds:
    """The numerator lies between its cross-fitted and its own value; the denominator is the mean accuracy."""
    share = counts.correct / counts.support
    mean = float(share.mean())
    if mean == 0 or counts.num_classes < 2:
        return 0.0, 1.0 if mean == 0 else 0.0
    noise = counts.smooth * (1 - counts.smooth) / counts.support
    z = z_value(1 - 2 * tail)
    crossed = float(counts.crossed[4]) / mean
    equal = 1 / counts.num_classes
    # the weights sum to 0 over the classes, so the squares of the shifted ones are the sum of both squares
    low = crossed - z * np.sqrt(((counts.squared[4] + (crossed * equal) ** 2) * noise).sum()) / mean
    weight = np.empty(counts.num_classes)
    weight[np.argsort(-share, kind="stable")] = gini_weights(counts.num_classes)
    high = own + z * np.sqrt(((weight - own * equal) ** 2 * noise).sum()) / mean
    deviation = _standard_deviation(counts, tail)
    spread = deviation[1] / np.sqrt(3) / max(counts.mean(tail, upper=False), 1e-9)
    # no Gini index exceeds deviation / mean / sqrt(3), and it is 0 where the deviation is
    return float(low) if deviation[0] > 0 else 0.0, float(min(1.0, max(high, spread)))


def _power_mean(counts: Counts, own: float, tail: float, *, harmonic: bool) -> Bounds:
    """Geometric or harmonic mean. Averaging within groups can only raise it, so the cross-fitted thirds bound it above."""
    tops = [counts.cross(row, tail / 3, upper=True) for row in range(3) if counts.sizes[row]]
    part = np.array([size for size in counts.sizes if size]) / counts.num_classes
    grouped = 1 / float((part / tops).sum()) if harmonic else float(np.exp((part * np.log(tops)).sum()))
    high = min(grouped, counts.mean(tail, upper=True))
    if own == 0:
        return 0.0, high
    share = counts.correct / counts.support
    slope = own**2 / share**2 if harmonic else own / share
    noise = (slope**2 * counts.smooth * (1 - counts.smooth) / counts.support).sum() / counts.num_classes**2
    # noise makes the observed mean lower in relation to the arithmetic one, never higher on average
    relative = own / float(share.mean()) * counts.mean(tail, upper=False)
    return min(
        relative, own - z_value(1 - 2 * tail) * float(np.sqrt(noise)), _one_lower(counts, own, tail, harmonic)
    ), high


def _one_lower(counts: Counts, own: float, tail: float, harmonic: bool) -> float:
    """The power mean after the one class that lowers it most is set to its lower bound: a small class may be far worse."""
    seen, low = counts.pairs[0] / counts.pairs[1], counts.bound(tail, upper=False)
    if harmonic:
        return 1 / (1 / own + float((1 / low - 1 / seen).max()) / counts.num_classes)
    return own * float(np.exp(np.log(low / seen).min() / counts.num_classes))
