"""The evidence for each cause of a hard class: a test against chance, and whether the effect is large enough to matter.

Every function returns a :class:`Signal` for *all* classes. Testing only the hard ones would be circular: they were picked
for their errors, so chance favours them; :mod:`classgap.measure.diagnostics.causes.diagnosis` allows for all tests made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide
from classgap.measure.diagnostics.geometry.angles import angles_between
from classgap.measure.diagnostics.geometry.fisher import smallest
from classgap.measure.diagnostics.geometry.spread import Spread
from classgap.measure.diagnostics.geometry.summary import Geometry

CauseKind = Literal["confused", "underpredicted", "scattered", "few_samples", "mislabelled", "crowded"]
Bools: TypeAlias = NDArray[np.bool_]

# How large an effect must be before it is worth a sentence; chance is dealt with separately, by p-values.
MAIN_SHARE = 0.25  # of a class's errors that go to one other class, or
TOGETHER_SHARE = 0.4  # … to up to three of them, of which each
ALSO_SHARE = 0.1  # … takes at least this share
MAX_PARTNERS = 3
AVOIDED = 0.8  # predictions per occurrence
SPREAD_RATIO = 1.1  # spread over that of the median class
OVERLAP = 0.05  # share of two classes' samples on the wrong side of a straight boundary between them
FEW_RATIO = 0.5  # training samples over those of the median class


@dataclass(frozen=True)
class Cause:
    """One reason a class is hard.

    Attributes:
        kind: Short code of the cause.
        number: The evidence: a share, a ratio or a count, as the sentence says.
        p_value: Chance of evidence this strong if the cause were absent, before the allowance for testing many classes.
        sentence: The evidence in plain English.
        remedy: What classgap offers against it.
        classes: Other classes involved, most important first.
        samples: Rows to look at (suspected wrong labels), most suspicious first.
    """

    kind: CauseKind
    number: float
    p_value: float
    sentence: str
    remedy: str
    classes: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Signal:
    """One possible cause for all classes: ``p_values`` (nan where untestable), whether it matters, and its wording."""

    p_values: Float64s
    material: Bools
    cause: Callable[[int], Cause]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a confusion matrix says of each class, and the classes' names."""

    off_diagonal: Any  # SciPy CSR array
    support: Ints
    correct: Ints
    predicted: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, counts: Any, names: tuple[str, ...]) -> Outcome:
        from scipy.sparse import csr_array, diags_array

        matrix = csr_array(counts)
        correct = matrix.diagonal()
        off_diagonal = csr_array(matrix - diags_array(correct, dtype=matrix.dtype))
        off_diagonal.eliminate_zeros()
        return cls(off_diagonal, matrix.sum(axis=1), correct, matrix.sum(axis=0), names)

    @property
    def errors(self) -> Ints:
        return np.asarray(self.support - self.correct)

    @property
    def accuracy(self) -> Float64s:
        return divide(self.correct, self.support)


def percent(share: float) -> str:
    """``0.384`` as ``38 %``, less than half a percent as ``under 1 %``."""
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' if count != 1 else ''}"


def confusion(outcome: Outcome) -> Signal:
    """Errors that go to one other class more often than if they fell on all others alike (binomial, any of K - 1)."""
    from scipy.stats import binom

    others = len(outcome.support) - 1
    errors, off = outcome.errors, outcome.off_diagonal
    taken = off.max(axis=1).toarray().ravel()
    # With two classes all errors go to the other one: nothing to learn from that.
    testable = (errors > 0) & (others > 1)
    chance = np.minimum(1.0, others * binom.sf(taken - 1, errors, 1 / max(others, 1)))
    p_values = np.where(testable, chance, np.nan)
    partners: list[list[int]] = []
    for k in range(len(errors)):
        row, columns = _row(off, k)
        top = np.argsort(-row, kind="stable")[:MAX_PARTNERS]
        beyond = others * binom.sf(row[top] - 1, errors[k], 1 / max(others, 1)) < 0.05
        partners.append([int(j) for j in columns[top[beyond & (row[top] >= ALSO_SHARE * errors[k])]]])
    together = np.array([sum(off[k, j] for j in found) for k, found in enumerate(partners)])
    material = (taken >= MAIN_SHARE * errors) | (together >= TOGETHER_SHARE * errors)

    def cause(k: int) -> Cause:
        return _word_confusion(outcome, k, partners[k], float(p_values[k]))

    return Signal(p_values, material & (taken >= 3) & (together > 0), cause)


def _row(matrix: Any, k: int) -> tuple[Ints, Ints]:
    """Values and columns of row k of a CSR array."""
    inside = slice(matrix.indptr[k], matrix.indptr[k + 1])
    return matrix.data[inside], matrix.indices[inside]


def _word_confusion(outcome: Outcome, k: int, partners: list[int], p_value: float) -> Cause:
    from scipy.stats import binom

    rival, errors, names = partners[0], outcome.errors, outcome.names
    there, back = int(outcome.off_diagonal[k, rival]), int(outcome.off_diagonal[rival, k])
    also = [f"'{names[j]}' ({percent(outcome.off_diagonal[k, j] / errors[k])})" for j in partners[1:]]
    sentence = (
        f"{percent(there / errors[k])} of its errors ({there} of {errors[k]}) are taken for '{names[rival]}'"
        + (f", then {' and '.join(also)}" if also else "")
        + f"; the other way round it is {back} of {errors[rival]} errors of '{names[rival]}'."
    )
    share = outcome.support[k] / (outcome.support[k] + outcome.support[rival])
    # One way: at twice the rate of the other direction, and not by chance.
    expected = share * back / max(1 - share, 1e-12)
    if there >= 2 * expected and binom.sf(there - 1, there + back, share) < 0.05:
        remedy = f"The boundary to '{names[rival]}' is misplaced: `classgap fix` moves it with per-class offsets, no retraining."
    else:
        remedy = (
            "Both lose to each other, so an offset (`classgap fix`) would only trade one for the other: train features that "
            "tell them apart (sharper inputs, more samples of the pair, AutoAugment if these are images and the network is large "
            "enough, `CompactLogitsLoss`), or merge the two if the difference does not matter."
        )
    return Cause("confused", float(there / errors[k]), p_value, sentence, remedy, classes=tuple(partners))


def under_prediction(outcome: Outcome) -> Signal:
    """Missed more often than wrongly predicted (sign test): the model's threshold for this class is too high."""
    from scipy.stats import binom

    missed, false = outcome.errors, outcome.predicted - outcome.correct
    p_values = np.where(outcome.support > 0, binom.sf(missed - 1, missed + false, 0.5), np.nan)

    def cause(k: int) -> Cause:
        ratio = float(outcome.predicted[k] / outcome.support[k])
        sentence = (
            f"The model avoids it: predicted {_many(outcome.predicted[k], 'time')} where it occurs "
            f"{_many(outcome.support[k], 'time')} ({missed[k]} missed, {false[k]} wrongly predicted)."
        )
        remedy = "Raise its score after training: `classgap fix` fits per-class offsets on held-out predictions."
        return Cause("underpredicted", ratio, float(p_values[k]), sentence, remedy)

    return Signal(p_values, outcome.predicted <= AVOIDED * outcome.support, cause)


def scatter(outcome: Outcome, spread: Spread) -> Signal:
    """Spread above the median class by more than its own sampling error (t-test on squared deviations)."""
    from scipy.stats import t

    squared = spread.spread_unbiased**2
    typical = _median(squared)
    statistic = divide(squared - typical, spread.squared_error)
    correlation, _, contradicted = _rank_correlation(-spread.spread_unbiased, outcome.accuracy)
    p_values = t.sf(statistic, np.maximum(spread.support - 1, 1))
    rank, total = _rank(-squared)
    ratio = np.sqrt(divide(squared, typical))

    def cause(k: int) -> Cause:
        sentence = (
            f"Its samples scatter {ratio[k]:.2f} times as far around their mean as in the median class "
            f"(rank {rank[k]} of {total} by spread"
            + (
                f"; rank correlation of spread and accuracy over all classes {-correlation:.2f})."
                if total > 9
                else ")."
            )
        )
        remedy = (
            "Train with a loss that pulls the samples of a class together: `CompactLogitsLoss` in their logits, `MR2Loss` in "
            "their features. For images add AutoAugment if the network fits its training set without it (`classgap methods "
            "autoaugment`). Check whether the class mixes several kinds of objects."
        )
        return Cause("scattered", float(ratio[k]), float(p_values[k]), sentence, remedy)

    material = (rank <= max(1, total // 10)) & (ratio >= SPREAD_RATIO)
    return Signal(np.where(contradicted, np.nan, p_values), material, cause)


def crowding(outcome: Outcome, geometry: Geometry) -> Signal:
    """Among the tenth of classes closest to another one, and harder to part from it than the median class (binomial)."""
    from scipy.stats import binom

    means, fisher = geometry.spread.means, geometry.fisher
    distance = smallest(np.where(np.isinf(fisher.distance), np.nan, fisher.distance))[0]
    _, _, contradicted = _rank_correlation(distance, outcome.accuracy)
    error, trials = fisher.boundary_error, fisher.boundary_trials
    usual = _median(error)
    chance = binom.sf(fisher.boundary_wrong - 1, trials, np.maximum(usual, divide(1.0, trials)))
    p_values = np.where(contradicted | np.isnan(distance) | (trials == 0), np.nan, chance)
    rank, total = _rank(distance)

    def cause(k: int) -> Cause:
        rival = int(fisher.nearest[k])
        angle = angles_between(means[[k, rival]] - np.nanmean(means, axis=0)).margin
        sentence = (
            f"Its nearest class in feature space is '{outcome.names[rival]}' ({angle:.0f}° apart, rank {rank[k]} of {total} by "
            f"closeness): a straight boundary between the two puts {percent(error[k])} of their samples on the wrong side, "
            f"against {percent(usual)} for the median class."
        )
        remedy = (
            "Offsets cannot separate classes that overlap: use sharper inputs or a stronger backbone, train with margins "
            "(`MR2Loss`, `DBMLoss`), or merge the two classes if the difference does not matter."
        )
        return Cause("crowded", float(error[k]), float(p_values[k]), sentence, remedy, classes=(rival,))

    return Signal(p_values, (error >= OVERLAP) & (rank <= max(1, total // 10)), cause)


def scarcity(outcome: Outcome, train_counts: Ints) -> Signal:
    """Few training samples, and accuracy below what well-supplied classes reach.

    Two ways to be beyond chance, the better one counted twice: over all classes accuracy rises with the count (rank
    correlation), or this class falls out of the distribution of well-supplied classes (t-test allowing for both the
    spread between classes and sampling noise).
    """
    from scipy.stats import t

    accuracy, seen = outcome.accuracy, outcome.support > 0
    typical = float(np.median(train_counts[seen])) if seen.any() else np.nan
    supplied = seen & (train_counts >= typical)
    level, size = accuracy[supplied].mean(), supplied.sum()
    sampling = level * (1 - level) * divide(1.0, outcome.support)
    between = max(accuracy[supplied].var(ddof=1) - sampling[supplied].mean(), 0.0) if size > 2 else np.nan
    alone = t.sf(divide(level - accuracy, np.sqrt(between + sampling)), max(size - 1, 1))
    _, together, contradicted = _rank_correlation(train_counts.astype(np.float64), accuracy)
    p_values = np.minimum(1.0, 2 * np.fmin(alone, together))

    def cause(k: int) -> Cause:
        sentence = (
            f"Trained on {_many(train_counts[k], 'sample')} where the median class has {typical:.0f}; classes with at least "
            f"that many reach {percent(level)}, this one {percent(accuracy[k])}."
        )
        remedy = (
            "Collect more samples, or compensate for them: train with `CompactLogitsLoss(num_classes, class_counts=…)`, which "
            "adds logit adjustment to its pull, or shift the scores of the trained model with `classgap fix` and the training "
            "counts."
        )
        return Cause("few_samples", float(train_counts[k]), float(p_values[k]), sentence, remedy)

    short = seen & (train_counts <= FEW_RATIO * typical)
    return Signal(np.where(short & ~np.isnan(p_values) & (not contradicted), p_values, np.nan), short, cause)


def _median(values: Float64s) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _rank(values: Float64s) -> tuple[Ints, int]:
    """Rank of each class from 1 for the smallest value, nan last, and how many classes have one."""
    order = np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(1, len(values) + 1)
    return rank, int((~np.isnan(values)).sum())


def _rank_correlation(helpful: Float64s, accuracy: Float64s) -> tuple[float, float, bool]:
    """Rank correlation, its one-sided p-value, and whether the opposite direction is beyond chance.

    A cause is not named where, over all classes, more of it goes with *higher* accuracy.
    """
    from scipy.stats import spearmanr

    known = ~np.isnan(helpful) & ~np.isnan(accuracy)
    if known.sum() < 5 or np.ptp(helpful[known]) == 0 or np.ptp(accuracy[known]) == 0:
        return float("nan"), float("nan"), False
    correlation, p_value = spearmanr(helpful[known], accuracy[known], alternative="greater")
    return float(correlation), float(p_value), bool(p_value > 0.95)
