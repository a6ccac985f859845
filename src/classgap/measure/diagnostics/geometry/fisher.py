"""Fisher separability: distance of two classes relative to their spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints, class_blocks, divide, row_blocks, rows_of_classes, unit_rows

Covariance = Literal["auto", "pairwise", "pooled"]

# "auto" uses a covariance per class only if K matrices of d × d stay below 256 MB and all pairs below about 1e11
# operations (seconds); 1000 classes in 2048 dimensions would need 34 GB and 1e15.
MAX_ENTRIES = 1 << 25
MAX_OPERATIONS = 1e11
# Above this width even one d × d matrix and its factor are too large: the criterion is not computed (nan).
MAX_WIDTH = 4096


# The boundary to the nearest class is tested on at most this many samples of each class, evenly spaced.
BOUNDARY_SAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Fisher:
    r"""Separability of every pair of classes.

    Attributes:
        criterion: ``(K, K)`` :math:`J_{ij} = (\mu_i-\mu_j)^\top(\Sigma_i+\Sigma_j)^{-1}(\mu_i-\mu_j)`; nan on the diagonal
            and for absent classes.
        distance: ``(K, K)`` the squared Mahalanobis distance :math:`2J_{ij}` without the bias of means and
            covariances estimated from few samples; may be negative, and is nan if there are not more samples than dimensions.
        nearest: ``(K,)`` the class at the smallest ``distance`` (or ``criterion``, if that is nan); -1 if there is none.
        boundary_wrong, boundary_trials: ``(K,)`` number of samples of the class and its nearest class on the wrong side
            of Fisher's linear boundary, fitted on the other half of the samples; and number of samples tested.
        covariance: Covariance that was used: ``"pairwise"``, ``"pooled"``, or ``"none"`` above :data:`MAX_WIDTH` dimensions.
    """

    criterion: Float64s
    distance: Float64s
    nearest: Ints
    boundary_wrong: Ints
    boundary_trials: Ints
    covariance: str

    @property
    def boundary_error(self) -> Float64s:
        """``(K,)`` share of samples on the wrong side of the boundary to the nearest class; nan if none was tested."""
        return divide(self.boundary_wrong, self.boundary_trials)

    @property
    def separability(self) -> Float64s:
        r"""``(K,)`` :math:`S_i = \operatorname{mean}_{j\ne i} J_{ij}`."""
        known = np.isfinite(self.criterion) | np.isinf(self.criterion)
        return divide(np.where(known, self.criterion, 0.0).sum(axis=1), known.sum(axis=1))


def smallest(values: Float64s) -> tuple[Float64s, Ints]:
    """Smallest entry of each row and its column, ignoring nan; nan and -1 for a row of only nan.

    Example:
        >>> smallest(np.array([[np.nan, np.inf, np.inf], [2.0, np.nan, 1.0], [np.nan] * 3]))
        (array([inf,  1., nan]), array([ 1,  2, -1]))
    """
    known = ~np.isnan(values)
    lowest = np.where(known, values, np.inf).min(axis=1, keepdims=True)
    index = (known & (values == lowest)).argmax(axis=1)  # also if all that is known is infinite
    some = known.any(axis=1)
    return np.where(some, lowest[:, 0], np.nan), np.where(some, index, -1)


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
            covariance: one factorisation for all pairs, any number of classes. ``"auto"`` means ``"pairwise"`` if every
            class has more samples than dimensions (otherwise the covariance is singular, and the ridge instead of the data
            would decide) and the work is bounded (:data:`MAX_ENTRIES`), otherwise ``"pooled"``.
        ridge: Added to the covariance as a multiple of its mean eigenvalue.
        normalise: Scale features to length 1 first.
    Reference: Son et al., *Difficulty-aware balancing margin loss for long-tailed recognition*, AAAI 2025, eq. (12)-(13).
    """
    checks.one_of("covariance", covariance, ("auto", "pairwise", "pooled"))
    features = checks.feature_matrix(features)
    y_true = checks.class_indices("y_true", y_true, num_classes, rows=len(features))
    support = np.bincount(y_true, minlength=num_classes)
    if features.shape[1] > MAX_WIDTH:
        unknown, none = np.full((num_classes, num_classes), np.nan), np.zeros(num_classes, np.int64)
        return Fisher(unknown, unknown, none - 1, none, none, "none")
    rows = rows_of_classes(y_true, num_classes)
    means = np.zeros((num_classes, features.shape[1]))
    for k, _, values in class_blocks(features, rows):
        means[k] += (unit_rows(values) if normalise else values).sum(axis=0)
    means = divide(means, support[:, None])
    if covariance == "auto":
        covariance = "pairwise" if _affordable(support, features.shape[1]) else "pooled"
    if covariance == "pairwise":
        scatter: _Scatter = _pairwise(features, rows, means, ridge, normalise)
        dof = np.add.outer(support, support) - 2.0
    else:
        scatter = _pooled(features, y_true, means, ridge, normalise)
        dof = np.full((num_classes, num_classes), support[support > 1].sum() - (support > 1).sum(), np.float64)
    distance = _without_bias(2 * scatter.criterion, support, dof, features.shape[1])
    nearest = smallest(distance)[1]
    nearest = np.where(nearest < 0, smallest(scatter.criterion)[1], nearest)
    wrong, trials = _boundaries(features, rows, nearest, scatter, normalise)
    return Fisher(scatter.criterion, distance, nearest, wrong, trials, covariance)


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


@dataclass(frozen=True, eq=False)
class _Scatter:
    """The criterion of all pairs, and a function from differences ``(m, h, d)`` of m pairs to normals of boundaries."""

    criterion: Float64s
    normals: Callable[[Float64s, Ints, Ints], Float64s]


def _pooled(features: Floats, y_true: Ints, means: Float64s, ridge: float, normalise: bool) -> _Scatter:
    """All pairs with twice the mean of the class covariances."""
    support = np.bincount(y_true, minlength=len(means))
    several = support > 1
    if not several.any():
        return _Scatter(np.full((len(means), len(means)), np.nan), lambda gaps, i, j: _solve(None, gaps))
    root = np.sqrt(np.where(several, divide(2.0, (support - 1) * several.sum()), 0.0))
    total = np.zeros((features.shape[1], features.shape[1]))
    for block in row_blocks(*features.shape):
        values, labels = features[block].astype(np.float64), y_true[block]
        deviations = (unit_rows(values) if normalise else values) - means[labels]
        scaled = (deviations * root[labels][:, None]).astype(np.float32)
        total += scaled.T @ scaled
    factor = _factor(total, means, ridge)
    criterion = _distances(factor, means)
    np.fill_diagonal(criterion, np.nan)
    return _Scatter(criterion, lambda gaps, i, j: _solve(factor, gaps))


def _pairwise(features: Floats, rows: list[Ints], means: Float64s, ridge: float, normalise: bool) -> _Scatter:
    """Each pair with the sum of its two covariances; nan if a class has fewer than 2 samples."""
    num_classes, width = means.shape
    covariances = np.zeros((num_classes, width, width))
    for k, _, values in class_blocks(features, rows):
        deviations = (unit_rows(values) if normalise else values) - means[k]
        covariances[k] += deviations.T @ deviations / max(len(rows[k]) - 1, 1)

    def factor(i: int, j: int) -> Float64s | None:
        return _factor(covariances[i] + covariances[j], means, ridge)

    criterion = np.full((num_classes, num_classes), np.nan)
    known = np.array([k for k in range(num_classes) if len(rows[k]) > 1])
    for a, i in enumerate(known):
        for j in known[a + 1 :]:
            criterion[i, j] = criterion[j, i] = _distances(factor(i, j), means[[i, j]])[0, 1]

    def normals(gaps: Float64s, i: Ints, j: Ints) -> Float64s:
        return np.array([_solve(factor(a, b), gap) for gap, a, b in zip(gaps, i, j, strict=True)]).reshape(gaps.shape)

    return _Scatter(criterion, normals)


def _factor(covariance: Float64s, means: Float64s, ridge: float) -> Float64s | None:
    from scipy.linalg import cholesky

    scale = np.trace(covariance) / len(covariance)
    if scale <= _negligible(means):
        return None
    return np.asarray(cholesky(covariance + ridge * scale * np.eye(len(covariance)), lower=True))


def _negligible(means: Float64s) -> float:
    """Rounding leaves a trace of scatter where features are constant within classes, and of distance where they all are."""
    return float((1e-12 * np.nanmax(np.abs(means))) ** 2)


def _solve(factor: Float64s | None, gaps: Float64s) -> Float64s:
    """Differences divided by the covariance of ``factor``; nan if there is no spread."""
    from scipy.linalg import cho_solve

    if factor is None:
        return np.full_like(gaps, np.nan)
    return np.asarray(cho_solve((factor, True), gaps.reshape(-1, gaps.shape[-1]).T).T.reshape(gaps.shape))


def _distances(factor: Float64s | None, means: Float64s) -> Float64s:
    """Squared distances between all ``means`` in units of the spread; infinite if there is none."""
    from scipy.linalg import solve_triangular

    present = ~np.isnan(means[:, 0])
    centred = np.where(present[:, None], means - means[present].mean(axis=0), 0.0)
    if factor is not None:
        centred = solve_triangular(factor, centred.T, lower=True).T
    norms = np.einsum("kd,kd->k", centred, centred)
    squared = np.maximum(norms[:, None] + norms - 2 * centred @ centred.T, 0.0)
    if factor is None:
        squared = np.where(squared > _negligible(means), np.inf, 0.0)
    squared[~present] = np.nan
    squared[:, ~present] = np.nan
    return np.asarray(squared)


def _boundaries(
    features: Floats, rows: list[Ints], nearest: Ints, scatter: _Scatter, normalise: bool
) -> tuple[Ints, Ints]:
    """Errors and tests of the boundary to the nearest class: means from one half of the samples, tests on the other half.

    A boundary tested on the samples it was fitted on would look far too good in many dimensions.
    """
    several = np.array([len(members) > 1 for members in rows])
    own = np.flatnonzero(several & (nearest >= 0) & several[nearest])
    halves = np.full((len(rows), 2, features.shape[1]), np.nan)
    for k in np.flatnonzero(several):
        values = _some(features, rows[k], normalise)
        halves[k] = values[::2].mean(axis=0), values[1::2].mean(axis=0)
    rival = nearest[own]
    normals = scatter.normals(halves[own] - halves[rival], own, rival)
    middles = np.einsum("khd,khd->kh", normals, halves[own] + halves[rival]) / 2

    wrong, trials = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for k, j, normal, middle in zip(own, rival, normals, middles, strict=True):
        if np.isnan(middle).any():
            continue
        for side, members in ((1, rows[k]), (-1, rows[j])):
            # Even samples are tested with the boundary of the odd samples, and vice versa.
            position = _some(features, members, normalise) @ normal.T - middle
            wrong[k] += (side * position[::2, 1] < 0).sum() + (side * position[1::2, 0] < 0).sum()
            trials[k] += len(position)
    return wrong, trials


def _some(features: Floats, members: Ints, normalise: bool) -> Float64s:
    chosen = members[:: max(1, -(-len(members) // BOUNDARY_SAMPLES))]
    values = features[chosen].astype(np.float64)
    return unit_rows(values) if normalise else values
