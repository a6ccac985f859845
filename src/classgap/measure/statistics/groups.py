"""Groups of classes: easy/medium/hard thirds under several rankings, and many/medium/few by training samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide

THIRDS = ("easy", "medium", "hard")
FREQUENCIES = ("many", "medium", "few")
Remainder = Literal["first", "last"]

RANKINGS: Mapping[str, str] = {
    "own": "classes ranked by their accuracy on these very samples; what papers print, and too extreme by the luck of the draw",
    "reference": "classes ranked by another model; a ranking from the same samples favours any re-run on its hard third",
    "cross": "classes ranked on half the samples and scored on the other half, averaged over splits: no luck, but rougher ranks",
    "frequency": "classes grouped by their number of training samples",
}


def third_sizes(num_classes: int, remainder: Remainder = "first") -> tuple[int, int, int]:
    """Sizes of the three groups; classes left over go to the first groups (34/33/33) or the last (33/33/34).

    Two classes are one easy and one hard; a single class is easy.
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
    """Group of every class: 0 easy, 1 medium, 2 hard, -1 where accuracy is nan. Ties go by class index.

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


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Cross-fitted group means.

    Attributes:
        means: ``(3, S)``: mean accuracy of the easy, medium and hard third, for each of S columns of outcomes.
        squared: ``(3, K)``: squared weights of the classes, averaged over splits, for variances. A class near a
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
    splits: int = 50,
    remainder: Remainder = "first",
) -> CrossFit:
    """Rank classes on one half of the samples, score them on the other, swap, and average over random ``splits``.

    Samples come as cells: ``count[i]`` samples of class ``class_of[i]`` share ``ranked_by[i]`` (their mean ranks the
    class) and the ``outcomes[i]`` to average. Each sample tosses a coin for its half, so thinning the cell counts is
    the same as splitting rows, and no row is touched.
    """
    means = np.zeros((3, outcomes.shape[1]))
    squared = np.zeros((3, num_classes))
    scored = np.zeros((3, 1))
    for _ in range(splits):
        half = rng.binomial(count, 0.5)
        for ranking, scoring in ((half, count - half), (count - half, half)):
            group = thirds(_class_means(class_of, ranking, ranked_by, num_classes), remainder)
            accuracy = np.stack([_class_means(class_of, scoring, o, num_classes) for o in outcomes.T], axis=1)
            member = membership(group, ~np.isnan(accuracy[:, 0]))
            used = member.any(1, keepdims=True)
            means += member @ np.nan_to_num(accuracy)
            squared += member**2
            scored += used
    averages = np.clip(divide(means, scored), 0, 1)  # rounding may leave 1 + 2e-16
    return CrossFit(averages, squared / np.maximum(scored, 1))


def _class_means(class_of: Ints, count: Ints, value: Float64s, num_classes: int) -> Float64s:
    total = np.bincount(class_of, weights=count * value, minlength=num_classes)
    return divide(total, np.bincount(class_of, weights=count, minlength=num_classes))
