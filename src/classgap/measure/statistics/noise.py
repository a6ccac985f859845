"""Test whether the differences between classes exceed sampling noise; the hypothesis is "all classes have the same accuracy".

The spread without noise is estimated in :mod:`classgap.measure.statistics.deconvolution`, its interval in
:mod:`classgap.measure.statistics.true_intervals`.
"""

from __future__ import annotations

import numpy as np

from classgap.arrays import BLOCK_ENTRIES, Float64s, Ints


def homogeneity(
    correct: Ints, support: Ints, rng: np.random.Generator, *, draws: int = 999, inflation: float = 1.0
) -> tuple[float, float, str]:
    """Statistic, p-value and method of the test that all classes have the same accuracy.

    Two tests are combined (Bonferroni correction): Pearson's chi-square test, which detects a spread of many classes but not
    one bad class among a thousand, and an exact hypergeometric test of the most extreme class, which detects that. If expected
    counts are below 5, the distribution of chi-square is simulated by random allocation of the errors to the samples. Classes
    without samples must have been removed.

    Args:
        inflation: Factor by which the counts vary more than those of samples; chi-square is divided by it.
    """
    total, hits = int(support.sum()), int(correct.sum())
    if len(support) < 2 or hits in (0, total):
        return 0.0, 1.0, "no variation to test"
    statistic, p_value, method = _chi_square(correct, support, rng, draws, inflation)
    extreme = _most_extreme(correct, support)
    return statistic, min(1.0, 2 * min(p_value, extreme)), f"{method} and the most extreme class (exact)"


def _most_extreme(correct: Ints, support: Ints) -> float:
    """Bonferroni-corrected p-value of the class that differs most from a random draw of its size."""
    from scipy.stats import hypergeom

    size, hits = np.unique(np.stack([support, correct]), axis=1)  # thousands of small classes have few different counts
    drawn = hypergeom(int(support.sum()), int(correct.sum()), size)
    tails = np.minimum(drawn.cdf(hits), drawn.sf(hits - 1))
    return float(min(1.0, 2 * len(support) * tails.min()))


def _chi_square(
    correct: Ints, support: Ints, rng: np.random.Generator, draws: int, inflation: float
) -> tuple[float, float, str]:
    hits = int(correct.sum())
    rate = hits / int(support.sum())

    def statistic(counts: Ints) -> Float64s:
        return np.asarray(((counts - support * rate) ** 2 / (support * rate * (1 - rate))).sum(-1))

    observed = float(statistic(correct)) / inflation
    if support.min() * min(rate, 1 - rate) >= 5:
        from scipy.special import chdtrc

        return observed, float(chdtrc(len(support) - 1, observed)), "chi-square"
    step = max(1, BLOCK_ENTRIES // len(support))
    reached = 0
    for start in range(0, draws, step):
        # random allocations of the correct predictions to the samples, counted per class
        dealt = rng.multivariate_hypergeometric(support, hits, size=min(step, draws - start), method="marginals")
        reached += int((statistic(dealt) >= observed * (1 - 1e-12)).sum())
    return observed, (1 + reached) / (1 + draws), f"chi-square ({draws} permutations)"
