"""The exact solver: gradients, Hessian products, optimum, warm starts, memory maps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from classgap.posthoc import MARC
from classgap.posthoc import _solver as solver
from classgap.posthoc._solver import ClasswiseProblem, evaluate, lbfgs, solve
from posthoc_data import long_tailed_task


@pytest.fixture
def problem() -> ClasswiseProblem:
    task = long_tailed_task()
    weights = np.random.default_rng(0).random(len(task.y)) + 0.5
    return ClasswiseProblem(task.scores, task.y, weights, float(weights.sum()), task.norms, pivot=task.bias, ridge=0.3)


@pytest.fixture
def theta() -> np.ndarray:
    return np.repeat([1.0, 0.0], 5) + np.random.default_rng(1).normal(size=10) / 3


def test_gradient_matches_finite_differences(problem: ClasswiseProblem, theta: np.ndarray) -> None:
    step = 1e-6
    numeric = [
        (evaluate(problem, theta + e).value - evaluate(problem, theta - e).value) / (2 * step)
        for e in step * np.eye(10)
    ]
    np.testing.assert_allclose(evaluate(problem, theta).gradient, numeric, atol=1e-8)


def test_hessian_product_matches_gradient_differences(problem, theta, monkeypatch) -> None:
    """With every probability kept the Hessian is exact."""
    monkeypatch.setattr(solver, "_COUPLING", -1.0)
    hessian = solver._Hessian(problem, evaluate(problem, theta, hessian=True))
    v = np.random.default_rng(2).normal(size=10)
    step = 1e-6
    numeric = (evaluate(problem, theta + step * v).gradient - evaluate(problem, theta - step * v).gradient) / (2 * step)
    np.testing.assert_allclose(hessian.dot(v), numeric, atol=1e-7)


def test_approximate_hessian_stays_positive_and_keeps_the_common_shift(problem, theta, monkeypatch) -> None:
    monkeypatch.setattr(solver, "_COUPLING", 0.2)
    free = replace(problem, ridge=0.0, unit=np.ones(5))
    hessian = solver._Hessian(free, evaluate(free, theta, hessian=True))
    matrix = np.array([hessian.dot(e) for e in np.eye(10)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10
    np.testing.assert_allclose(hessian.dot(np.repeat([0.0, 1.0], 5)), 0, atol=1e-12)  # softmax ignores it


def test_reaches_the_optimum_of_lbfgs(problem: ClasswiseProblem) -> None:
    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        sweep = evaluate(problem, x)
        return sweep.value, sweep.gradient

    solution = solve(problem, tol=1e-9)
    assert solution.relative_gradient <= 1e-9
    twin = lbfgs(objective, np.repeat([1.0, 0.0], 5), tol=1e-9)
    np.testing.assert_allclose(np.concatenate([solution.scale, solution.offset]), twin, atol=1e-5)
    assert solution.value <= objective(twin)[0] + 1e-12


def test_frozen_parameters_do_not_move(problem: ClasswiseProblem) -> None:
    free = np.array([True, True, False, True, True])
    solution = solve(replace(problem, free=free, free_offset=False))
    np.testing.assert_array_equal(solution.offset, 0)
    assert solution.scale[2] == 1
    assert (solution.scale[free] != 1).all()


def test_warm_starts_threads_and_memory_maps_change_nothing(tmp_path, monkeypatch) -> None:
    task = long_tailed_task(num_classes=8, per_class=300)
    np.save(tmp_path / "scores.npy", task.scores.astype(np.float32))
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    plain = MARC(tol=1e-4).fit(np.array(mapped), task.y, class_counts=task.counts)
    monkeypatch.setattr(solver, "_SMALL", 1)
    large = MARC(tol=1e-4).fit(mapped, task.y, class_counts=task.counts)
    np.testing.assert_allclose(large.omega_, plain.omega_, atol=2e-3)
    assert large.objective_ == pytest.approx(plain.objective_, rel=1e-6)


def test_subsample_keeps_the_weight_of_each_class(problem: ClasswiseProblem) -> None:
    small = problem.subsample(7)
    assert np.bincount(small.y).max() == 7
    uniform = replace(problem, weights=np.ones(len(problem.y))).subsample(7)
    np.testing.assert_allclose(np.bincount(uniform.y, uniform.weights), np.bincount(problem.y))


def test_single_precision_is_close_to_double() -> None:
    task = long_tailed_task()
    double = MARC().fit(task.scores, task.y, class_counts=task.counts)
    single = MARC().fit(task.scores.astype(np.float32), task.y, class_counts=task.counts)
    np.testing.assert_allclose(single.omega_, double.omega_, atol=1e-3)


def test_separated_classes_without_ridge_warn() -> None:
    scores = np.repeat(np.eye(3), 5, axis=0) * 3
    with pytest.warns(ConvergenceWarning, match="set ridge above 0"):
        MARC(ridge=0.0, tol=1e-14).fit(scores, np.repeat(np.arange(3), 5))
