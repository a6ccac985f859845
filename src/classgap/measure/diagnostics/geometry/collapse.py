"""Neural collapse: how far features and head are from one point per class on a regular simplex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s, Floats, Ints, row_blocks

NAN = float("nan")


@dataclass(frozen=True)
class Collapse:
    r"""Measures of neural collapse, numbered as in Papyan et al. (2020); all are 0 at full collapse, nan if undefined.

    Class means are centred on their own mean; all classes with samples have equal weight.

    Attributes:
        nc1: Variability within classes, :math:`\operatorname{tr}(\Sigma_W \Sigma_B^\dagger)/K`; infinite if all means are equal.
        cdnv: Variability within classes from pairs, mean of :math:`(\sigma_i^2+\sigma_j^2)/(2\|\mu_i-\mu_j\|^2)`.
        nc2_norm, nc2_angle: Class means: coefficient of variation of their norms, mean :math:`|\cos + 1/(K-1)|`.
        nc2_weight_norm, nc2_weight_angle: The same for the weights of the head.
        nc3: Difference of head and means, :math:`\|W/\|W\|_F - M/\|M\|_F\|_F^2`.
        nc4: Share of samples where the head disagrees with the nearest class mean.
    """

    nc1: float
    cdnv: float
    nc2_norm: float
    nc2_angle: float
    nc2_weight_norm: float = NAN
    nc2_weight_angle: float = NAN
    nc3: float = NAN
    nc4: float = NAN


def neural_collapse(
    features: Floats,
    y_true: Ints,
    means: Float64s,
    spread: Float64s,
    largest_norm: float,
    *,
    head: tuple[Float64s, Float64s] | None = None,
) -> Collapse:
    """:class:`Collapse` from class ``means`` (``(K, d)``, nan where absent) and ``spread`` (root mean squared deviation)."""
    present = ~np.isnan(means[:, 0])
    if present.sum() < 2:
        return Collapse(NAN, NAN, NAN, NAN)
    centre = means[present].mean(axis=0)
    centred = means[present] - centre
    # Smaller differences are rounding errors: features have at most double precision.
    negligible = 1e-12 * largest_norm
    within = _Within(features, y_true, means, np.flatnonzero(present))
    nc1, cdnv = within.nc1(centred, negligible), _cdnv(centred, spread[present], negligible)
    nc2 = _equinorm(centred, negligible), _equiangular(centred, negligible)
    if head is None:
        return Collapse(nc1, cdnv, *nc2)
    weight, bias = head
    seen = weight[present]
    scale = np.linalg.norm(seen), np.linalg.norm(centred)
    defined = scale[0] > 0 and scale[1] > negligible
    return Collapse(
        nc1,
        cdnv,
        *nc2,
        nc2_weight_norm=_equinorm(seen, 0.0),
        nc2_weight_angle=_equiangular(seen, 0.0),
        nc3=float(np.sum((seen / scale[0] - centred / scale[1]) ** 2)) if defined else NAN,
        nc4=within.nc4(centre, weight, bias),
    )


@dataclass(frozen=True, eq=False)
class _Within:
    """The two measures that need a pass over all samples, in float32 blocks around the means."""

    features: Floats
    y_true: Ints
    means: Float64s
    present: Ints

    def nc1(self, centred: Float64s, negligible: float) -> float:
        """Deviations measured along the directions between classes, so that no d × d matrix is needed."""
        support = np.bincount(self.y_true, minlength=len(self.means))
        _, lengths, directions = np.linalg.svd(centred / np.sqrt(len(centred)), full_matrices=False)
        rank = min(int((lengths > negligible).sum()), len(centred) - 1)
        scaled = (directions[:rank] / lengths[:rank, None]).T.astype(np.float32)
        total, deviation = 0.0, 0.0
        for block in row_blocks(len(self.features), max(self.features.shape[1], rank)):
            labels = self.y_true[block]
            values = self.features[block].astype(np.float64) - self.means[labels]
            share = 1.0 / (len(centred) * support[labels])
            deviation += float(share @ np.einsum("nd,nd->n", values, values))
            projected = values.astype(np.float32) @ scaled
            total += float(share @ np.einsum("nr,nr->n", projected, projected, dtype=np.float64))
        if rank == 0:
            return float("inf") if deviation > negligible**2 else NAN
        return total / len(centred)

    def nc4(self, centre: Float64s, weight: Float64s, bias: Float64s) -> float:
        """Around the common centre, distances to means and logits are both one matrix product."""
        means = (self.means[self.present] - centre).astype(np.float32)
        half = 0.5 * np.einsum("kd,kd->k", means, means)
        head = weight[self.present].astype(np.float32)
        offset = (weight[self.present] @ centre + bias[self.present]).astype(np.float32)
        disagree = 0
        for block in row_blocks(len(self.features), max(self.features.shape[1], len(means))):
            values = (self.features[block] - centre).astype(np.float32)
            nearest = (values @ means.T - half).argmax(axis=1)
            chosen = (values @ head.T + offset).argmax(axis=1)
            disagree += int((nearest != chosen).sum())
        return disagree / len(self.features)


def _cdnv(centred: Float64s, spread: Float64s, negligible: float) -> float:
    norms = np.einsum("kd,kd->k", centred, centred)
    squared = np.maximum(norms[:, None] + norms - 2 * centred @ centred.T, 0.0)
    variances = np.add.outer(spread**2, spread**2)
    off = ~np.eye(len(centred), dtype=bool)
    apart = off & (squared > max(negligible**2, 1e-15 * norms.max()))
    if (off & ~apart & (variances > negligible**2)).any():
        return float("inf")
    return float((variances[apart] / (2 * squared[apart])).mean()) if apart.any() else NAN


def _equinorm(vectors: Float64s, negligible: float) -> float:
    norms = np.linalg.norm(vectors, axis=1)
    return float(norms.std() / norms.mean()) if norms.mean() > negligible else NAN


def _equiangular(vectors: Float64s, negligible: float) -> float:
    """Mean distance of all cosines from that of a simplex; vectors of length 0 are excluded."""
    norms = np.linalg.norm(vectors, axis=1)
    unit = vectors[norms > negligible] / norms[norms > negligible, None]
    if len(unit) < 2:
        return NAN
    cosine = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    return float(np.abs(cosine + 1 / (len(vectors) - 1)).mean())
