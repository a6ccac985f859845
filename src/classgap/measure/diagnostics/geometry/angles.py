"""Angles between class vectors, and the margin of the classifier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s, Floats, Ints, divide, row_blocks


@dataclass(frozen=True, eq=False)
class Angles:
    """Angles in degrees between K vectors; zero and nan vectors are ignored.

    Attributes:
        nearest: ``(K,)`` angle to the closest other vector.
        neighbour: ``(K,)`` index of that vector, -1 if there is none.
        mean: Mean angle over all pairs.
    """

    nearest: Float64s
    neighbour: Ints
    mean: float

    @property
    def margin(self) -> float:
        r"""Smallest angle of all, :math:`\arccos \max_{i \ne j} \hat w_i^\top \hat w_j`."""
        return float(np.nanmin(self.nearest)) if np.isfinite(self.nearest).any() else float("nan")


def angles_between(vectors: Floats) -> Angles:
    """:class:`Angles` between the rows of ``vectors``, computed in blocks.

    Example:
        >>> import numpy as np
        >>> angles_between(np.eye(3)).margin
        90.0
    """
    vectors = np.asarray(vectors, np.float64)
    unit = divide(vectors, np.linalg.norm(vectors, axis=1, keepdims=True))
    defined = np.flatnonzero(np.isfinite(unit).all(axis=1))
    nearest, neighbour = np.full(len(vectors), np.nan), np.full(len(vectors), -1)
    if len(defined) < 2:
        return Angles(nearest, neighbour, float("nan"))
    unit, total = unit[defined], 0.0
    for block in row_blocks(len(defined), len(defined)):
        cosine = np.clip(unit[block] @ unit.T, -1.0, 1.0)
        rows = np.arange(len(cosine))
        own = rows + block.start
        angle = np.degrees(np.arccos(cosine))
        angle[rows, own] = 0.0
        total += float(angle.sum())
        angle[rows, own] = np.inf
        closest = angle.argmin(axis=1)
        nearest[defined[block]] = angle[rows, closest]
        neighbour[defined[block]] = defined[closest]
    return Angles(nearest, neighbour, total / (len(defined) * (len(defined) - 1)))


def largest_margin(num_classes: int, width: int) -> float:
    r"""Upper limit in degrees of the smallest angle between ``num_classes`` directions in ``width`` dimensions.

    :math:`\arccos(-1/(K-1))` for :math:`K \le d+1` (a simplex), 90° for :math:`d+1 < K \le 2d` (a cross-polytope); both are
    attained. For more vectors the limit is below 90° and no formula is known; the value is then an upper limit by volume (caps of
    half the angle around each direction cannot overlap), exact in two dimensions.

    Example:
        >>> [round(largest_margin(k, 2), 1) for k in (2, 3, 4, 5)]
        [180.0, 120.0, 90.0, 72.0]
    """
    if num_classes < 2:
        return float("nan")
    if num_classes <= width + 1:
        return float(np.degrees(np.arccos(-1 / (num_classes - 1))))
    if num_classes <= 2 * width:
        return 90.0
    if width == 1:
        return 0.0
    from scipy.special import betaincinv

    sine = np.sqrt(betaincinv((width - 1) / 2, 0.5, 2 / num_classes))
    return float(min(90.0, 2 * np.degrees(np.arcsin(sine))))


@dataclass(frozen=True, eq=False)
class HeadGeometry:
    r"""A linear head :math:`z = W\phi + b` and its relation to the samples; biases are only part of the average logits.

    Attributes:
        norms: ``(K,)`` :math:`\|w_k\|`.
        angles: Angles between weight vectors.
        limit: Upper limit of ``angles.margin`` for this K and d.
        average_logit: ``(K,)`` MARC's :math:`\bar\eta_k`, the mean logit of class k over its own samples.
        average_margin: ``(K,)`` MARC's :math:`\bar d_k = \bar\eta_k / \|w_k\|`; after MARC the calibrated margin of its eq. 8,
            :math:`\omega_k \bar d_k + \beta_k`, which is the calibrated logit divided by the norm *before* calibration.
        sample_angle: ``(K, 4)`` DBM's angle in degrees between features and the weight of their class: mean and quartiles.
    """

    norms: Float64s
    angles: Angles
    limit: float
    average_logit: Float64s
    average_margin: Float64s
    sample_angle: Float64s

    @property
    def norm_variation(self) -> float:
        """Coefficient of variation of the norms."""
        return float(self.norms.std() / self.norms.mean()) if self.norms.any() else float("nan")


def describe_head(
    features: Floats,
    y_true: Ints,
    rows: list[Ints],
    means: Float64s,
    weight: Float64s,
    bias: Float64s,
    *,
    margin_norms: Float64s | None = None,
    average_logit: Float64s | None = None,
) -> HeadGeometry:
    """:class:`HeadGeometry` of ``weight`` (``(K, d)``); ``means`` are the class means, ``rows`` each class's samples.

    Args:
        margin_norms: Norms for the average margins; by default those of ``weight``.
        average_logit: ``(K,)`` mean logit of each class over its own samples; by default from ``weight`` and ``bias``.
    """
    num_classes, width = means.shape
    norms = np.linalg.norm(weight, axis=1)
    if average_logit is None:
        average_logit = np.einsum("kd,kd->k", weight, means) + bias
    angle = np.empty(len(features))
    for block in row_blocks(*features.shape):
        values, own = features[block].astype(np.float64), weight[y_true[block]]
        lengths = np.linalg.norm(values, axis=1) * norms[y_true[block]]
        angle[block] = np.degrees(np.arccos(np.clip(divide(np.einsum("nd,nd->n", values, own), lengths), -1.0, 1.0)))
    sample_angle = np.full((num_classes, 4), np.nan)
    for k, members in enumerate(rows):
        known = angle[members][~np.isnan(angle[members])]
        if len(known):
            sample_angle[k] = known.mean(), *np.quantile(known, (0.25, 0.5, 0.75))
    return HeadGeometry(
        norms=norms,
        angles=angles_between(weight),
        limit=largest_margin(num_classes, width),
        average_logit=average_logit,
        average_margin=divide(average_logit, norms if margin_norms is None else margin_norms),
        sample_angle=sample_angle,
    )
