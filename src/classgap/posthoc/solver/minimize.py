"""Exact fit of one scale and one offset per class: the convex problem of MARC, LWS and vector scaling.

A sweep over all rows gives the exact gradient. The next point is the minimum of a :class:`LocalModel`, which costs a fraction
of a sweep. Large problems are first solved on samples of the rows; the model of the last sample, with a linear term added so that
its gradient is exact, is then used for all rows. Only sweeps over all rows decide whether the gradient is small enough.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from classgap.posthoc.held_out import Array
from classgap.posthoc.solver.local_model import LocalModel
from classgap.posthoc.solver.sweep import SMALL, ClasswiseProblem, Sweep, evaluate

_SAMPLES = ((8, 0.1), (60, 0.01))  # samples per class, and relative gradient norm to reach on them
# The objective is a difference of larger numbers: below this its rounding error no longer falls with it.
_SMALLEST = 0.01
_INNER = 0.03  # relative gradient norm to which a model is minimised


@dataclass(frozen=True)
class Solution:
    """Minimiser (scales, offsets), its objective, and its gradient norm relative to that at the identity, on all rows."""

    scale: Array
    offset: Array
    value: float
    relative_gradient: float
    sweeps: int


def solve(problem: ClasswiseProblem, *, tol: float = 1e-4, max_iter: int = 100) -> Solution:
    """Minimise to a gradient norm of ``tol`` times the norm at the identity (scale 1, offset 0), over all rows.

    If that norm is almost zero, as for scores that classify every sample with certainty, the goal is the rounding error of the
    scores.
    """
    with threadpool_limits(1, "blas"):  # a sweep uses its own threads
        solution = _solve(problem, tol, max_iter)
    # single precision may miss the goal slightly; this changes no prediction
    if solution.relative_gradient > tol * (10 if problem.scores.dtype == np.float32 else 1):
        warnings.warn(
            f"the solver stopped at a relative gradient of {solution.relative_gradient:.1e}, above tol={tol:.1e}: classes that "
            "are separated perfectly have no finite optimum; set ridge above 0",
            ConvergenceWarning,
            stacklevel=3,
        )
    return solution


def _solve(problem: ClasswiseProblem, tol: float, max_iter: int) -> Solution:
    theta, model = problem.identity, None
    samples = [(problem.subsample(cap), goal) for cap, goal in _SAMPLES] if problem.scores.size >= SMALL else []
    samples = [(sample, goal) for sample, goal in samples if 3 * len(sample.y) < len(problem.y)]
    sweep = evaluate(samples[0][0] if samples else problem, theta, contest=True)
    least = _resolution(problem) / tol
    reference = max(sweep.norm, least)
    for sample, goal in samples:
        sweep = sweep if model is None else evaluate(sample, theta, contest=True)
        theta, sweep, _ = _descend(sample, theta, sweep, None, goal * reference, max_iter)
        model = LocalModel(sample, theta, sweep)
    if model is not None:
        sweep = evaluate(problem, theta)
        # the first gradient on all rows shows the error of the sample, and whether its gradient norm can be trusted
        trusted = sweep.norm < 0.05 * reference
        reference = 0.98 * reference if trusted else max(evaluate(problem, problem.identity).norm, least)
    theta, sweep, sweeps = _descend(problem, theta, sweep, model, tol * reference, max_iter)
    K, relative = problem.num_classes, sweep.norm / reference
    return Solution(theta[:K], theta[K:], sweep.value, relative, sweeps)


def _resolution(problem: ClasswiseProblem) -> float:
    """Rounding error of a gradient: it is the difference of two sums, one of which is ``target``."""
    size = float(np.linalg.norm(problem.in_logits(problem.target)))
    return max(float(np.finfo(problem.scores.dtype).eps) * size, float(np.finfo(np.float64).tiny))


def _descend(
    problem: ClasswiseProblem, theta: Array, sweep: Sweep, model: LocalModel | None, goal: float, max_iter: int
) -> tuple[Array, Sweep, int]:
    """Minimise model after model until the gradient norm is ``goal``; without ``model``, each sweep builds its own."""
    given, sweeps = model, 1
    noise = 1e-6 if problem.scores.dtype == np.float32 else 1e-13  # relative rounding error of the objective
    for _ in range(max_iter):
        if sweep.norm <= goal:
            break
        if given is None and sweep.contest is None:
            sweep = evaluate(problem, theta, contest=True)
        model = LocalModel(problem, theta, sweep) if given is None else given
        step = model.minimise(theta, sweep.gradient, max(_INNER * sweep.norm, goal / 10)) - theta
        if not step.any():
            break
        slope, length = float(sweep.gradient @ step), 1.0
        while True:
            trial = evaluate(problem, theta + length * step, contest=given is None)
            sweeps += 1
            allowed = noise * max(abs(sweep.value), _SMALLEST)
            if trial.value <= sweep.value + 1e-4 * length * slope + allowed or length < 1e-4:
                break
            length /= 2
        if length < 1e-4:
            break
        if trial.norm > sweep.norm / 2:
            given = None  # the model of the sample no longer helps
        theta, sweep = theta + length * step, trial
    return theta, sweep, sweeps


def lbfgs(
    objective: Callable[[Array], tuple[float, Array]], start: Array, *, tol: float, max_iter: int = 1000
) -> Array:
    """Minimise a smooth function until the largest gradient entry is ``tol`` times that at the start, with SciPy's L-BFGS."""
    from scipy.optimize import minimize

    with threadpool_limits(
        1, "blas"
    ):  # with several threads, NumPy and SciPy block each other: up to twenty times slower
        first = float(np.abs(objective(start)[1]).max())
        if first == 0:
            return start
        # scaled so that the largest entry of the first gradient is 1, as the tolerance requires
        result = minimize(
            lambda x: tuple(part / first for part in objective(x)),
            start,
            jac=True,
            method="L-BFGS-B",
            options={"gtol": tol, "ftol": 0.0, "maxiter": max_iter, "maxcor": 20, "maxfun": 2 * max_iter},
        )
    solution: Array = result.x
    return solution
