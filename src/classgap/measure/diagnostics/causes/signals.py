"""The evidence for each cause of low class accuracy: a significance test, and whether the effect is large enough to matter.

Every function returns a :class:`Signal` for *all* classes. To test only the hard classes would be circular, since they were
selected by their errors. :mod:`classgap.measure.diagnostics.causes.diagnosis` corrects for the number of tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide
from classgap.measure.diagnostics.geometry.angles import angles_between
from classgap.measure.diagnostics.geometry.fisher import smallest
from classgap.measure.diagnostics.geometry.spread import Spread
from classgap.measure.diagnostics.geometry.summary import Geometry
from classgap.measure.render.plain import percent

CauseKind = Literal["confused", "underpredicted", "scattered", "few_samples", "mislabelled", "crowded"]
Bools: TypeAlias = NDArray[np.bool_]

# Smallest effects that are reported; significance is tested separately.
MAIN_SHARE = 0.25  # share of a class's errors that go to one other class, or
TOGETHER_SHARE = 0.4  # … share that goes to at most MAX_PARTNERS other classes,
ALSO_SHARE = 0.1  # … each of which has at least this share
MAX_PARTNERS = 3
UNDERPREDICTED = 0.8  # number of predictions divided by number of occurrences
SPREAD_RATIO = 1.1  # spread divided by that of the median class
OVERLAP = 0.05  # share of the samples of two classes on the wrong side of a linear boundary between them
FEW_RATIO = 0.5  # training samples divided by those of the median class

# The remedies that gave hard classes most in docs/evidence.md, without a cost for easy ones.
TRAIN_LONGER = (
    "If the training accuracy is far below 100 %, train longer first: three times the epochs gave the hard third +12 points "
    "from scratch and +4 in fine-tuning, and easy classes did not lose (CIFAR images)."
)
AUGMENT = (
    "If a network trained from scratch fits its training images, train it with AutoAugment, predict with mirrored views and add "
    "a gap dial (`classgap train smaller_gap_images`): +5 points for the hard and +3 for the easy third on CIFAR-10, +8 and +8 "
    "on CIFAR-100."
)
FINETUNE = (
    "If a fine-tuned network fits its training images, train it with `CompactLogitsLoss`, predict with mirrored views and add a "
    "gap dial (`classgap train smaller_gap_finetuning`): +2 points for the hard and +1 for the easy third on CIFAR-100."
)
FEATURES = (
    "On frozen features, train a hidden layer with `CompactLogitsLoss` and a gap dial (`classgap train smaller_gap_features`): "
    "+4 points for the hard third on CIFAR-100, and easy classes did not lose."
)
MERGE = "Merge the two classes if the difference does not matter."


@dataclass(frozen=True)
class Cause:
    """One cause of the low accuracy of a class.

    Attributes:
        kind: Short code of the cause.
        title: The cause in a few words. Causes with the same title have the same remedies.
        number: The evidence as a number: a share, a ratio or a count; the sentence says which.
        p_value: p-value before the correction for the number of classes.
        sentence: The evidence in plain English.
        remedies: What to try, most promising first, and what does not help.
        classes: Other classes involved, most important first.
        samples: Rows to check (suspected wrong labels), most suspicious first.
    """

    kind: CauseKind
    title: str
    number: float
    p_value: float
    sentence: str
    remedies: tuple[str, ...]
    classes: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Signal:
    """One possible cause for all classes: p-values (nan if not testable), whether the effect is large enough, and the text."""

    p_values: Float64s
    material: Bools
    cause: Callable[[int], Cause]


@dataclass(frozen=True, eq=False)
class ClassErrors:
    """Errors, correct predictions and number of predictions of every class, from a confusion matrix."""

    off_diagonal: Any  # SciPy CSR array
    support: Ints
    correct: Ints
    predicted: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, counts: Any, names: tuple[str, ...]) -> ClassErrors:
        from scipy.sparse import csr_array, diags_array

        matrix = csr_array(counts)
        correct = matrix.diagonal()
        off_diagonal = csr_array(matrix - diags_array(correct, dtype=matrix.dtype))
        off_diagonal.eliminate_zeros()
        return cls(off_diagonal, matrix.sum(axis=1), correct, matrix.sum(axis=0), names)

    @cached_property
    def errors(self) -> Ints:
        return np.asarray(self.support - self.correct)

    @property
    def accuracy(self) -> Float64s:
        return divide(self.correct, self.support)

    @cached_property
    def mean_accuracy(self) -> float:
        return float(np.nanmean(self.accuracy))


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' if count != 1 else ''}"


def confusion(table: ClassErrors) -> Signal:
    """Errors that go to one other class more often than if all other classes were equally likely (binomial test)."""
    from scipy.stats import binom

    others = len(table.support) - 1
    errors, off = table.errors, table.off_diagonal
    most = off.max(axis=1).toarray().ravel()
    # With two classes all errors go to the other class, which is no evidence.
    testable = (errors > 0) & (others > 1)
    chance = np.minimum(1.0, others * binom.sf(most - 1, errors, 1 / max(others, 1)))
    p_values = np.where(testable, chance, np.nan)
    row, column, count = _most_frequent(off, MAX_PARTNERS)
    significant = others * binom.sf(count - 1, errors[row], 1 / max(others, 1)) < 0.05
    partner = significant & (count >= ALSO_SHARE * errors[row])
    row, column, count = row[partner], column[partner], count[partner]
    together = np.bincount(row, count, len(errors))
    material = (most >= MAIN_SHARE * errors) | (together >= TOGETHER_SHARE * errors)

    def cause(k: int) -> Cause:
        return _word_confusion(table, k, column[row == k].tolist(), float(p_values[k]))

    return Signal(p_values, material & (most >= 3) & (together > 0), cause)


def _most_frequent(matrix: Any, count: int) -> tuple[Ints, Ints, Ints]:
    """Row, column and value of the ``count`` largest entries of each row of a CSR array, row by row, largest first."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    place = np.arange(len(order)) - matrix.indptr[row]  # rows stay where they are, so this is the rank within the row
    top = order[place < count]
    return row[top], matrix.indices[top], matrix.data[top]


def _word_confusion(table: ClassErrors, k: int, partners: list[int], p_value: float) -> Cause:
    rival, errors, names = partners[0], table.errors, table.names
    there, back = int(table.off_diagonal[k, rival]), int(table.off_diagonal[rival, k])
    also = [f"'{names[j]}' ({percent(table.off_diagonal[k, j] / errors[k])})" for j in partners[1:]]
    sentence = (
        f"{percent(there / errors[k])} of its errors ({there} of {errors[k]}) are predictions of '{names[rival]}'"
        + (f", followed by {' and '.join(also)}" if also else "")
        + (
            f". In the other direction: {back} of {errors[rival]} errors of '{names[rival]}'."
            if table.support[rival]
            else f". '{names[rival]}' has no samples here, so the other direction is not known."
        )
    )
    title, remedies = _direction(table, k, rival)
    return Cause("confused", title, float(there / errors[k]), p_value, sentence, remedies, classes=tuple(partners))


def _direction(table: ClassErrors, k: int, rival: int) -> tuple[str, tuple[str, ...]]:
    """Whether the two classes are confused in one direction or in both, and what to try."""
    from scipy.stats import binom

    if not table.support[rival]:
        name = table.names[rival]
        return "Confused with a class without samples", (
            f"Check whether '{name}' occurs where the model is used: if not, leave it out of the choice (an offset of minus "
            "infinity); otherwise add samples of it to the test set.",
        )
    there, back = int(table.off_diagonal[k, rival]), int(table.off_diagonal[rival, k])
    share = table.support[k] / (table.support[k] + table.support[rival])
    mainly_there = there >= 2 * share * back / max(1 - share, 1e-12)  # at least twice the rate of the other direction
    if mainly_there and binom.sf(there - 1, there + back, share) < 0.05:
        return "Confused in one direction", (
            "`classgap fix`: offsets per class move the boundary to the class that is predicted instead.",
        )
    both_ways = (
        TRAIN_LONGER,
        "Try inputs of higher resolution, more samples of the two classes, and on frozen features `CompactLogitsLoss`.",
        MERGE,
    )
    if mainly_there:
        offsets = "If the confusion is in one direction, offsets per class help: `classgap fix` tries them on held-out samples."
        return "Confused, too few errors to tell the direction", (*both_ways, offsets)
    return "Confused in both directions", (
        *both_ways,
        "Offsets would help one of the two classes and harm the other.",
    )


def under_prediction(table: ClassErrors) -> Signal:
    """Classes that are missed significantly more often than they are wrongly predicted (sign test)."""
    from scipy.stats import binom

    missed, false = table.errors, table.predicted - table.correct
    p_values = np.where(table.support > 0, binom.sf(missed - 1, missed + false, 0.5), np.nan)

    def cause(k: int) -> Cause:
        ratio = float(table.predicted[k] / table.support[k])
        sentence = (
            f"Predicted too rarely: {_many(table.predicted[k], 'prediction')} for {_many(table.support[k], 'sample')} "
            f"({missed[k]} missed, {false[k]} wrongly predicted)."
        )
        remedies = ("`classgap fix`: an offset, fitted on held-out predictions, raises its score.",)
        return Cause("underpredicted", "Predicted too rarely", ratio, float(p_values[k]), sentence, remedies)

    return Signal(p_values, table.predicted <= UNDERPREDICTED * table.support, cause)


def scatter(table: ClassErrors, spread: Spread) -> Signal:
    """Spread significantly above that of the median class (t-test on squared deviations)."""
    from scipy.stats import t

    squared = spread.spread_unbiased**2
    typical = _median(squared)
    statistic = divide(squared - typical, spread.squared_error)
    correlation, _, contradicted = _rank_correlation(-spread.spread_unbiased, table.accuracy)
    p_values = t.sf(statistic, np.maximum(spread.support - 1, 1))
    rank, total = _rank(-squared)
    ratio = np.sqrt(divide(squared, typical))

    def cause(k: int) -> Cause:
        sentence = (
            f"The spread of its features is {ratio[k]:.2f} times that of the median class "
            f"(rank {rank[k]} of {total} by spread"
            + (
                f"; rank correlation of spread and accuracy over all classes {-correlation:.2f})."
                if total > 9
                else ")."
            )
        )
        several = "Check whether the class contains several kinds of objects."
        remedies = (TRAIN_LONGER, AUGMENT, FINETUNE, FEATURES, several)
        return Cause(
            "scattered", "Large spread of the features", float(ratio[k]), float(p_values[k]), sentence, remedies
        )

    material = (rank <= max(1, total // 10)) & (ratio >= SPREAD_RATIO)
    return Signal(np.where(contradicted, np.nan, p_values), material, cause)


def crowding(table: ClassErrors, geometry: Geometry) -> Signal:
    """Among the tenth of classes nearest to another class, and significantly harder to separate than the median (binomial)."""
    from scipy.stats import binom

    means, fisher = geometry.spread.means, geometry.fisher
    distance = smallest(np.where(np.isinf(fisher.distance), np.nan, fisher.distance))[0]
    _, _, contradicted = _rank_correlation(distance, table.accuracy)
    error, trials = fisher.boundary_error, fisher.boundary_trials
    usual = _median(error)
    chance = binom.sf(fisher.boundary_wrong - 1, trials, np.maximum(usual, divide(1.0, trials)))
    p_values = np.where(contradicted | np.isnan(distance) | (trials == 0), np.nan, chance)
    rank, total = _rank(distance)

    def cause(k: int) -> Cause:
        rival = int(fisher.nearest[k])
        angle = angles_between(means[[k, rival]] - np.nanmean(means, axis=0)).margin
        sentence = (
            f"Its nearest class in feature space is '{table.names[rival]}' (angle {angle:.0f}°, rank {rank[k]} of {total} by "
            f"closeness): a linear boundary between the two classes has {percent(error[k])} of their samples on the wrong side; "
            f"for the median class it is {percent(usual)}."
        )
        remedies = (
            TRAIN_LONGER,
            "Use inputs of higher resolution or a stronger backbone.",
            MERGE,
            "Offsets cannot separate classes that overlap.",
        )
        title = "Close to another class in feature space"
        return Cause("crowded", title, float(error[k]), float(p_values[k]), sentence, remedies, classes=(rival,))

    return Signal(p_values, (error >= OVERLAP) & (rank <= max(1, total // 10)), cause)


def scarcity(table: ClassErrors, train_counts: Ints) -> Signal:
    """Few training samples, and accuracy significantly below that of classes with many.

    Two tests, with Bonferroni correction: over all classes, accuracy increases with the count (rank correlation); or the
    accuracy of this class is below the distribution of classes with many samples (t-test with the variance between classes
    and the sampling variance).
    """
    from scipy.stats import t

    accuracy, seen = table.accuracy, table.support > 0
    typical = float(np.median(train_counts[seen])) if seen.any() else np.nan
    supplied = seen & (train_counts >= typical)
    level, size = accuracy[supplied].mean(), supplied.sum()
    sampling = level * (1 - level) * divide(1.0, table.support)
    between = max(accuracy[supplied].var(ddof=1) - sampling[supplied].mean(), 0.0) if size > 2 else np.nan
    alone = t.sf(divide(level - accuracy, np.sqrt(between + sampling)), max(size - 1, 1))
    _, together, contradicted = _rank_correlation(train_counts.astype(np.float64), accuracy)
    p_values = np.minimum(1.0, 2 * np.fmin(alone, together))

    def cause(k: int) -> Cause:
        sentence = (
            f"{_many(train_counts[k], 'training sample')}, while the median class has {typical:.0f}. The mean accuracy of "
            f"classes with at least that many is {percent(level)}, that of this class {percent(accuracy[k])}."
        )
        remedies = (
            "Collect more samples: `classgap learning-curve` predicts what they give, from models trained with parts of the "
            "present ones.",
            "Train with `CompactLogitsLoss(num_classes, class_counts=…)`, which includes logit adjustment.",
            "Correct the trained model with `classgap fix --train-counts`.",
        )
        return Cause(
            "few_samples", "Few training samples", float(train_counts[k]), float(p_values[k]), sentence, remedies
        )

    short = seen & (train_counts <= FEW_RATIO * typical)
    return Signal(np.where(short & ~np.isnan(p_values) & (not contradicted), p_values, np.nan), short, cause)


def _median(values: Float64s) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _rank(values: Float64s) -> tuple[Ints, int]:
    """Rank of each class, 1 for the smallest value and nan last, and the number of classes with a value."""
    order = np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(1, len(values) + 1)
    return rank, int((~np.isnan(values)).sum())


def _rank_correlation(helpful: Float64s, accuracy: Float64s) -> tuple[float, float, bool]:
    """Rank correlation, its one-sided p-value, and whether the opposite direction is significant.

    A cause is not named if, over all classes, more of it is associated with *higher* accuracy.
    """
    from scipy.stats import spearmanr

    known = ~np.isnan(helpful) & ~np.isnan(accuracy)
    if known.sum() < 5 or np.ptp(helpful[known]) == 0 or np.ptp(accuracy[known]) == 0:
        return float("nan"), float("nan"), False
    correlation, p_value = spearmanr(helpful[known], accuracy[known], alternative="greater")
    return float(correlation), float(p_value), bool(p_value > 0.95)
