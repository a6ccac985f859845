"""Tests of "within each class, all slices have the same accuracy", from counts per class (row) and slice (column).

Given the totals of its row, the number of correct predictions in a cell is hypergeometric if the hypothesis holds. All tests here
are conditional on these totals, so they hold for any class accuracies, any supports and any association of classes with slices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap.arrays import BLOCK_ENTRIES, Float64s, Ints, divide

_DRAWS = 999
_DRAWN_ENTRIES = 10_000_000  # cells drawn in all permutations together
_FEWEST_DRAWS = 199
_EXACT_VARIANCE = 400.0  # a sum of hypergeometric numbers with a larger variance is close to normal
_NORMAL_VARIANCE = (
    25.0  # of the hits of every slice, for the chi-square approximation of the Cochran-Mantel-Haenszel test
)
_MOST_SAMPLES = 2_000_000  # for a table of all possible counts of every cell
_TRUNCATED = 0.01  # p-values of classes below this count as extreme
_EXPECTED = 5.0  # least expected count for the chi-square approximation


@dataclass(frozen=True, eq=False)
class StratifiedTests:
    """p-values of cells ``(K, S)``, classes ``(K,)``, slices ``(S,)`` and of the whole table; nan where nothing can be tested."""

    cell: Float64s
    per_class: Float64s
    per_slice: Float64s
    overall: float
    method: str


def stratified_tests(cells: tuple[Ints, Ints], slices: tuple[Ints, Ints], rng: np.random.Generator) -> StratifiedTests:
    """All tests of one table.

    The overall test combines four tests: the sum of the chi-square statistics of the classes, which detects many small
    differences; the generalised Cochran-Mantel-Haenszel test, which detects slices that are worse in all classes; the most
    extreme cell; and the few most extreme classes together (:func:`_sparse`), which detects differences in two or three of
    many classes. The smallest of their p-values is compared with that of random permutations, so their dependence is
    taken into account. A table that is too large to permute gets a Bonferroni correction of the first three tests. The test of a
    class combines its chi-square and its most extreme cell.

    Args:
        cells: ``(correct, support)`` of the cells, where small cells of a class share one column.
        slices: ``(correct, support)`` of the slices; its rows have the same totals.
    """
    cell = _cell_p_values(*cells)
    tested = ~np.isnan(cell)
    if not tested.any():
        number, width = slices[0].shape
        return StratifiedTests(cell, np.full(number, np.nan), np.full(width, np.nan), 1.0, "no variation to test")
    tests = _chi_squares(cells, slices, rng)
    extreme = np.minimum(1, np.where(tested, cell, 1.0).min(1) * tested.sum(1))
    per_class = np.where(tested.any(1), np.minimum(1, 2 * np.fmin(tests.per_class, extreme)), np.nan)
    parts = [p for p in (tests.total, tests.common, float(min(1.0, np.nanmin(cell) * tested.sum()))) if p == p]
    overall = min(1.0, len(parts) * min(parts))
    if tests.joint is not None:
        # beyond all permutations these cannot tell how small the p-value is, but the other correction can
        overall = min(tests.joint.p_value, overall) if tests.joint.beyond else tests.joint.p_value
    return StratifiedTests(cell, per_class, slice_p_values(*slices), overall, tests.method)


def _cell_p_values(correct: Ints, support: Ints) -> Float64s:
    """Two-sided exact p-value of every cell against the other cells of its class (Fisher's test, twice the smaller tail)."""
    from scipy.stats import hypergeom

    total, hits = support.sum(1), correct.sum(1)
    row, column = np.nonzero((support > 0) & (support < total[:, None]) & ((hits > 0) & (hits < total))[:, None])
    result = np.full(support.shape, np.nan)
    drawn = hypergeom(total[row], hits[row], support[row, column])
    tails = np.minimum(drawn.cdf(correct[row, column]), drawn.sf(correct[row, column] - 1))
    result[row, column] = np.minimum(1, 2 * tails)
    return result


# ---------------------------------------------------------------- chi-square tests


@dataclass(frozen=True, eq=False)
class _ChiSquares:
    """p-values of the classes, of their sum (``total``) and of the Cochran-Mantel-Haenszel test (``common``).

    ``joint`` combines these with the extreme cells and classes; it is None for a table that is too large to permute.
    """

    per_class: Float64s
    total: float
    common: float
    method: str
    joint: _Joint | None = None


@dataclass(frozen=True)
class _Joint:
    """p-value of the smallest of several p-values, by permutation; ``beyond`` if no permutation exceeds one of the statistics."""

    p_value: float
    beyond: bool

    @classmethod
    def of(cls, statistics: Float64s) -> _Joint:
        """From ``(1 + draws, tests)`` statistics, larger ones being more extreme; the first row is the observed one."""
        number = len(statistics)
        ordered = np.sort(statistics, axis=0)
        ranks = [np.searchsorted(ordered[:, j], column * (1 - 1e-9)) for j, column in enumerate(statistics.T)]
        smallest = (number - np.stack(ranks, axis=1)).min(1)
        return cls(float((smallest <= smallest[0]).mean()), bool(smallest[0] == 1))


def _chi_squares(cells: tuple[Ints, Ints], slices: tuple[Ints, Ints], rng: np.random.Generator) -> _ChiSquares:
    from scipy.special import chdtrc

    (correct, support), (slice_correct, slice_support) = cells, slices
    total = support.sum(1)
    rate = divide(correct.sum(1), total)
    varies = (rate > 0) & (rate < 1) & ((support > 0).sum(1) > 1)
    keep = np.flatnonzero(varies)
    expected = support[keep] * rate[keep, None]
    scale = expected * (1 - rate[keep, None])

    def statistics(counts: Ints) -> Float64s:
        """``(..., K)`` chi-square of every class that varies."""
        parts: Float64s = np.divide((counts - expected) ** 2, scale, out=np.zeros(counts.shape), where=scale > 0)
        return np.asarray(parts.sum(-1))

    common = _Common.of(slice_correct[keep], slice_support[keep])
    seen, seen_common = statistics(correct[keep]), common.statistic(slice_correct[keep])
    freedom = (support[keep] > 0).sum(1) - 1
    smallest = np.where(support[keep] > 0, support[keep] * np.minimum(rate, 1 - rate)[keep, None], np.inf).min(1)
    large = smallest >= _EXPECTED
    per_class = np.full(len(total), np.nan)
    per_class[keep] = np.where(large, chdtrc(np.maximum(freedom, 1), seen), np.nan)
    approximate = float(chdtrc(max(common.rank, 1), seen_common)) if common.rank else np.nan
    draws = int(min(_DRAWS, _DRAWN_ENTRIES // slice_support[keep].size))
    analytic = float(chdtrc(int(freedom.sum()), seen.sum())) if large.all() else np.nan
    if (
        draws < _FEWEST_DRAWS or total.max() >= 10**9 or total.sum() > _MOST_SAMPLES
    ):  # the first two: NumPy's limit, time
        return _ChiSquares(per_class, analytic, approximate, "chi-square and the most extreme cells (exact)")
    pool, table = _Pool(cells, slices, keep), _CellTable.of(correct[keep], support[keep])
    reached = np.zeros(len(keep))
    rows = [np.array([[seen.sum(), seen_common, *table.statistics(correct[keep])]])]
    for size in _blocks(draws, slice_support[keep].size):
        dealt = _deal(slice_support[keep], slice_correct[keep].sum(1), size, rng)
        pooled = pool(dealt)
        found = statistics(pooled)
        reached += (found >= seen * (1 - 1e-9)).sum(0)
        rows.append(np.stack([found.sum(-1), common.statistic(dealt), *table.statistics(pooled)], axis=1))
    permuted = np.concatenate(rows)
    simulated = (permuted >= permuted[0] * (1 - 1e-9)).mean(0)
    per_class[keep] = np.where(large, per_class[keep], (1 + reached) / (1 + draws))
    shared = (float(simulated[1]) if common.smallest < _NORMAL_VARIANCE else approximate) if common.rank else np.nan
    used = [0, 2, 3] if not common.rank else [0, 1, 2, 3]
    return _ChiSquares(
        per_class,
        analytic if large.all() else float(simulated[0]),
        shared,
        f"chi-square and extreme cells ({draws} permutations)",
        _Joint.of(permuted[:, used]),
    )


@dataclass(frozen=True, eq=False)
class _CellTable:
    """Two-sided exact p-values of every possible number of hits in every cell, as negative logarithms, for permutations."""

    start: Ints  # (K, S): where the values of a cell begin
    value: Float64s
    tested: Ints  # (K,) cells of a class

    @classmethod
    def of(cls, correct: Ints, support: Ints) -> _CellTable:
        from scipy.special import gammaln

        total, hits = support.sum(1), correct.sum(1)
        length = support.reshape(-1) + 1
        start = np.cumsum(length) - length
        owner = np.repeat(np.arange(len(length)), length)
        count = np.arange(len(owner)) - start[owner]
        row = owner // support.shape[1]
        drawn, n, c = support.reshape(-1)[owner], total[row], hits[row]
        possible = (count <= c) & (drawn - count <= n - c)

        def choose(a: Ints, b: Ints) -> Float64s:
            return np.asarray(gammaln(a + 1) - gammaln(b + 1) - gammaln(np.maximum(a - b, 0) + 1))

        logs = choose(c, np.minimum(count, c)) + choose(n - c, np.minimum(drawn - count, n - c)) - choose(n, drawn)
        mass = np.where(possible, np.exp(logs), 0.0)
        tail = np.minimum(
            _running(mass, start, length), _running(mass[::-1], _reversed_start(length), length[::-1])[::-1]
        )
        value = -np.log(np.clip(2 * tail, 1e-300, 1.0))
        return cls(start.reshape(support.shape), value, (support > 0).sum(1))

    def statistics(self, counts: Ints) -> tuple[Float64s, Float64s]:
        """The most extreme cell, and the few most extreme classes together, of counts ``(..., K, S)``."""
        of_class = self.value[self.start + counts].max(-1) - np.log(self.tested)
        return np.asarray((of_class + np.log(self.tested)).max(-1)), _sparse(of_class)


def _sparse(of_class: Float64s) -> Float64s:
    """Sum over the classes of how far their p-value is below 0.01, on a logarithmic scale (a truncated product of p-values)."""
    return np.asarray(np.maximum(of_class + np.log(_TRUNCATED), 0).sum(-1))


def _reversed_start(length: Ints) -> Ints:
    return np.asarray(np.cumsum(length[::-1]) - length[::-1])


def _running(value: Float64s, start: Ints, length: Ints) -> Float64s:
    """Sums from the beginning of each part up to each place."""
    parts = np.split(value, start[1:])
    return np.concatenate([np.cumsum(part) for part in parts])


def _blocks(draws: int, entries: int) -> list[int]:
    step = max(1, BLOCK_ENTRIES // max(entries, 1))
    return [min(step, draws - start) for start in range(0, draws, step)]


@dataclass(frozen=True, eq=False)
class _Pool:
    """Counts of the cells from counts of the slices: the small cells of a class become the last column."""

    cells: tuple[Ints, Ints]
    slices: tuple[Ints, Ints]
    keep: Ints

    def __call__(self, dealt: Ints) -> Ints:
        own = (self.cells[1][self.keep, :-1] > 0) & (self.slices[1][self.keep] > 0)
        rest = np.where(own, 0, dealt).sum(-1, keepdims=True)
        return np.concatenate([np.where(own, dealt, 0), rest], axis=-1)


def _deal(support: Ints, hits: Ints, size: int, rng: np.random.Generator) -> Ints:
    """``(size, K, S)`` random allocations of the hits of every class to its samples, counted per slice."""
    left = np.broadcast_to(support.sum(1), (size, len(support))).copy()
    open_hits = np.broadcast_to(hits, (size, len(support))).copy()
    dealt = np.empty((size, *support.shape), dtype=np.int64)
    for s in range(support.shape[1]):
        dealt[:, :, s] = rng.hypergeometric(open_hits, left - open_hits, support[:, s])
        left -= support[:, s]
        open_hits -= dealt[:, :, s]
    return dealt


@dataclass(frozen=True, eq=False)
class _Common:
    """The generalised Cochran-Mantel-Haenszel statistic: slices that differ in the same direction in all classes.

    ``smallest`` is the smallest variance of the hits of a slice.
    """

    expected: Float64s
    inverse: Float64s
    rank: int
    smallest: float

    @classmethod
    def of(cls, correct: Ints, support: Ints) -> _Common:
        total = support.sum(1)
        rate = correct.sum(1) / total
        factor = rate * (1 - rate) * total / np.maximum(total - 1, 1)
        covariance = np.diag(factor @ support) - (support * (factor / total)[:, None]).T @ support
        return cls(
            rate @ support, np.linalg.pinv(covariance, rcond=1e-9, hermitian=True),
            int(np.linalg.matrix_rank(covariance, tol=1e-9 * max(np.trace(covariance), 1e-300), hermitian=True)),
            float(np.diag(covariance).min()),
        )  # fmt: skip

    def statistic(self, counts: Ints) -> Float64s:
        deviation = counts.sum(-2) - self.expected
        return np.asarray(np.einsum("...s,st,...t->...", deviation, self.inverse, deviation))


# ---------------------------------------------------------------- one slice, all classes


def slice_p_values(correct: Ints, support: Ints) -> Float64s:
    """Two-sided p-value of every slice against the other slices of the same classes.

    The number of correct predictions in a slice is a sum of independent hypergeometric numbers, one per class. Its distribution
    is computed by convolution, or approximated by the normal distribution if its variance is large.
    """
    total, hits = support.sum(1), correct.sum(1)
    result = np.full(support.shape[1], np.nan)
    for s in range(support.shape[1]):
        k = np.flatnonzero((support[:, s] > 0) & (support[:, s] < total) & (hits > 0) & (hits < total))
        if len(k):
            result[s] = _sum_p_value(int(correct[k, s].sum()), total[k], hits[k], support[k, s])
    return result


def _sum_p_value(seen: int, total: Ints, hits: Ints, drawn: Ints) -> float:
    from scipy.special import ndtr

    rate = hits / total
    mean = float((drawn * rate).sum())
    variance = float((drawn * rate * (1 - rate) * (total - drawn) / np.maximum(total - 1, 1)).sum())
    if variance > _EXACT_VARIANCE:
        return float(min(1.0, 2 * ndtr(-max(abs(seen - mean) - 0.5, 0) / np.sqrt(variance))))
    start, mass = _sum_distribution(total, hits, drawn)
    place = int(np.clip(seen - start, 0, len(mass) - 1))
    return float(min(1.0, 2 * min(mass[: place + 1].sum(), mass[place:].sum())))


def _sum_distribution(total: Ints, hits: Ints, drawn: Ints) -> tuple[int, Float64s]:
    """First value and probabilities of a sum of hypergeometric numbers; tails below about 1e-30 are cut off."""
    from scipy.stats import hypergeom

    start, mass = 0, np.ones(1)
    for n, c, m in zip(total.tolist(), hits.tolist(), drawn.tolist(), strict=True):
        reach = 12 * np.sqrt(m * (c / n) * (1 - c / n)) + 15
        low, high = max(0, m + c - n, int(m * c / n - reach)), min(m, c, int(m * c / n + reach) + 1)
        mass = np.convolve(mass, hypergeom.pmf(np.arange(low, high + 1), n, c, m))
        start += low
        used = np.flatnonzero(mass > 1e-30)
        start, mass = start + int(used[0]), mass[used[0] : used[-1] + 1]
    return start, mass
