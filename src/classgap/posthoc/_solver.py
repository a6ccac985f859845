"""Exact fitting of one scale and one offset a class: the convex problem behind MARC, LWS and vector scaling.

Gradients run over all rows in cache-sized chunks (single precision in, double precision sums), so a memory-mapped score
matrix is never copied. Newton directions come from conjugate gradients on the Hessian, of which the block-diagonal part is
exact; in the coupling :math:`p p^\\top` the few entries of a row above a threshold are exact and the rest of its mass is
spread like that of the average row. A product then costs next to nothing, and the matrix stays positive semi-definite.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from classgap.posthoc._evidence import Array

CHUNK = 256  # rows at once: 256 × 1000 floats stay in a core's second-level cache
_BLOCKS = 16  # fixed, so that sums do not depend on the number of cores
_COUPLING = 1e-2  # probabilities below this enter the Hessian's off-diagonal part only on average
_CAPS = (8, 40)  # samples a class in the warm starts
_LARGE = 100.0  # single precision is fine for scores below this
_SMALL = 4_000_000  # below this many scores neither threads nor warm starts pay


@dataclass(frozen=True)
class ClasswiseProblem:
    r"""Minimise over :math:`\omega, \beta \in R^K`

    .. math:: \sum_i u_i\, \mathrm{CE}(\omega (x_i - c) + c + n \beta, y_i) \big/ Z
              + \tfrac{r}{2K} (\|\omega - 1\|^2 + \|\beta\|^2)

    Attributes:
        scores: :math:`x`, ``(n, K)``.
        y: True columns.
        weights: :math:`u_i`, one a sample.
        total: :math:`Z`.
        unit: :math:`n_k`, what one unit of :math:`\beta_k` adds to the score.
        pivot: :math:`c_k`, the part of the score that is not scaled.
        ridge: :math:`r`: pull towards the identity, relative to the weight of an average class.
        free: Which classes may change, ``(K,)``.
    """

    scores: Array
    y: Array
    weights: Array
    total: float
    unit: Array
    pivot: Array | None = None
    ridge: float = 0.0
    free_scale: bool = True
    free_offset: bool = True
    free: Array = field(default_factory=lambda: np.ones(1, dtype=bool))

    @property
    def num_classes(self) -> int:
        return int(self.scores.shape[1])

    @cached_property
    def dtype(self) -> type[np.floating[Any]]:
        """Precision of the sweeps: single for single scores, unless they are so large that its rounding would show."""
        single = self.scores.dtype == np.float32 and max(self.scores.max(), -self.scores.min()) < _LARGE
        return np.float32 if single else np.float64

    @property
    def mask(self) -> Array:
        """Which of the 2K parameters may move."""
        free = np.broadcast_to(self.free, self.num_classes)
        return np.concatenate([free & self.free_scale, free & self.free_offset])

    def subsample(self, cap: int, seed: int = 0) -> ClasswiseProblem:
        """At most ``cap`` samples of each class, weighted to stand for the others."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        order = order[np.argsort(self.y[order], kind="stable")]
        counts = np.bincount(self.y, minlength=self.num_classes)
        rank = np.arange(len(order)) - (np.cumsum(counts) - counts)[self.y[order]]
        rows = np.sort(order[rank < cap])
        factor = counts / np.maximum(np.minimum(counts, cap), 1)
        y = self.y[rows]
        return replace(self, scores=self.scores[rows], y=y, weights=self.weights[rows] * factor[y])


@dataclass
class Pass:
    """What one sweep over the rows yields at given parameters."""

    value: float
    gradient: Array  # (2K,): scales, then offsets
    moments: tuple[Array, Array, Array]  # weighted column sums of p, p x and p x²
    coupling: tuple[sparse.csr_matrix, sparse.csr_matrix, Array] | None  # p, p x, weight of each row


def evaluate(problem: ClasswiseProblem, theta: Array, *, hessian: bool = False) -> Pass:
    """Objective and gradient at ``theta`` (scales, then offsets), and what Hessian products need."""
    K = problem.num_classes
    scale, offset = theta[:K], problem.unit * theta[K:] + (0.0 if problem.pivot is None else problem.pivot)
    bounds = np.linspace(0, len(problem.y), _BLOCKS + 1).astype(int)
    work = [(problem, scale, offset, int(a), int(b), hessian) for a, b in pairwise(bounds)]
    if problem.scores.size < _SMALL:
        parts = [_sweep(*w) for w in work]
    else:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(lambda w: _sweep(*w), work))
    value = sum(p[0] for p in parts) / problem.total
    moments = tuple(sum(p[1][i] for p in parts) / problem.total for i in range(3))
    target = np.bincount(problem.y, problem.weights, minlength=K) / problem.total
    own = problem.scores[np.arange(len(problem.y)), problem.y].astype(np.float64)
    own = own if problem.pivot is None else own - problem.pivot[problem.y]
    target_x = np.bincount(problem.y, problem.weights * own, minlength=K) / problem.total
    value -= target_x @ scale + target @ offset
    shift = theta - np.repeat([1.0, 0.0], K)
    value += problem.ridge / (2 * K) * shift @ shift
    gradient = np.concatenate([moments[1] - target_x, problem.unit * (moments[0] - target)])
    gradient += problem.ridge / K * shift
    coupling = None
    if hessian:
        coupling = (
            sparse.vstack([p[2] for p in parts], format="csr"),
            sparse.vstack([p[3] for p in parts], format="csr"),
            problem.weights / problem.total,
        )
    return Pass(float(value), np.where(problem.mask, gradient, 0.0), moments, coupling)


def _sweep(problem: ClasswiseProblem, scale: Array, offset: Array, start: int, stop: int, hessian: bool):  # type: ignore[no-untyped-def]
    dtype = problem.dtype
    a, b = scale.astype(dtype), offset.astype(dtype)
    pivot = None if problem.pivot is None else problem.pivot.astype(dtype)
    K = len(a)
    value, moments = 0.0, np.zeros((3, K))
    entries: list[tuple[Array, Array, Array]] = []
    for first in range(start, stop, CHUNK):
        x = problem.scores[first : min(first + CHUNK, stop)].astype(dtype, copy=False)
        x = x if pivot is None else x - pivot
        p = x * a
        p += b
        top = p.max(axis=1)
        p -= top[:, None]
        np.exp(p, out=p)
        mass = p.sum(axis=1)
        u = problem.weights[first : first + len(x)]
        value += float(u @ (np.log(mass, dtype=np.float64) + top))
        r = (u / mass).astype(dtype)
        moments[0] += r @ p
        if hessian:
            at = np.flatnonzero(p > _COUPLING * mass[:, None])
            row = at // K
            probability = p.ravel()[at] / mass[row]
            entries.append((at + first * K, probability, probability * x.ravel()[at]))
        p *= x
        moments[1] += r @ p
        if hessian:
            p *= x
            moments[2] += r @ p
    if not hessian:
        return value, moments, None, None
    at, p_kept, px_kept = (
        (np.concatenate(part) for part in zip(*entries, strict=True)) if entries else (np.empty(0, int),) * 3
    )
    pointer = np.searchsorted(at, np.arange(start, stop + 1) * K)
    shape = (stop - start, K)
    columns = at % K
    return (
        value,
        moments,
        sparse.csr_matrix((p_kept, columns, pointer), shape=shape),
        sparse.csr_matrix((px_kept, columns, pointer), shape=shape),
    )


class _Hessian:
    """Products with the (nearly exact, positive semi-definite) Hessian, and its 2×2 block-diagonal inverse."""

    def __init__(self, problem: ClasswiseProblem, sweep: Pass) -> None:
        assert sweep.coupling is not None
        self.p, self.px, self.u = sweep.coupling
        self.moments, self.unit, self.mask = sweep.moments, problem.unit, problem.mask
        self.ridge = problem.ridge / problem.num_classes
        self.rest = np.clip(1.0 - np.asarray(self.p.sum(axis=1)).ravel(), 0.0, 1.0)
        mass = max(float(self.u @ self.rest), 1e-300)
        self.rest_p = (self.moments[0] - self.p.T @ self.u) / mass
        self.rest_px = (self.moments[1] - self.px.T @ self.u) / mass

    def dot(self, v: Array) -> Array:
        K = len(self.unit)
        v_scale, v_offset = v[:K], self.unit * v[K:]
        m0, m1, m2 = self.moments
        s = self.px @ v_scale + self.p @ v_offset
        s += self.rest * float(self.rest_px @ v_scale + self.rest_p @ v_offset)
        s *= self.u
        spread = float(self.rest @ s)
        scale = m2 * v_scale + m1 * v_offset - self.px.T @ s - spread * self.rest_px
        offset = self.unit * (m1 * v_scale + m0 * v_offset - self.p.T @ s - spread * self.rest_p)
        return np.where(self.mask, np.concatenate([scale, offset]) + self.ridge * v, 0.0)

    def precondition(self, v: Array) -> Array:
        K = len(self.unit)
        m0, m1, m2 = self.moments[0] * self.unit**2, self.moments[1] * self.unit, self.moments[2]
        # a small excess on the diagonal: a column that hardly varies has a singular block
        d0, d2 = 1.001 * m0 + self.ridge + 1e-12, 1.001 * m2 + self.ridge + 1e-12
        m1 = np.where(self.mask[:K] & self.mask[K:], m1, 0.0)
        determinant = d0 * d2 - m1**2
        solved: Array = np.concatenate([d0 * v[:K] - m1 * v[K:], d2 * v[K:] - m1 * v[:K]]) / np.tile(determinant, 2)
        return solved

    def solve(self, gradient: Array, tol: float, max_iter: int = 200) -> Array:
        """Conjugate gradients for ``H x = -gradient`` until the residual has shrunk to ``tol`` of its start."""
        x, residual = np.zeros_like(gradient), -gradient
        z = self.precondition(residual)
        direction, rz = z, float(residual @ z)
        first = rz
        for _ in range(max_iter):
            h = self.dot(direction)
            curvature = float(direction @ h)
            if curvature <= 0 or rz <= tol**2 * first:
                break
            step = rz / curvature
            x, residual = x + step * direction, residual - step * h
            z = self.precondition(residual)
            rz, previous = float(residual @ z), rz
            direction = z + rz / previous * direction
        return x if x.any() else self.precondition(-gradient)


@dataclass(frozen=True)
class Solution:
    """Minimiser (scales, offsets), its objective, and how far the gradient shrank from the identity."""

    scale: Array
    offset: Array
    value: float
    relative_gradient: float
    sweeps: int


def solve(problem: ClasswiseProblem, *, tol: float = 1e-4, max_iter: int = 100) -> Solution:
    """Minimise to a gradient norm of ``tol`` times the norm at the identity (scale 1, offset 0).

    Large problems start from the solution on a stratified subsample, where the first norm is also taken.
    """
    K = problem.num_classes
    theta = np.repeat([1.0, 0.0], K)
    stages = [problem]
    if problem.scores.size >= _SMALL:
        smaller = [problem.subsample(cap) for cap in _CAPS]
        stages = [s for s in smaller if 3 * len(s.y) < len(problem.y)] + stages
    reference = float(np.linalg.norm(evaluate(stages[max(len(stages) - 2, 0)], theta).gradient))
    for stage in stages:
        last = stage is problem
        theta, value, norm, sweeps = _newton(stage, theta, reference * (tol if last else 1e-2), max_iter)
    relative = norm / reference if reference > 0 else 0.0
    # single precision may end a little short of the goal when scores are large; that moves no prediction
    if norm > tol * reference * (10 if problem.dtype is np.float32 else 1):
        warnings.warn(
            f"stopped at a relative gradient of {relative:.1e}, wanted {tol:.1e}: classes that are separated perfectly "
            "have no finite optimum; set ridge above 0",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Solution(theta[:K], theta[K:], value, relative, sweeps)


def _newton(problem: ClasswiseProblem, theta: Array, goal: float, max_iter: int) -> tuple[Array, float, float, int]:
    sweep = evaluate(problem, theta, hessian=True)
    sweeps, norm = 1, float(np.linalg.norm(sweep.gradient))
    noise = 1e-6 if problem.dtype is np.float32 else 1e-13  # of the objective: rounding, not ascent
    for _ in range(max_iter):
        if norm <= goal:
            break
        # no more precise than the goal or the Hessian's own approximation warrants
        step = _Hessian(problem, sweep).solve(sweep.gradient, tol=min(0.3, max(0.05, goal / norm / 2)))
        slope = float(sweep.gradient @ step)
        length = 1.0
        while True:
            trial = evaluate(problem, theta + length * step, hessian=True)
            sweeps += 1
            if trial.value <= sweep.value + 1e-4 * length * slope + noise * abs(sweep.value) or length < 1e-4:
                break
            length /= 2
        if length < 1e-4:
            break
        theta, sweep = theta + length * step, trial
        norm = float(np.linalg.norm(sweep.gradient))
    return theta, sweep.value, norm, sweeps


def lbfgs(
    objective: Callable[[Array], tuple[float, Array]], start: Array, *, tol: float, max_iter: int = 1000
) -> Array:
    """Minimise a smooth function until its gradient is ``tol`` times the first one (largest entry), with SciPy's L-BFGS."""
    from scipy.optimize import minimize

    first = float(np.abs(objective(start)[1]).max())
    if first == 0:
        return start
    # scaled so that the first gradient is one: the tolerance then means what the docstring says
    result = minimize(
        lambda x: tuple(part / first for part in objective(x)),
        start,
        jac=True,
        method="L-BFGS-B",
        options={"gtol": tol, "ftol": 0.0, "maxiter": max_iter, "maxcor": 20, "maxfun": 2 * max_iter},
    )
    solution: Array = result.x
    return solution
