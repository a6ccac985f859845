"""How much of the spread between classes is sampling noise: a test, and estimates with the noise removed.

The lowest of K noisy accuracies is lower than the lowest true one, the largest gap larger than the true one, and the more
so the more classes and the fewer samples. :func:`corrected` estimates the *true* quantity: the minimum, the range, … of the
K true accuracies, i.e. what the metric would be on endlessly many samples (not the true accuracy of the class that
happened to come out lowest). It simulates the error. Worlds are drawn that could have produced these counts (true
accuracies from their beta-binomial posterior), data are drawn in each world, and the metric's error there is subtracted
here. The one thing the error depends on strongly, the spread of the true accuracies, is itself uncertain; the interval is
therefore the union over its plausible range, from none at all upwards. Classes that cannot belong to the spread of the
others (a single broken class) are left where they are instead of being pulled towards the rest.

``tests/test_noise.py`` holds this to simulations: no true gap, small, large, one outlier, unequal supports, 10 and 100
classes. With about 20 samples a class and 100 classes the correction removes most, not all, of the bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import BLOCK_ENTRIES, Float64s, Ints
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.metrics import CORRECTED, evaluate

_OUTLIER_LEVEL = 0.02  # chance that any class of a homogeneous bulk is taken for an outlier
_DRAWS = (200, 400)  # worlds simulated per plausible spread: fewer when there are many classes, down to the first
_DRAWN_ENTRIES = 2_000_000
_LARGEST_RELATIVE_SPREAD = 0.9  # a beta distribution with more of m(1-m) as variance is all 0 and 1


@dataclass(frozen=True, eq=False)
class Spread:
    """What the true class accuracies look like: their mean and variance, apart from outliers.

    Attributes:
        mean: Mean true accuracy of the classes in the bulk.
        variance: Variance of their true accuracies, sampling noise taken out.
        low, high: Plausible range of that variance.
        bulk: Which classes belong to the bulk; the others are kept as observed.
    """

    mean: float
    variance: float
    low: float
    high: float
    bulk: NDArray[np.bool_]

    @classmethod
    def estimate(cls, correct: Ints, support: Ints, confidence: float) -> Spread:
        """By moments: observed variance minus the mean binomial variance; its range by inverting the chi-square test."""
        bulk = _bulk(correct, support)
        hits, size = correct[bulk], support[bulk]
        noise = float(_binomial_variance(hits, size).mean())
        mean, variance = _moments(hits, size)
        freedom = len(hits) - 1
        if freedom < 1 or noise == 0:
            return cls(mean, variance, variance, variance, bulk)
        statistic = freedom * float(np.var(hits / size, ddof=1)) / noise
        low, high = (bound * noise / freedom for bound in _noncentrality_range(statistic, freedom, confidence))
        return cls(mean, variance, low, high, bulk)

    def shrunk(self, correct: Ints, support: Ints) -> Float64s:
        """Accuracies pulled towards the mean so that their variance is the true one; inside (0, 1)."""
        total = int(support.sum())
        smooth = (correct + 2 * self.mean) / (support + 2)
        noise = smooth * (1 - smooth) / support
        factor = np.sqrt(self.variance / np.where(noise + self.variance > 0, noise + self.variance, 1))
        centre = np.where(self.bulk, self.mean + factor * (correct / support - self.mean), correct / support)
        return (np.clip(centre, 0, 1) * total + 0.5) / (total + 1)

    def draw(self, correct: Ints, support: Ints, variance: float, size: int, rng: np.random.Generator) -> Float64s:
        """``(size, K)`` true accuracies that could have produced these counts, if the spread were ``variance``."""
        edge = 0.5 / (support.sum() + 1)
        mean = min(max(self.mean, edge), 1 - edge)
        bound = mean * (1 - mean)
        hits, misses = correct + 0.5, support - correct + 0.5
        strength = bound / min(max(variance, 1e-9), _LARGEST_RELATIVE_SPREAD * bound) - 1
        hits = np.where(self.bulk, correct + strength * mean, hits)
        misses = np.where(self.bulk, support - correct + strength * (1 - mean), misses)
        return rng.beta(hits, misses, size=(size, len(support)))


def corrected(
    correct: Ints,
    support: Ints,
    *,
    confidence: float,
    rng: np.random.Generator,
    names: tuple[str, ...] = CORRECTED,
    remainder: Remainder = "first",
) -> tuple[Float64s, Float64s, Float64s]:
    """Value and interval of the named metrics of the *true* accuracies (module docstring). Absent classes left out."""
    observed = evaluate(correct / support, names, remainder=remainder)
    spread = Spread.estimate(correct, support, confidence)
    tail = (1 - confidence) / 2
    values, lows, highs = [], [], []
    for variance in (spread.variance, spread.low, spread.high):
        error = _errors(spread, correct, support, variance, names, remainder, rng)
        below, above = np.quantile(error, [tail, 1 - tail], axis=0)
        values.append(observed - error.mean(0))
        lows.append(observed - above)
        highs.append(observed - below)
    value = np.clip(values[0], 0, 1)
    low, high = np.clip(np.min(lows, axis=0), 0, 1), np.clip(np.max(highs, axis=0), 0, 1)
    return value, np.minimum(low, value), np.maximum(high, value)


def _errors(
    spread: Spread,
    correct: Ints,
    support: Ints,
    variance: float,
    names: tuple[str, ...],
    remainder: Remainder,
    rng: np.random.Generator,
) -> Float64s:
    """Observed minus true metrics in simulated worlds, ``(draws, len(names))``."""
    draws = int(np.clip(_DRAWN_ENTRIES // len(support), *_DRAWS))
    step = max(1, BLOCK_ENTRIES // len(support))
    errors = []
    for start in range(0, draws, step):
        truth = spread.draw(correct, support, variance, min(step, draws - start), rng)
        seen = rng.binomial(support, truth) / support
        errors.append(evaluate(seen, names, remainder=remainder) - evaluate(truth, names, remainder=remainder))
    return np.concatenate(errors)


def homogeneity(
    correct: Ints, support: Ints, rng: np.random.Generator, *, draws: int = 999
) -> tuple[float, float, str]:
    """Statistic, p-value and method of the test that all classes have one accuracy.

    Two tests are joined (Bonferroni): Pearson's chi-square, which sees a spread of many classes but not one broken class
    among a thousand, and the most extreme class against all others (exact hypergeometric), which sees just that. Where
    expected counts are below 5 the distribution of chi-square is simulated by dealing the same number of errors to the
    classes at random. Absent classes must have been left out.
    """
    total, hits = int(support.sum()), int(correct.sum())
    if len(support) < 2 or hits in (0, total):
        return 0.0, 1.0, "no variation to test"
    statistic, p_value, method = _chi_square(correct, support, rng, draws)
    extreme = _most_extreme(correct, support)
    return statistic, min(1.0, 2 * min(p_value, extreme)), f"{method} and the most extreme class (exact)"


def _most_extreme(correct: Ints, support: Ints) -> float:
    """Bonferroni-corrected p-value of the class that differs most from a random draw of its size."""
    from scipy.stats import hypergeom

    drawn = hypergeom(int(support.sum()), int(correct.sum()), support)
    tails = np.minimum(drawn.cdf(correct), drawn.sf(correct - 1))
    return float(min(1.0, 2 * len(support) * tails.min()))


def _chi_square(correct: Ints, support: Ints, rng: np.random.Generator, draws: int) -> tuple[float, float, str]:
    hits = int(correct.sum())
    rate = hits / int(support.sum())

    def statistic(counts: Ints) -> Float64s:
        return np.asarray(((counts - support * rate) ** 2 / (support * rate * (1 - rate))).sum(-1))

    observed = float(statistic(correct))
    if support.min() * min(rate, 1 - rate) >= 5:
        from scipy.special import chdtrc

        return observed, float(chdtrc(len(support) - 1, observed)), "chi-square"
    step = max(1, BLOCK_ENTRIES // len(support))
    reached = 0
    for start in range(0, draws, step):
        dealt = _deal(support, hits, min(step, draws - start), rng)
        reached += int((statistic(dealt) >= observed * (1 - 1e-12)).sum())
    return observed, (1 + reached) / (1 + draws), f"chi-square ({draws} permutations)"


def _deal(support: Ints, hits: int, size: int, rng: np.random.Generator) -> Ints:
    """Random allocations of ``hits`` right answers to the samples, counted by class: ``(size, K)``."""
    left = np.full(size, int(support.sum()))
    open_hits = np.full(size, hits)
    dealt = np.empty((size, len(support)), dtype=np.int64)
    for k, count in enumerate(support):
        dealt[:, k] = rng.hypergeometric(open_hits, left - open_hits, count)
        left -= count
        open_hits = open_hits - dealt[:, k]
    return dealt


def _binomial_variance(correct: Ints, support: Ints) -> Float64s:
    """Unbiased estimate of the variance of each accuracy; the pooled rate where there is a single sample."""
    rate = correct.sum() / support.sum()
    share = correct / support
    return np.where(support > 1, share * (1 - share) / np.maximum(support - 1, 1), rate * (1 - rate))


def _moments(correct: Ints, support: Ints) -> tuple[float, float]:
    """Mean and variance of the true accuracies."""
    share = correct / support
    variance = float(np.var(share, ddof=1)) if len(share) > 1 else 0.0
    variance = max(0.0, variance - float(_binomial_variance(correct, support).mean()))
    rate = (correct.sum() + 0.5) / (support.sum() + 1)
    weight = 1 / (variance + rate * (1 - rate) / support)
    return float((weight * share).sum() / weight.sum()), variance


def _bulk(correct: Ints, support: Ints) -> NDArray[np.bool_]:
    """All classes but outliers: those too far from the spread of the others to belong to it, found one by one."""
    from scipy.special import ndtri

    num_classes = len(support)
    bulk = np.ones(num_classes, dtype=bool)
    limit = ndtri(1 - _OUTLIER_LEVEL / (2 * num_classes))
    share = correct / support
    for _ in range(max(1, num_classes // 10)):
        if bulk.sum() < 4:
            break
        distance = np.where(bulk, np.abs(share - np.median(share[bulk])) * np.sqrt(support), -1)
        far = int(distance.argmax())
        rest = bulk.copy()
        rest[far] = False
        mean, variance = _moments(correct[rest], support[rest])
        own = (correct[far] + 2 * mean) / (support[far] + 2)
        noise = max(mean * (1 - mean), own * (1 - own), 1 / support[far]) / support[far]
        if abs(share[far] - mean) <= limit * np.sqrt(variance * (1 + 1 / rest.sum()) + noise):
            break
        bulk = rest
    return bulk


def _noncentrality_range(statistic: float, freedom: int, confidence: float) -> tuple[float, float]:
    """Noncentrality parameters under which ``statistic`` is no surprise (chi-square by Abdel-Aty's cube root)."""
    from scipy.special import ndtri

    def surprise(noncentrality: float) -> float:
        mean = freedom + noncentrality
        spread = 2 * (freedom + 2 * noncentrality) / (9 * mean**2)
        return float(((statistic / mean) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))

    def solve(target: float) -> float:
        low, high = 0.0, 10 * statistic + 100
        if surprise(low) <= target:
            return 0.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if surprise(middle) > target else (low, middle)
        return low

    z = float(ndtri((1 + confidence) / 2))
    return solve(z), solve(-z)
