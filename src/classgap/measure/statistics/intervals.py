"""Intervals of class accuracies and of their weighted means."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from classgap.arrays import BLOCK_ENTRIES, Float64s, Ints, divide


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


def clopper_pearson(correct: Ints, support: Ints, tail: float, *, upper: bool) -> Float64s:
    """Exact bound of a binomial share that fails with probability ``tail`` at most; sizes must be positive.

    Example:
        >>> clopper_pearson(np.array([0, 10]), np.array([10, 10]), 0.025, upper=True).round(3)
        array([0.308, 1.   ])
    """
    from scipy.special import betaincinv

    if not upper:
        return 1 - clopper_pearson(support - correct, support, tail, upper=True)
    wrong = support - correct
    return np.where(wrong > 0, betaincinv(correct + 1, np.maximum(wrong, 1), 1 - tail), 1.0)


def mean_interval(
    value: Float64s, squared: Float64s, correct: Ints, support: Ints, confidence: float
) -> tuple[Float64s, Float64s]:
    """Interval of weighted means of class accuracies: Clopper and Pearson's, for samples of unequal weight.

    A bound is the quantile of a beta distribution whose mean and size follow from the weighted number of right (or wrong)
    samples and its variance, after one more sample of the largest weight (the idea of Fay and Feuer 1997 for weighted
    Poisson counts). With equal weights it is the exact interval. In the variance each class's share gets one pseudo-sample at
    the group's value, so a class with one sample or no error still counts as uncertain, and the variance is never taken
    smaller than that of classes all alike.

    Args:
        value: ``(G,)`` the means.
        squared: ``(G, K)`` squared weights of the classes in each mean.
    Example:
        >>> low, high = mean_interval(np.array([0.9]), np.full((1, 2), 0.25), np.array([4, 5]), np.array([5, 5]), 0.95)
        >>> low.round(3), high.round(3)  # 9 of 10
        (array([0.555]), array([0.997]))
    """
    tail = (1 - confidence) / 2
    low = mean_bound(value, squared, correct, support, tail, upper=False)
    return low, mean_bound(value, squared, correct, support, tail, upper=True)


def mean_bound(
    value: Float64s, squared: Float64s, correct: Ints, support: Ints, tail: float, *, upper: bool
) -> Float64s:
    """One end of :func:`mean_interval`, which fails with probability ``tail``."""
    if upper:
        return np.maximum(_upper(value, squared, correct, support, tail), value)
    return np.minimum(1 - _upper(1 - value, squared, support - correct, support, tail), value)


def _upper(value: Float64s, squared: Float64s, correct: Ints, support: Ints, tail: float) -> Float64s:
    """Upper bound of a weighted mean; nan where nothing has weight."""
    from scipy.special import betaincinv

    size = np.maximum(support, 1)
    share = (correct + value[:, None]) / (support + 1)
    heaviest = (np.sqrt(squared) / size).max(1)
    variance = np.fmax((squared * share / size).sum(1), value * (squared / size).sum(1))
    first = divide((value + heaviest) ** 2, variance + heaviest**2)
    second = first * divide(1 - value, value + heaviest)
    bound = betaincinv(first, np.maximum(second, np.finfo(np.float64).tiny), 1 - tail)
    return np.where(second > 0, bound, np.where(np.isnan(first), np.nan, 1.0))


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
