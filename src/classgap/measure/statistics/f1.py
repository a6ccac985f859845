r"""F1 of labels: intervals of one model, means over labels, and the change between two models on the same samples.

With TP, FP and FN samples of a label, :math:`F_1 = 2J/(1+J)` with the Jaccard index :math:`J = TP/(TP+FP+FN)`. Among the samples
that have the label or are predicted to have it, J is a share, so its interval is that of a share. The labels of one sample are
correlated; means over labels use the influence of every sample on the mean, summed over its labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide, row_blocks
from classgap.measure.statistics.intervals import wilson, z_value

Flags = NDArray[np.bool_]
_MAX_GRID = 250_000  # outcomes of the exact test; beyond, the normal distribution serves


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """``(L,)`` numbers of samples: with the label and predicted, with the label, predicted."""

    hits: Ints
    support: Ints
    said: Ints

    @classmethod
    def gather(cls, true: Flags, predicted: Flags) -> LabelCounts:
        return cls((true & predicted).sum(0), true.sum(0), predicted.sum(0))

    @property
    def recall(self) -> Float64s:
        """Recall of each label; nan without samples that have it."""
        return divide(self.hits, self.support)

    @property
    def precision(self) -> Float64s:
        """Precision of each label; nan if it is never predicted, and without samples that have it."""
        return divide(self.hits, np.where(self.support > 0, self.said, 0))

    @property
    def f1(self) -> Float64s:
        """F1 of each label; nan without samples that have it."""
        return np.where(self.support > 0, divide(2 * self.hits, self.support + self.said), np.nan)

    def interval(self, confidence: float) -> tuple[Float64s, Float64s]:
        """Interval of each F1, from Wilson's interval of the Jaccard index."""
        size = np.where(self.support > 0, self.support + self.said - self.hits, 0)
        low, high = wilson(divide(self.hits, size), size, confidence)
        return 2 * low / (1 + low), 2 * high / (1 + high)


def mean_f1(true: Flags, predicted: Flags, confidence: float, *, micro: bool = False) -> tuple[float, float, float]:
    """Mean F1 over the labels with samples (``micro``: F1 of all pairs of sample and label), and its interval."""
    counts = LabelCounts.gather(true, predicted)
    used = counts.support > 0
    weights = _weights(counts, used, micro)
    value = _value(counts, used, micro)
    squares = sum(float((part**2).sum()) for part in _influence(true, [predicted], [weights]))
    half = z_value(confidence) * float(np.sqrt(squares + _unseen(weights, micro)))
    return value, max(0.0, value - half), min(1.0, value + half)


def mean_f1_change(
    true: Flags, before: Flags, after: Flags, confidence: float, *, micro: bool = False
) -> tuple[float, float, float]:
    """Change of :func:`mean_f1` between two models on the same samples, with its interval."""
    counts = [LabelCounts.gather(true, side) for side in (before, after)]
    used = counts[0].support > 0
    weights = [_weights(side, used, micro) for side in counts]
    value = _value(counts[1], used, micro) - _value(counts[0], used, micro)
    squares = sum(float((part**2).sum()) for part in _influence(true, [before, after], weights))
    half = z_value(confidence) * float(np.sqrt(squares + max(_unseen(side, micro) for side in weights)))
    return value, max(-1.0, value - half), min(1.0, value + half)


def _value(counts: LabelCounts, used: Flags, micro: bool) -> float:
    if not used.any():
        return float("nan")
    if not micro:
        return float(counts.f1[used].mean())
    return float(2 * counts.hits.sum() / max(counts.support.sum() + counts.said.sum(), 1))


def _weights(counts: LabelCounts, used: Flags, micro: bool) -> tuple[Float64s, Float64s]:
    """Influence of a sample on the mean: per label, of a true positive, and of every sample that has it or is said to."""
    if micro:
        size = np.full(len(used), max(int(counts.support.sum() + counts.said.sum()), 1))
        f1, share = np.full(len(used), _value(counts, used, True)), 1.0
    else:
        size, share = np.maximum(counts.support + counts.said, 1), 1 / max(int(used.sum()), 1)
        f1 = np.where(used, counts.f1, 0.0)
    one = np.where(used | micro, share / size, 0.0)
    return 2 * one, f1 * one


def _unseen(weights: tuple[Float64s, Float64s], micro: bool) -> float:
    """Variance of one more error or hit of every label (``micro``: of one in all), so that few samples are not certain."""
    one = weights[0] / 2
    return float(one.max() ** 2 if micro else (one**2).sum())


def _influence(true: Flags, sides: list[Flags], weights: list[tuple[Float64s, Float64s]]) -> Any:
    """Influence of every sample on the mean (with two sides: on their difference), block by block."""
    for rows in row_blocks(*true.shape):
        total = np.zeros(rows.stop - rows.start)
        for sign, side, (hit, member) in zip((-1, 1) if len(sides) == 2 else (1,), sides, weights, strict=True):
            labels = true[rows].astype(np.float64) + side[rows]
            total += sign * ((true[rows] & side[rows]) @ hit - labels @ member)
        yield total


# ---------------------------------------------------------------- the change of every label


@dataclass(frozen=True, eq=False)
class F1Changes:
    """Per label: F1 before and after, their difference with its interval, and the p-value of "both models are alike"."""

    before: Float64s
    after: Float64s
    delta: Float64s
    low: Float64s
    high: Float64s
    p_value: Float64s


def f1_changes(true: Flags, before: Flags, after: Flags, confidence: float) -> F1Changes:
    """The change of every label's F1 between two models on the same samples; nan for a label without samples.

    The p-value is that of exchanging, for every sample on which the two differ, the predictions of before and after: exact
    where the outcomes can be listed, otherwise from the normal distribution.
    """
    counts = np.stack([LabelCounts.gather(true, side).f1 for side in (before, after)])
    tables = _tables(true, before, after)
    z, number = z_value(confidence), true.shape[1]
    low, high, chance = np.full((3, number), np.nan)
    for k in np.flatnonzero(true.any(0)):
        half = z * _deviation(tables[k])
        delta = counts[1, k] - counts[0, k]
        low[k], high[k] = max(-1.0, delta - half), min(1.0, delta + half)
        chance[k] = _exchange(tables[k])
    return F1Changes(counts[0], counts[1], counts[1] - counts[0], low, high, chance)


def _tables(true: Flags, before: Flags, after: Flags) -> Ints:
    """``(L, 2, 2, 2)`` numbers of samples by (has the label, predicted before, predicted after)."""
    tables = np.zeros((true.shape[1], 8), dtype=np.int64)
    for rows in row_blocks(*true.shape):
        code = 4 * true[rows].astype(np.int8) + 2 * before[rows] + after[rows]
        for value in range(8):
            tables[:, value] += (code == value).sum(0)
    return tables.reshape(-1, 2, 2, 2)


def _sizes(table: Ints) -> tuple[int, int, int, int, int]:
    """Samples with the label; predicted before and after; true positives before and after."""
    support = int(table[1].sum())
    said = int(table[:, 1].sum()), int(table[:, :, 1].sum())
    return support, *said, int(table[1, 1].sum()), int(table[1, :, 1].sum())


def _deviation(table: Ints) -> float:
    """Standard deviation of the change, with one more changed sample."""
    support, said_before, said_after, hits_before, hits_after = _sizes(table)
    total = 0.0
    sides = [(1, support + said_before, 2 * hits_before), (2, support + said_after, 2 * hits_after)]
    for has, b, a in np.ndindex(2, 2, 2):
        influence = 0.0
        for side, size, twice in sides:
            said = b if side == 1 else a
            part = (2 * has * said - twice / size * (has + said)) / size
            influence += part if side == 2 else -part
        total += int(table[has, b, a]) * influence**2
    return float(np.sqrt(total + (2 / min(size for _, size, _ in sides)) ** 2))


def _exchange(table: Ints) -> float:
    """Two-sided p-value of the F1 difference when before and after are exchanged at random where they differ."""
    from scipy.stats import binom, norm

    support = int(table[1].sum())
    gained, lost = int(table[1, 0, 1]), int(table[1, 1, 0])  # with the label: newly found, newly missed
    raised, cleared = int(table[0, 0, 1]), int(table[0, 1, 0])  # without: new false alarms, false alarms that are gone
    changed, other = gained + lost, raised + cleared
    if changed + other == 0:
        return 1.0
    kept, alarms = int(table[1, 1, 1]), int(table[0, 1, 1])

    def difference(found: Any, false: Any) -> Any:
        after = 2 * (kept + found) / (support + kept + found + alarms + false)
        before = 2 * (kept + changed - found) / (support + kept + changed - found + alarms + other - false)
        return after - before

    observed = abs(float(difference(gained, raised)))
    if (changed + 1) * (other + 1) > _MAX_GRID:
        slope = difference(changed / 2 + 1, other / 2), difference(changed / 2, other / 2 + 1)
        deviation = np.sqrt(slope[0] ** 2 * changed / 4 + slope[1] ** 2 * other / 4)
        return float(2 * norm.sf(observed / deviation))
    found, false = np.arange(changed + 1), np.arange(other + 1)
    chance = binom.pmf(found, changed, 0.5)[:, None] * binom.pmf(false, other, 0.5)
    size = np.abs(difference(found[:, None], false[None]))
    beyond = float(chance[size > observed * (1 + 1e-9)].sum())
    equal = (
        float(chance[np.abs(size - observed) <= observed * 1e-9].sum()) if observed else float(chance[size == 0].sum())
    )
    return min(1.0, beyond + equal / 2)  # mid-p, as in the tests of classes
