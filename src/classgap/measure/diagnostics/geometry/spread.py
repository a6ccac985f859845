"""Spread of the features of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s, Floats, Ints, class_blocks, class_means, divide, group_sums, row_blocks

# The farthest sample of the class is searched among this many samples that are farthest from the class mean. This is exact for
# classes up to this size; in larger classes the distance is too short if the farthest sample is not among them.
ANCHORS = 512


@dataclass(frozen=True, eq=False)
class Spread:
    r"""Means and deviations of the features of each class; nan for a class without samples.

    Attributes:
        support: ``(K,)`` samples of each class.
        means: ``(K, d)`` class means :math:`\mu_k`.
        mean_norm: ``(K,)`` :math:`\|\mu_k\|`.
        spread: ``(K,)`` :math:`\|s_k\| = \sqrt{\operatorname{mean}\|\phi-\mu_k\|^2}`, with the number of samples as divisor.
        spread_unbiased: The spread with the number of samples minus one as divisor; nan for a single sample.
        squared_error: ``(K,)`` standard error of ``spread_unbiased ** 2``.
        variance_norm: ``(K,)`` norm of the vector of per-dimension variances (divided by the count); depends on the axes.
        largest_norm: Largest :math:`\|\phi\|` of all samples.
        max_distance: ``(n,)`` ELM's :math:`d_{max}` of each sample, the distance to the farthest sample of its class
            (see :data:`ANCHORS`); 0 for a class of one sample.
        mean_max_distance: ``(K,)`` its mean over the samples of each class.
        diameter: ``(K,)`` its largest value in each class: the largest distance between two samples of the class.
        excess: ``(n,)`` eq. 3 of MR² for each sample: :math:`\max(0, d_{max}^2 - 2 \bar s)`, where :math:`\bar s` is the mean of
            :math:`\|s_k\|^2` over the classes with samples.
        excess_by_class: ``(K,)`` its mean over the samples of each class.
    """

    support: Ints
    means: Float64s
    mean_norm: Float64s
    spread: Float64s
    spread_unbiased: Float64s
    squared_error: Float64s
    variance_norm: Float64s
    largest_norm: float
    max_distance: Float64s
    mean_max_distance: Float64s
    diameter: Float64s
    excess: Float64s
    excess_by_class: Float64s

    @property
    def ratio(self) -> Float64s:
        r"""``(K,)`` :math:`\|s_k\| / \|\mu_k\|`; near 0 when features have collapsed to their class mean."""
        return divide(self.spread, self.mean_norm)

    @property
    def second_moment(self) -> Float64s:
        r"""``(K,)`` :math:`a_k = \operatorname{mean}\|\phi\|^2 = \|\mu_k\|^2 + \|s_k\|^2`, the quantity in the margins of MR²."""
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
    variance = divide(total, support)
    scatter = group_sums((squared - variance[y_true]) ** 2, y_true, num_classes)
    farthest = _max_distances(features, rows, means, squared)
    excess = np.maximum(farthest**2 - 2 * float(np.nanmean(variance)), 0.0)
    return Spread(
        support=support,
        means=means,
        mean_norm=np.linalg.norm(means, axis=1),
        spread=np.sqrt(variance),
        spread_unbiased=np.sqrt(divide(total, np.maximum(support - 1, 0))),
        squared_error=np.sqrt(divide(scatter, np.maximum(support - 1, 0) * support)),
        variance_norm=np.linalg.norm(divide(variances, support[:, None]), axis=1),
        largest_norm=float(np.sqrt(largest)),
        max_distance=farthest,
        mean_max_distance=class_means(farthest, y_true, num_classes),
        diameter=np.array([farthest[members].max() if len(members) else np.nan for members in rows]),
        excess=excess,
        excess_by_class=class_means(excess, y_true, num_classes),
    )


def _max_distances(features: Floats, rows: list[Ints], means: Float64s, squared: Float64s) -> Float64s:
    """Distance of each sample to the farthest sample of its class.

    The farthest sample is found in float32 around the class mean, in blocks; the distance to it is computed in float64.
    """
    result = np.zeros(len(squared))
    for k, members in enumerate(rows):
        if not len(members):
            continue
        far = members[np.argsort(-squared[members], kind="stable")[:ANCHORS]]
        anchors = (features[far].astype(np.float64) - means[k]).astype(np.float32)
        for block in row_blocks(len(members), max(features.shape[1], len(far))):
            own = features[members[block]].astype(np.float64)
            # |a - b|² without |b|², which is the same for all partners of a sample
            distances = squared[far] - 2 * ((own - means[k]).astype(np.float32) @ anchors.T)
            apart = own - features[far[distances.argmax(axis=1)]]
            result[members[block]] = np.sqrt(np.einsum("nd,nd->n", apart, apart))
    return result
