"""How far the samples of a class lie apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap._arrays import Float64s, Floats, Ints, class_blocks, divide, group_sums, row_blocks

# The largest distance within a class is sought between these many samples farthest from its mean and all the others:
# exact for classes up to this size, and for larger ones unless neither end of the longest pair is among them.
ANCHORS = 512


@dataclass(frozen=True, eq=False)
class Spread:
    r"""Means and deviations of the features of each class; nan where a class is absent.

    Attributes:
        support: ``(K,)`` samples of each class.
        means: ``(K, d)`` class means :math:`\mu_k`.
        mean_norm: ``(K,)`` :math:`\|\mu_k\|`.
        spread: ``(K,)`` :math:`\|s_k\| = \sqrt{\operatorname{mean}\|\phi-\mu_k\|^2}`, dividing by the sample count.
        spread_unbiased: The same dividing by the count minus one; nan for a single sample.
        squared_error: ``(K,)`` standard error of ``spread_unbiased ** 2``.
        variance_norm: ``(K,)`` norm of the vector of per-dimension variances (divided by the count); depends on the axes.
        largest_norm: Largest :math:`\|\phi\|` of all samples.
        diameter: ``(K,)`` largest distance between two samples of the class (see :data:`ANCHORS`).
    """

    support: Ints
    means: Float64s
    mean_norm: Float64s
    spread: Float64s
    spread_unbiased: Float64s
    squared_error: Float64s
    variance_norm: Float64s
    largest_norm: float
    diameter: Float64s

    @property
    def ratio(self) -> Float64s:
        r"""``(K,)`` :math:`\|s_k\| / \|\mu_k\|`; near 0 when features have collapsed to their class mean."""
        return divide(self.spread, self.mean_norm)

    @property
    def second_moment(self) -> Float64s:
        r"""``(K,)`` :math:`a_k = \operatorname{mean}\|\phi\|^2 = \|\mu_k\|^2 + \|s_k\|^2`, what MR²'s margins are made of."""
        return np.asarray(self.mean_norm**2 + self.spread**2)


def measure_spread(features: Floats, y_true: Ints, rows: list[Ints]) -> Spread:
    """:class:`Spread` of ``features``; ``rows`` holds the row indices of each class."""
    support = np.array([len(members) for members in rows])
    num_classes, width = len(rows), features.shape[1]
    sums, largest = np.zeros((num_classes, width)), 0.0
    for k, _, values in class_blocks(features, rows):
        sums[k] += values.sum(axis=0)
        largest = max(largest, float(np.einsum("nd,nd->n", values, values).max()))
    means = divide(sums, support[:, None])
    squared, variances = np.empty(len(features)), np.zeros((num_classes, width))
    for k, members, values in class_blocks(features, rows):
        deviations = (values - means[k]) ** 2
        squared[members] = deviations.sum(axis=1)
        variances[k] += deviations.sum(axis=0)
    total = group_sums(squared, y_true, num_classes)
    scatter = group_sums((squared - divide(total, support)[y_true]) ** 2, y_true, num_classes)
    return Spread(
        support=support,
        means=means,
        mean_norm=np.linalg.norm(means, axis=1),
        spread=np.sqrt(divide(total, support)),
        spread_unbiased=np.sqrt(divide(total, np.maximum(support - 1, 0))),
        squared_error=np.sqrt(divide(scatter, np.maximum(support - 1, 0) * support)),
        variance_norm=np.linalg.norm(divide(variances, support[:, None]), axis=1),
        largest_norm=float(np.sqrt(largest)),
        diameter=_diameters(features, rows, means, squared),
    )


def _diameters(features: Floats, rows: list[Ints], means: Float64s, squared: Float64s) -> Float64s:
    """Largest distance within each class: the pair is found in float32 around the class mean, its length is exact."""
    result = np.full(len(rows), np.nan)
    for k, members in enumerate(rows):
        if not len(members):
            continue
        far = members[np.argsort(-squared[members], kind="stable")[:ANCHORS]]
        anchors = (features[far].astype(np.float64) - means[k]).astype(np.float32)
        best, pair = -np.inf, (far[0], far[0])
        for block in row_blocks(len(members), max(features.shape[1], len(far))):
            others = (features[members[block]].astype(np.float64) - means[k]).astype(np.float32)
            distances = squared[far][:, None] + squared[members[block]] - 2 * (anchors @ others.T)
            top = int(distances.argmax())
            if distances.flat[top] > best:
                best, (i, j) = float(distances.flat[top]), np.unravel_index(top, distances.shape)
                pair = (far[i], members[block][j])
        ends = features[list(pair)].astype(np.float64)
        result[k] = np.linalg.norm(ends[0] - ends[1])
    return result
