"""Fisher separability: how far apart two classes lie, measured in their own scatter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from classgap import _checks
from classgap.measure.classwise import (
    Float64s,
    Floats,
    Ints,
    class_blocks,
    divide,
    row_blocks,
    rows_of_classes,
    unit_rows,
)

Covariance = Literal["auto", "pairwise", "pooled"]

# "auto" takes a covariance per class only where K matrices of d × d stay below 256 MB and all pairs below about 1e11
# operations (seconds); 1000 classes in 2048 dimensions would need 34 GB and 1e15.
MAX_ENTRIES = 1 << 25
MAX_OPERATIONS = 1e11
# Above this width even one d × d matrix and its factor are too large: the criterion is left out (nan).
MAX_WIDTH = 4096


@dataclass(frozen=True, eq=False)
class Fisher:
    r"""Separability of every pair of classes.

    Attributes:
        criterion: ``(K, K)`` :math:`J_{ij} = (\mu_i-\mu_j)^\top(\Sigma_i+\Sigma_j)^{-1}(\mu_i-\mu_j)`; nan on the diagonal
            and for absent classes.
        distance: ``(K, K)`` the squared Mahalanobis distance :math:`2J_{ij}` freed from what estimating means and
            covariances from few samples adds to it; may be negative, and is nan where samples do not outnumber dimensions.
        covariance: What was used: ``"pairwise"``, ``"pooled"``, or ``"none"`` above :data:`MAX_WIDTH` dimensions.
    """

    criterion: Float64s
    distance: Float64s
    covariance: str

    @property
    def separability(self) -> Float64s:
        r"""``(K,)`` :math:`S_i = \operatorname{mean}_{j\ne i} J_{ij}`."""
        known = np.isfinite(self.criterion) | np.isinf(self.criterion)
        return divide(np.where(known, self.criterion, 0.0).sum(axis=1), known.sum(axis=1))

    def nearest(self) -> tuple[Float64s, Ints]:
        """Smallest criterion of each class and the class it is reached with; nan and -1 where there is none."""
        return smallest(self.criterion)


def smallest(values: Float64s) -> tuple[Float64s, Ints]:
    """Smallest entry of each row and its column, ignoring nan; nan and -1 for a row of nothing else."""
    filled = np.where(np.isnan(values), np.inf, values)
    index = filled.argmin(axis=1)
    value = values[np.arange(len(values)), index]
    return value, np.where(np.isnan(value), -1, index)


def fisher_separability(
    features: Floats,
    y_true: Ints,
    num_classes: int,
    *,
    covariance: Covariance = "auto",
    ridge: float = 1e-3,
    normalise: bool = True,
) -> Fisher:
    r"""Fisher criterion of all pairs of classes in closed form, with unbiased covariances.

    Args:
        covariance: ``"pairwise"`` uses :math:`\Sigma_i+\Sigma_j` as DBM does. ``"pooled"`` uses twice the mean class
            covariance: one factorisation for all pairs, any number of classes. ``"auto"`` takes ``"pairwise"`` where every
            class has more samples than there are dimensions (a covariance from fewer is singular, and the ridge rather
            than the data would decide) and the work is bounded (:data:`MAX_ENTRIES`), else ``"pooled"``.
        ridge: Added to the covariance as a multiple of its mean eigenvalue.
        normalise: Scale features to length 1 first.
    Reference: Son et al., *Difficulty-aware balancing margin loss for long-tailed recognition*, AAAI 2025, eq. (12)-(13).
    """
    _checks.one_of("covariance", covariance, ("auto", "pairwise", "pooled"))
    features = _checks.float_matrix("features", features)
    y_true = _checks.class_indices("y_true", y_true, num_classes, rows=len(features))
    support = np.bincount(y_true, minlength=num_classes)
    if features.shape[1] > MAX_WIDTH:
        unknown = np.full((num_classes, num_classes), np.nan)
        return Fisher(unknown, unknown, "none")
    rows = rows_of_classes(y_true, num_classes)
    means = np.zeros((num_classes, features.shape[1]))
    for k, _, values in class_blocks(features, rows):
        means[k] += (unit_rows(values) if normalise else values).sum(axis=0)
    means = divide(means, support[:, None])
    if covariance == "auto":
        covariance = "pairwise" if _affordable(support, features.shape[1]) else "pooled"
    if covariance == "pairwise":
        criterion = _pairwise(features, rows, means, ridge, normalise)
        dof = np.add.outer(support, support) - 2.0
    else:
        criterion = _pooled(features, y_true, means, ridge, normalise)
        dof = np.full_like(criterion, support[support > 1].sum() - (support > 1).sum())
    return Fisher(criterion, _without_bias(2 * criterion, support, dof, features.shape[1]), covariance)


def _affordable(support: Ints, width: int) -> bool:
    present = support[support > 0]
    pairs = len(present) * (len(present) - 1) / 2
    cheap = len(support) * width**2 <= MAX_ENTRIES and pairs * width**3 <= MAX_OPERATIONS
    return bool(cheap and present.min() > width)


def _without_bias(squared: Float64s, support: Ints, dof: Float64s, width: int) -> Float64s:
    """Squared Mahalanobis distances minus the bias of plugged-in estimates.

    For Gaussian classes the inverse of a covariance with ``dof`` degrees of freedom is too large by ``dof / (dof - d - 1)``,
    and the noise of the two means adds ``d (1/n_i + 1/n_j)``.
    """
    shrink = np.where(dof > width + 1, (dof - width - 1) / np.maximum(dof, 1), np.nan)
    noise = divide(1.0, support)
    return np.asarray(squared * shrink - width * np.add.outer(noise, noise))


def _pooled(features: Floats, y_true: Ints, means: Float64s, ridge: float, normalise: bool) -> Float64s:
    """All pairs against twice the mean of the class covariances."""
    support = np.bincount(y_true, minlength=len(means))
    several = support > 1
    if not several.any():
        return np.full((len(means), len(means)), np.nan)
    root = np.sqrt(np.where(several, divide(2.0, (support - 1) * several.sum()), 0.0))
    total = np.zeros((features.shape[1], features.shape[1]))
    for block in row_blocks(*features.shape):
        values, labels = features[block].astype(np.float64), y_true[block]
        deviations = (unit_rows(values) if normalise else values) - means[labels]
        scaled = (deviations * root[labels][:, None]).astype(np.float32)
        total += scaled.T @ scaled
    criterion = _distances_under(total, means, ridge)
    np.fill_diagonal(criterion, np.nan)
    return criterion


def _pairwise(features: Floats, rows: list[Ints], means: Float64s, ridge: float, normalise: bool) -> Float64s:
    """Each pair against the sum of its two covariances; nan where a class has fewer than 2 samples."""
    num_classes, width = means.shape
    covariances = np.zeros((num_classes, width, width))
    for k, _, values in class_blocks(features, rows):
        deviations = (unit_rows(values) if normalise else values) - means[k]
        covariances[k] += deviations.T @ deviations / max(len(rows[k]) - 1, 1)
    criterion = np.full((num_classes, num_classes), np.nan)
    known = np.array([k for k in range(num_classes) if len(rows[k]) > 1])
    for a, i in enumerate(known):
        for j in known[a + 1 :]:
            pair = _distances_under(covariances[i] + covariances[j], means[[i, j]], ridge)
            criterion[i, j] = criterion[j, i] = pair[0, 1]
    return criterion


def _distances_under(covariance: Float64s, means: Float64s, ridge: float) -> Float64s:
    """Squared distances between all ``means`` in units of ``covariance``; infinite where there is no scatter at all."""
    from scipy.linalg import cholesky, solve_triangular

    width = len(covariance)
    present = ~np.isnan(means[:, 0])
    centred = np.where(present[:, None], means - means[present].mean(axis=0), 0.0)
    scale = np.trace(covariance) / width
    # Rounding leaves a trace of scatter where features are constant within classes, and of distance where they all are.
    negligible = (1e-12 * np.abs(means[present]).max()) ** 2
    exact = scale <= negligible
    if exact:
        whitened = centred
    else:
        factor = cholesky(covariance + ridge * scale * np.eye(width), lower=True)
        whitened = solve_triangular(factor, centred.T, lower=True).T
    norms = np.einsum("kd,kd->k", whitened, whitened)
    squared = np.maximum(norms[:, None] + norms - 2 * whitened @ whitened.T, 0.0)
    if exact:
        squared = np.where(squared > negligible, np.inf, 0.0)
    squared[~present] = np.nan
    squared[:, ~present] = np.nan
    return np.asarray(squared)
