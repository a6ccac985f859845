"""Intervals of class accuracies, of their weighted means, and of metrics computed from them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from classgap.arrays import BLOCK_ENTRIES, Float64s, Ints, divide
from classgap.measure.statistics.groups import Remainder
from classgap.measure.statistics.metrics import evaluate
from classgap.measure.statistics.noise import Spread


def z_value(confidence: float) -> float:
    """Two-sided standard normal quantile."""
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def wilson(share: Float64s, size: Float64s | Ints, confidence: float) -> tuple[Float64s, Float64s]:
    """Wilson's score interval of a binomial share; nan where ``size`` is 0.

    It keeps its coverage for small samples and shares near 0 and 1, where the textbook interval collapses.

    Example:
        >>> low, high = wilson(np.array([1.0]), np.array([10]), 0.95)
        >>> low.round(3), high.round(3)
        (array([0.722]), array([1.]))
    """
    z2 = z_value(confidence) ** 2
    size = np.asarray(size, dtype=np.float64)
    centre = divide(share * size + z2 / 2, (size + z2) * (size > 0))
    half = divide(np.sqrt(z2) * np.sqrt(size * share * (1 - share) + z2 / 4), (size + z2) * (size > 0))
    # rounding must not push a bound past the share itself
    return np.clip(np.minimum(centre - half, share), 0, 1), np.clip(np.maximum(centre + half, share), 0, 1)


def mean_interval(
    value: Float64s, squared: Float64s, correct: Ints, support: Ints, confidence: float
) -> tuple[Float64s, Float64s]:
    """Wilson interval of weighted means of class accuracies at their effective sample size.

    The variance is that of independent classes; each class's share gets one pseudo-sample at the group's value, so a
    class with one sample or no error still counts as uncertain. The effective size is never taken larger than that of
    classes all alike: a small class without an error says little about how accurate it is.

    Args:
        value: ``(G,)`` the means.
        squared: ``(G, K)`` squared weights of the classes in each mean.
    """
    size = np.maximum(support, 1)
    share = (correct + value[:, None]) / (support + 1)
    variance = (squared * share * (1 - share) / size).sum(1)
    of_equal_classes = divide(1, (squared / size).sum(1))
    effective = np.fmin(divide(value * (1 - value), variance), of_equal_classes)
    # a cross-fitted mean may be 1 although its classes have errors: at least one sample stands behind it
    return wilson(value, np.maximum(effective, np.minimum(1, of_equal_classes)), confidence)


def bootstrap_accuracy(
    correct: Ints, support: Ints, *, n_boot: int = 1000, confidence: float = 0.95, seed: int = 0
) -> tuple[Float64s, Float64s]:
    """Percentile-bootstrap interval of every class accuracy, by resampling the counts instead of the rows.

    Redrawing the rows of a class with replacement makes its number of hits binomial, so the hits are drawn directly:
    the cost does not depend on the number of samples. :func:`wilson` is the better interval; this one is for comparing
    with tools that bootstrap.
    """
    rng = np.random.default_rng(seed)
    low, high = np.full(len(support), np.nan), np.full(len(support), np.nan)
    present = np.flatnonzero(support)
    tail = (1 - confidence) / 2
    step = max(1, BLOCK_ENTRIES // n_boot)
    for start in range(0, len(present), step):
        k = present[start : start + step]
        hits = _binomial(support[k], correct[k] / support[k], n_boot, rng)
        low[k], high[k] = np.quantile(hits / support[k, None], [tail, 1 - tail], axis=1)
    return low, high


def _binomial(size: Ints, share: Float64s, draws: int, rng: np.random.Generator) -> Ints:
    """``(K, draws)`` hits; a class's draws lie together, which spares NumPy its set-up for each of them."""
    return rng.binomial(size[:, None], share[:, None], size=(len(size), draws))


def replicate_blocks(num_replicates: int, num_classes: int) -> Iterator[int]:
    """Sizes of blocks of replicates that keep a ``(block, K)`` array within bounds."""
    step = max(1, BLOCK_ENTRIES // max(num_classes, 1))
    for start in range(0, num_replicates, step):
        yield min(step, num_replicates - start)


def observed_intervals(
    correct: Ints,
    support: Ints,
    *,
    confidence: float,
    n_boot: int,
    rng: np.random.Generator,
    remainder: Remainder = "first",
) -> tuple[Float64s, Float64s, Float64s]:
    """Value and interval of every metric of ``FROM_ACCURACY``, as observed on these samples.

    The interval is for the value the metric has on average over test sets of this size. For a mean that is the truth;
    for the worst class, the gap and other extremes it is not (see :func:`classgap.measure.statistics.noise.corrected`). Hits are
    redrawn around accuracies pulled together to their estimated true spread (:meth:`Spread.shrunk`); redrawing around
    the observed ones would add the sampling noise a second time. Absent classes must have been left out.
    """
    value = evaluate(correct / support, remainder=remainder)
    centre = Spread.estimate(correct, support, confidence).shrunk(correct, support)
    draws = np.concatenate(
        [
            evaluate(_binomial(support, centre, block, rng).T / support, remainder=remainder)
            for block in replicate_blocks(n_boot, len(support))
        ]
    )
    deviation = draws - draws.mean(0)
    tail = (1 - confidence) / 2
    below, above = np.quantile(deviation, [tail, 1 - tail], axis=0)
    low, high = np.clip(value - above, 0, 1), np.clip(value - below, 0, 1)
    return value, np.minimum(low, value), np.maximum(high, value)
