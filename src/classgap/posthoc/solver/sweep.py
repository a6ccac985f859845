"""One pass over the rows of a score matrix: objective and gradient for one scale and one offset per class.

Rows are processed in blocks that fit into the cache of a core, several blocks in parallel. The matrix is never copied, so the
scores may be a memory map. A block costs one exponential, two products and three matrix-vector products: the offsets enter as
factors of the exponentials, :math:`e^{\\omega x + b} = e^b e^{\\omega x}`, which the matrix-vector products include.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from classgap.posthoc.held_out import Array

CHUNK = 128  # rows per block: twice 128 × 1000 floats fit into the second-level cache of a core
SMALL = 4_000_000  # with fewer scores, threads and samples of the rows do not save time
_BLOCKS = 16  # fixed, so that sums do not depend on the number of cores
_CONTEST = 1e-2  # smallest probability of an entry that is kept
_SAFE = 1e-26, 1e26  # sums of exponentials in this range are accurate in single precision


@dataclass(frozen=True)
class ClasswiseProblem:
    r"""Minimise over :math:`\omega, \beta \in R^K`

    .. math:: \sum_i u_i\, \mathrm{CE}(\omega (x_i - c) + c + n \beta, y_i) \big/ Z
              + \tfrac{r}{2K} (\|\omega - 1\|^2 + \|\beta\|^2)

    Attributes:
        scores: :math:`x`, ``(n, K)``.
        y: True columns.
        weights: :math:`u_i`, one per sample.
        total: :math:`Z`.
        unit: :math:`n_k`, the change of the score per unit of :math:`\beta_k`.
        pivot: :math:`c_k`, the part of the score that is not scaled.
        ridge: :math:`r`: weight of the penalty on changes, relative to the weight of an average class.
        free: Which classes may change, ``(K,)``.
    """

    scores: Array
    y: Array
    weights: Array
    total: float
    unit: Array
    pivot: Array | float = 0.0
    ridge: float = 0.0
    free_scale: bool = True
    free_offset: bool = True
    free: Array = field(default_factory=lambda: np.ones(1, dtype=bool))

    @property
    def num_classes(self) -> int:
        return int(self.scores.shape[1])

    @property
    def identity(self) -> Array:
        """The parameters that change nothing: scales, then offsets."""
        return np.repeat([1.0, 0.0], self.num_classes)

    @cached_property
    def mask(self) -> Array:
        """Which of the 2K parameters may change."""
        free = np.broadcast_to(self.free, self.num_classes)
        return np.concatenate([free & self.free_scale, free & self.free_offset])

    @cached_property
    def own(self) -> Array:
        """Score of the true class of each sample."""
        return self.scores[np.arange(len(self.y)), self.y].astype(np.float64)

    @cached_property
    def target(self) -> Array:
        """The constant part of the gradient, ``(2K,)``: weighted sums of own scores (minus pivot), and of ones."""
        weights, K = self.weights / self.total, self.num_classes
        share = np.bincount(self.y, weights, minlength=K)
        return np.concatenate([np.bincount(self.y, weights * self.own, minlength=K) - self.pivot * share, share])

    def in_logits(self, theta: Array) -> Array:
        """Parameters, or a change of them, in units of the score (minus pivot): scales, then offsets."""
        scaled: Array = theta * np.concatenate([np.ones(self.num_classes), self.unit])
        return scaled

    def subsample(self, cap: int) -> ClasswiseProblem:
        """At most ``cap`` samples per class, spread evenly over its own scores, with weights that represent all samples."""
        counts = np.bincount(self.y, minlength=self.num_classes)
        order = np.lexsort((self.own, self.y))
        size, kept = counts[self.y[order]], np.minimum(counts, cap)[self.y[order]]
        rank = np.arange(len(order)) - (np.cumsum(counts) - counts)[self.y[order]]
        # the middle sample of each of ``kept`` equal parts
        rows = np.sort(order[(2 * (rank + 1) * kept + size) // (2 * size) > (2 * rank * kept + size) // (2 * size)])
        y = self.y[rows]
        factor = counts / np.maximum(np.minimum(counts, cap), 1)
        return replace(self, scores=self.scores[rows], y=y, weights=self.weights[rows] * factor[y])


class Contest(NamedTuple):
    """The entries of a sweep with probability above ``_CONTEST``, row by row."""

    size: Array  # (n,) entries of each row
    column: Array
    probability: Array
    score: Array  # minus pivot


_EMPTY = Contest(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32))


@dataclass(frozen=True)
class Sweep:
    """Result of a pass over all rows at given parameters."""

    value: float
    gradient: Array  # (2K,): scales, then offsets
    moments: Array  # (3, K): weighted column sums of p, p x and p x² (the last only with a contest), x minus pivot
    contest: Contest | None

    @property
    def norm(self) -> float:
        """Norm of the gradient."""
        return float(np.linalg.norm(self.gradient))


def evaluate(problem: ClasswiseProblem, theta: Array, *, contest: bool = False) -> Sweep:
    """Objective and gradient at ``theta`` (scales, then offsets); with ``contest``, also the entries that a local model needs."""
    K = problem.num_classes
    scale, shift = theta[:K], theta - problem.identity
    offset = problem.unit * theta[K:] + (1 - scale) * problem.pivot
    bounds = np.linspace(0, len(problem.y), _BLOCKS + 1).astype(int)
    work = [(problem, scale, offset, int(a), int(b), contest) for a, b in pairwise(bounds)]
    if problem.scores.size < SMALL:
        parts = [_pass(*w) for w in work]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(lambda w: _pass(*w), work))
    sums: Array = np.sum([part[1] for part in parts], axis=0) / problem.total
    m0, m1, m2 = sums
    moments = np.stack([m0, m1 - problem.pivot * m0, m2 - problem.pivot * (2 * m1 - problem.pivot * m0)])
    value = sum(part[0] for part in parts) / problem.total - float(problem.target @ problem.in_logits(theta))
    value -= float(np.sum(problem.pivot * problem.target[K:]))
    value += problem.ridge / (2 * K) * float(shift @ shift)
    gradient = problem.in_logits(np.concatenate([moments[1], moments[0]]) - problem.target) + problem.ridge / K * shift
    found = Contest(*(np.concatenate(field) for field in zip(*(p[2] for p in parts), strict=True))) if contest else None
    return Sweep(value, np.where(problem.mask, gradient, 0.0), moments, found)


def _pass(
    problem: ClasswiseProblem, scale: Array, offset: Array, start: int, stop: int, contest: bool
) -> tuple[float, Array, Contest | None]:
    """Sums of log-normalisers and moments (of raw scores) over some rows, and their largest entries."""
    K, dtype = problem.num_classes, problem.scores.dtype
    pivot = np.broadcast_to(problem.pivot, K)
    exponentials = _Exponentials(scale, offset, dtype)
    value, moments, found = 0.0, np.zeros((3, K)), [_EMPTY]
    for first in range(start, stop, CHUNK):
        x = np.asarray(problem.scores[first : min(first + CHUNK, stop)])
        u = problem.weights[first : first + len(x)]
        e, factor, mass, log_mass = exponentials(x)
        value += float(u @ log_mass)
        r = (u / mass).astype(e.dtype)
        moments[0] += factor * (r @ e)
        if contest:
            e *= factor
            factor = np.ones(1)
            at = np.flatnonzero(e > (_CONTEST * mass)[:, None])
            row = at // K
            column = at - row * K
            probability, score = e.ravel()[at] / mass[row], x.ravel()[at] - pivot[column].astype(dtype)
            found.append(Contest(np.bincount(row, minlength=len(x)), column, probability.astype(dtype), score))
        e *= x
        moments[1] += factor * (r @ e)
        if contest:
            e *= x
            moments[2] += r @ e
    entries = Contest(*(np.concatenate(field) for field in zip(*found, strict=True))) if contest else None
    return value, moments, entries


class _Exponentials:
    """``e^(scale x + offset)`` of some rows, as ``e`` times ``factor``, with its row sums and their logarithms."""

    def __init__(self, scale: Array, offset: Array, dtype: np.dtype[Any]) -> None:
        self.scale, self.offset, self.top = scale, offset, float(offset.max())
        self.rounded, self.factor = scale.astype(dtype), np.exp(offset - self.top).astype(dtype)
        self.buffer = np.empty((CHUNK, len(scale)), dtype)

    def __call__(self, x: Array) -> tuple[Array, Array, Array, Array]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            e = np.multiply(x, self.rounded, out=self.buffer[: len(x)])
            np.exp(e, out=e)
            mass = e @ self.factor
        if mass.min() > _SAFE[0] and mass.max() < _SAFE[1]:
            return e, self.factor, mass, np.log(mass, dtype=np.float64) + self.top
        # sums out of range: repeat in double precision, relative to the largest term of each row
        z = x.astype(np.float64) * self.scale + self.offset
        top = z.max(axis=1)
        e = np.exp(z - top[:, None])
        mass = e.sum(axis=1)
        return e, np.ones(1), mass, np.log(mass) + top
