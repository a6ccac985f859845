r"""A cheap convex approximation of the objective near one point, built from a sweep.

For each row, the entries with the largest probabilities are kept exactly. The composition of the remaining mass of the row is
approximated by its average over all rows, with a normal distribution in each column: mass
:math:`\rho_i \sum_j q_j \exp(d_j \bar x_j +
d_j^2 v_j / 2 + b_j)` after a change :math:`(d, b)` of scales and offsets. Value, gradient and the diagonal of the Hessian then
agree with the sweep, and the model is convex and invariant to a common shift, like the objective.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from classgap.posthoc.held_out import Array
from classgap.posthoc.solver.sweep import ClasswiseProblem, Sweep

_MAX_STEP = 4.0  # largest change of a parameter in one step of the model
_MAX_MASS = 1e30  # a step that increases the mass of a sample to more than this is too long
_PRECISION = 0.2  # residual of the conjugate gradients, relative to their start


class LocalModel:
    """Approximation of the objective of ``problem`` around ``base``, the point of ``sweep``."""

    def __init__(self, problem: ClasswiseProblem, base: Array, sweep: Sweep) -> None:
        contest = sweep.contest
        assert contest is not None
        self.problem, self.base = problem, base
        self.u = problem.weights / problem.total
        self.column, self.p, self.x = contest.column, contest.probability, contest.score
        n, K = len(self.u), problem.num_classes
        self.row = np.repeat(np.arange(n), contest.size)
        # both parameters of a class are adjacent, so one sparse product gives scales and offsets
        self._indices = np.stack([self.column, self.column + K], axis=1).ravel().astype(np.int32)
        self._pointer = np.concatenate([[0], 2 * np.cumsum(contest.size)])
        self._contested = np.flatnonzero(contest.size)
        self.rest = np.clip(1.0 - np.bincount(self.row, self.p, minlength=n), 0.0, 1.0)
        weighted = self.u[self.row] * self.p
        powers = [weighted, weighted * self.x, weighted * self.x**2]
        q0, q1, q2 = sweep.moments - np.stack([np.bincount(self.column, w, minlength=K) for w in powers])
        known = q0 > 1e-4 * sweep.moments[0]  # smaller values are rounding errors
        q0 = np.where(known, q0, 1e-12)
        self.share = q0 / q0.sum()
        self.mean = np.where(known, q1 / q0, 0.0)
        self.variance = np.where(known, np.maximum(q2 / q0 - self.mean**2, 0.0), 0.0)

    def evaluate(self, theta: Array) -> tuple[float, Array]:
        """Value (minus that at the base) and gradient; :meth:`product` then refers to this point."""
        problem, K = self.problem, self.problem.num_classes
        change = problem.in_logits(theta - self.base)
        d, b = change[:K], change[K:]
        rise = d.astype(self.p.dtype)[self.column] * self.x + b.astype(self.p.dtype)[self.column]
        most = np.zeros(len(self.u), rise.dtype)
        if len(rise):
            most[self._contested] = np.maximum.reduceat(rise, self._pointer[self._contested] // 2)
        e = self.p * np.exp(rise - most[self.row])
        swell = d * self.mean + d**2 * self.variance / 2 + b
        highest = float(swell.max())
        remainder = self.share * np.exp(swell - highest)
        with np.errstate(over="ignore", invalid="ignore"):  # such a mass is refused below
            left = self.rest * np.exp(highest - most.astype(np.float64)) * remainder.sum()
        mass = np.bincount(self.row, e, minlength=len(self.u)) + left
        if not mass.max() < _MAX_MASS:
            return np.inf, np.zeros_like(theta)
        e /= mass.astype(e.dtype)[self.row]
        self.left = left / mass
        slope = self.mean + d * self.variance
        self.pull = (
            np.concatenate([remainder * slope, remainder]) / remainder.sum()
        )  # gradient of the log mass of the remainder
        ex = e * self.x
        self.kept = sparse.csr_matrix(
            (np.stack([ex, e], axis=1).ravel(), self._indices, self._pointer), shape=(len(self.u), 2 * K)
        )
        self.kept_by_class = self.kept.T
        spread = float(self.u @ self.left)
        first = self.kept_by_class @ self.u.astype(e.dtype) + spread * self.pull
        second: Array = np.bincount(self.column, self.u[self.row] * ex * self.x, minlength=K)
        second = second + spread * self.pull[K:] * (slope**2 + self.variance)
        self.blocks: tuple[Array, Array, Array] = second, first[:K] * problem.unit, first[K:] * problem.unit**2
        here, there = theta - problem.identity, self.base - problem.identity
        value = float(self.u @ (np.log(mass) + most)) - float(problem.target @ change)
        value += problem.ridge / (2 * K) * float(here @ here - there @ there)
        gradient = problem.in_logits(first - problem.target) + problem.ridge / K * here
        return value, np.where(problem.mask, gradient, 0.0)

    def product(self, v: Array) -> Array:
        """Hessian at the last evaluated point, times ``v``."""
        problem, K = self.problem, self.problem.num_classes
        w = problem.in_logits(v)
        s = self.kept @ w.astype(self.p.dtype) + self.left * float(self.pull @ w)
        s *= self.u
        coupling = problem.in_logits(self.kept_by_class @ s.astype(self.p.dtype) + float(self.left @ s) * self.pull)
        second, mixed, zeroth = self.blocks
        diagonal = np.concatenate([second * v[:K] + mixed * v[K:], mixed * v[:K] + zeroth * v[K:]])
        return np.where(problem.mask, diagonal - coupling + problem.ridge / K * v, 0.0)

    def precondition(self, v: Array) -> Array:
        """The inverse of the Hessian without the coupling between classes, times ``v``."""
        problem, K = self.problem, self.problem.num_classes
        second, mixed, zeroth = self.blocks
        # the diagonal is slightly increased: the block of a column with almost no variance is singular
        ridge = problem.ridge / K + 1e-12
        second, zeroth = 1.001 * second + ridge, 1.001 * zeroth + ridge
        mixed = mixed * (problem.mask[:K] & problem.mask[K:])
        determinant = np.tile(second * zeroth - mixed**2, 2)
        solved: Array = np.concatenate([zeroth * v[:K] - mixed * v[K:], second * v[K:] - mixed * v[:K]]) / determinant
        return solved

    def newton_step(self, gradient: Array, max_iter: int = 200) -> Array:
        """Conjugate gradients for ``H x = -gradient``."""
        x, residual = np.zeros_like(gradient), -gradient
        z = self.precondition(residual)
        direction, rz = z, float(residual @ z)
        first = rz
        for _ in range(max_iter):
            h = self.product(direction)
            curvature = float(direction @ h)
            if curvature <= 0 or rz <= _PRECISION**2 * first:
                break
            step = rz / curvature
            x, residual = x + step * direction, residual - step * h
            z = self.precondition(residual)
            rz, previous = float(residual @ z), rz
            direction = z + rz / previous * direction
        return x if x.any() else self.precondition(-gradient)

    def minimise(self, theta: Array, gradient: Array, goal: float, max_iter: int = 12) -> Array:
        """Minimum of the model plus a linear term that gives it this gradient at ``theta``, up to a gradient norm of ``goal``."""
        value, own = self.evaluate(theta)
        if not np.isfinite(value):  # too far from the base of the model
            return theta
        tilt, slope = gradient - own, gradient
        value += float(tilt @ theta)
        for _ in range(max_iter):
            if float(np.linalg.norm(slope)) <= goal:
                break
            step = self.newton_step(slope)
            if not step.any():  # under an extreme penalty the step is smaller than any float
                break
            length = min(1.0, _MAX_STEP / float(np.abs(step).max()))
            while True:
                trial = theta + length * step
                reached, own = self.evaluate(trial)
                reached += float(tilt @ trial)
                if reached <= value + 1e-4 * length * float(slope @ step) + 1e-9 * abs(value):
                    break
                length /= 2
                if length < 1e-3:
                    return theta
            theta, value, slope = trial, reached, own + tilt
        return theta
