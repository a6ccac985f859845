"""Exact fitting of one scale and one offset a class: the convex problem behind MARC, LWS and vector scaling.

A sweep over all rows gives the exact gradient; the next point is the minimum of a :class:`LocalModel`, which costs a fraction
of a sweep. Large problems are first solved on samples of the rows; the model of the last sample, tilted to the exact gradient,
then serves for all rows. Whatever the model, only sweeps over all rows say where the gradient is small enough.
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

_SAMPLES = ((8, 0.1), (60, 0.01))  # samples a class, and how far the gradient is reduced on them
_INNER = 0.03  # of the gradient norm: how exactly a model is minimised


@dataclass(frozen=True)
class Solution:
    """Minimiser (scales, offsets), its objective, and how far the gradient shrank from the identity; all on all rows."""

    scale: Array
    offset: Array
    value: float
    relative_gradient: float
    sweeps: int


def solve(problem: ClasswiseProblem, *, tol: float = 1e-4, max_iter: int = 100) -> Solution:
    """Minimise to a gradient norm of ``tol`` times the norm at the identity (scale 1, offset 0), over all rows.

    Where that norm is next to nothing, as with scores that classify every sample with certainty, the goal is what the
    precision of the scores can resolve.
    """
    with threadpool_limits(1, "blas"):  # sweeps share out the rows themselves
        solution = _solve(problem, tol, max_iter)
    # single precision may end a little short of the goal; that moves no prediction
    if solution.relative_gradient > tol * (10 if problem.scores.dtype == np.float32 else 1):
        warnings.warn(
            f"stopped at a relative gradient of {solution.relative_gradient:.1e}, wanted {tol:.1e}: classes that are "
            "separated perfectly have no finite optimum; set ridge above 0",
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
        # the first gradient on all rows is the sample's error: it tells how far the norm found there can be trusted
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
    """From model to model until the gradient norm is ``goal``; without a ``model`` each sweep makes its own."""
    given, sweeps = model, 1
    noise = 1e-6 if problem.scores.dtype == np.float32 else 1e-13  # of the objective: rounding, not ascent
    for _ in range(max_iter):
        if sweep.norm <= goal:
            break
        if given is None and sweep.contest is None:
            sweep = evaluate(problem, theta, contest=True)
        model = LocalModel(problem, theta, sweep) if given is None else given
        step = model.minimise(theta, sweep.gradient, max(_INNER * sweep.norm, goal / 10)) - theta
        slope, length = float(sweep.gradient @ step), 1.0
        while True:
            trial = evaluate(problem, theta + length * step, contest=given is None)
            sweeps += 1
            if trial.value <= sweep.value + 1e-4 * length * slope + noise * abs(sweep.value) or length < 1e-4:
                break
            length /= 2
        if length < 1e-4:
            break
        if trial.norm > sweep.norm / 2:
            given = None  # the sample has no more to say
        theta, sweep = theta + length * step, trial
    return theta, sweep, sweeps


def lbfgs(
    objective: Callable[[Array], tuple[float, Array]], start: Array, *, tol: float, max_iter: int = 1000
) -> Array:
    """Minimise a smooth function until its gradient is ``tol`` times the first one (largest entry), with SciPy's L-BFGS."""
    from scipy.optimize import minimize

    with threadpool_limits(1, "blas"):  # the threads of NumPy and SciPy wait for each other, up to twenty times as long
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
