"""Groups of classes: easy/medium/hard thirds under several rankings, and many/medium/few by training samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import BLOCK_ENTRIES, Float64s, Ints

THIRDS = ("easy", "medium", "hard")
FREQUENCIES = ("many", "medium", "few")
Remainder = Literal["first", "last"]

RANKINGS: Mapping[str, str] = {
    "own": "classes ranked by their accuracy on the same samples, as in most papers; too extreme because of sampling noise",
    "reference": "classes ranked by another model; on the same samples, any new run looks better on the hard third",
    "cross": "classes ranked on one half of the samples and measured on the other half; no selection bias, but less exact ranks",
    "frequency": "classes grouped by their number of training samples",
}


def third_sizes(num_classes: int, remainder: Remainder = "first") -> tuple[int, int, int]:
    """Sizes of the three groups; remaining classes go to the first groups (34/33/33) or to the last (33/33/34).

    Of two classes, one is easy and one is hard; a single class is easy.
    """
    if num_classes == 2:
        return 1, 0, 1
    if num_classes == 1:
        return 1, 0, 0
    base, extra = divmod(num_classes, 3)
    sizes = [base + (i < extra) for i in range(3)]
    easy, medium, hard = sizes if remainder == "first" else sizes[::-1]
    return easy, medium, hard


def thirds(accuracy: Float64s, remainder: Remainder = "first") -> Ints:
    """Group of every class: 0 easy, 1 medium, 2 hard, -1 if its accuracy is nan. Ties are resolved by class index.

    Example:
        >>> thirds(np.array([0.2, 0.9, np.nan, 0.5]))
        array([ 2,  0, -1,  1])
    """
    present = np.flatnonzero(~np.isnan(accuracy))
    order = present[np.argsort(-accuracy[present], kind="stable")]
    group = np.full(len(accuracy), -1, dtype=np.int64)
    group[order] = np.repeat(np.arange(3), third_sizes(len(present), remainder))
    return group


def by_frequency(train_counts: Ints, *, few: int = 20, many: int = 100) -> Ints:
    """Group of every class: 0 many (``n > many``), 1 medium (``few <= n <= many``), 2 few (``n < few``)."""
    return np.where(train_counts > many, 0, np.where(train_counts < few, 2, 1))


def membership(group: Ints, present: NDArray[np.bool_]) -> Float64s:
    """Weights ``(3, K)`` of the group means over present classes; a row of zeros for an empty group."""
    member = (group == np.arange(3)[:, None]) & present
    return np.asarray(member / np.maximum(member.sum(1, keepdims=True), 1))


def rank_weights(num_classes: int, remainder: Remainder = "first") -> Float64s:
    """``(3, K)`` weights of the thirds by rank: column 0 is the best class. A row of zeros for an empty group."""
    group = np.repeat(np.arange(3), third_sizes(num_classes, remainder))
    return membership(group, np.ones(num_classes, dtype=bool))


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Cross-fitted sums of ranked class accuracies.

    Attributes:
        means: ``(M, S)``: for each of M rows of rank weights (by default the easy, medium and hard third) and each of S
            columns of outcomes, the weighted sum of class accuracies.
        squared: ``(M, K)``: squared weights of the classes, averaged over splits, for variances. A class near a
            boundary moves between groups from split to split; these weights give the variance as if each split's groups
            were fixed, which errs on the wide side where the ranking is all noise.
    """

    means: Float64s
    squared: Float64s


def cross_fit(
    class_of: Ints,
    count: Ints,
    ranked_by: Float64s,
    outcomes: Float64s,
    num_classes: int,
    *,
    rng: np.random.Generator,
    splits: int | None = None,
    remainder: Remainder = "first",
    weights: Float64s | None = None,
) -> CrossFit:
    """Rank classes on one half of the samples, measure them on the other, swap, and average over random ``splits``.

    Samples come as cells: ``count[i]`` samples of class ``class_of[i]`` share ``ranked_by[i]`` (their mean ranks the
    class) and the ``outcomes[i]`` to average. Each sample is assigned to a half independently, so
    binomial draws of the cell counts are equivalent to splitting rows. Every class with samples is measured in every split: a
    class whose samples are all in the ranking half is measured on them and ranked at the mean of all classes. A class is ranked
    by its accuracy with one pseudo-sample at that mean.

    The classes that look worst on one half are not all among the truly worst: their mean lies between that of the truly
    worst classes and the mean of all classes; the fewer samples per class, the closer to the latter.

    Args:
        splits: Number of random splits; by default 50, fewer with more than 20 000 classes, but at least 10.
        weights: ``(M, K present)`` weight of each rank, best class first; by default those of :func:`rank_weights`.
    """
    keep = np.argsort(class_of, kind="stable")
    keep = keep[count[keep] > 0]
    class_of, count, ranked_by, outcomes = class_of[keep], count[keep], ranked_by[keep], outcomes[keep]
    starts = np.flatnonzero(np.concatenate(([True], class_of[1:] != class_of[:-1])))
    present = class_of[starts]
    ranks = rank_weights(len(present), remainder) if weights is None else weights
    splits = int(np.clip(1_000_000 // max(num_classes, 1), 10, 50)) if splits is None else splits
    means, squared = np.zeros((len(ranks), outcomes.shape[1])), np.zeros((len(ranks), num_classes))
    prior = float((count * ranked_by).sum() / max(count.sum(), 1))
    step = max(1, BLOCK_ENTRIES // (8 * max(len(count), 1)))
    for start in range(0, splits, step):
        half = rng.binomial(count, 0.5, size=(min(step, splits - start), len(count)))
        halves = np.concatenate([half, count - half])
        order, scored = _split(halves, count, ranked_by, starts, prior)
        of_class = np.argsort(order, axis=1)  # the rank of every class
        size = np.add.reduceat(scored, starts, axis=1)
        for column in range(outcomes.shape[1]):
            accuracy = np.add.reduceat(scored * outcomes[:, column], starts, axis=1) / size
            means[:, column] += ranks @ np.take_along_axis(accuracy, order, axis=1).sum(0)
        for row, by_rank in enumerate(ranks):
            squared[row, present] += (by_rank**2)[of_class].sum(0)
    used = ranks.any(1, keepdims=True)
    return CrossFit(np.where(used, means / (2 * splits), np.nan), squared / (2 * splits))


def _split(halves: Ints, count: Ints, ranked_by: Float64s, starts: Ints, prior: float) -> tuple[Ints, Ints]:
    """For each row of cells ranked on: the classes from best to worst, and the cells to score on."""
    totals = np.add.reduceat(count, starts)
    taken = np.add.reduceat(halves, starts, axis=1)
    lengths = np.diff(np.append(starts, len(count)))
    everything = taken == totals
    ranking = np.where(np.repeat(everything, lengths, axis=1), 0, halves)
    hits = np.add.reduceat(ranking * ranked_by, starts, axis=1)
    score = (hits + prior) / (np.where(everything, 0, taken) + 1)
    return np.argsort(-score, axis=1, kind="stable"), count - ranking
