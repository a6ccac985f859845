"""The exact solver: gradients, Hessian products, optimum, warm starts, memory maps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from classgap.posthoc import LWS, MARC, VectorScaling
from classgap.posthoc.estimators.base import class_weights
from classgap.posthoc.solver import minimize as solver
from classgap.posthoc.solver import sweep
from classgap.posthoc.solver.local_model import LocalModel
from classgap.posthoc.solver.minimize import lbfgs, solve
from classgap.posthoc.solver.sweep import ClasswiseProblem, evaluate
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


def test_model_agrees_with_the_sweep_it_was_made_from(problem, theta, monkeypatch) -> None:
    """Value and gradient whatever is kept; with a wide remainder the Hessian's diagonal as well."""
    monkeypatch.setattr(sweep, "_CONTEST", 0.3)
    model = LocalModel(problem, theta, evaluate(problem, theta, contest=True))
    assert 0.05 < model.rest.mean() < 0.5
    value, gradient = model.evaluate(theta)
    assert value == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(gradient, evaluate(problem, theta).gradient, atol=1e-12)
    monkeypatch.setattr(sweep, "_CONTEST", -1.0)
    exact = LocalModel(problem, theta, evaluate(problem, theta, contest=True))
    exact.evaluate(theta)
    for mine, true in zip(model.blocks, exact.blocks, strict=True):
        np.testing.assert_allclose(mine, true, rtol=1e-6)


def test_model_with_every_entry_kept_is_the_objective(problem, theta, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "_CONTEST", -1.0)
    base = evaluate(problem, theta, contest=True)
    model = LocalModel(problem, theta, base)
    other = theta + np.random.default_rng(3).normal(size=10) / 5
    value, gradient = model.evaluate(other)
    there = evaluate(problem, other)
    assert value == pytest.approx(there.value - base.value, abs=1e-9)
    np.testing.assert_allclose(gradient, there.gradient, atol=1e-9)


@pytest.mark.parametrize("threshold", [-1.0, 0.2])
def test_model_products_match_its_gradient_differences(problem, theta, threshold: float, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "_CONTEST", threshold)
    model = LocalModel(problem, theta, evaluate(problem, theta, contest=True))
    v, step = np.random.default_rng(2).normal(size=10), 1e-6
    numeric = (model.evaluate(theta + step * v)[1] - model.evaluate(theta - step * v)[1]) / (2 * step)
    model.evaluate(theta)
    # at the base the remainder's curvature within a column is that of its moments
    np.testing.assert_allclose(model.product(v), numeric, atol=1e-7)


def test_model_is_convex_and_blind_to_a_common_shift(problem, theta, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "_CONTEST", 0.2)
    free = replace(problem, ridge=0.0, unit=np.ones(5), pivot=0.0)
    model = LocalModel(free, theta, evaluate(free, theta, contest=True))
    shift = np.repeat([0.0, 1.0], 5)
    value, _ = model.evaluate(theta + 3 * shift)
    assert value == pytest.approx(0, abs=1e-12)
    matrix = np.array([model.product(e) for e in np.eye(10)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10
    np.testing.assert_allclose(model.product(shift), 0, atol=1e-12)


def test_reaches_the_optimum_of_lbfgs(problem: ClasswiseProblem) -> None:
    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        found = evaluate(problem, x)
        return found.value, found.gradient

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


def many_classes(seed: int = 0) -> ClasswiseProblem:
    """Long-tailed scores, large enough for samples of the rows to be worth while."""
    task = long_tailed_task(num_classes=20, per_class=300, seed=seed)
    weights = class_weights(np.bincount(task.y, minlength=20), 1.2)[task.y]
    return ClasswiseProblem(task.scores, task.y, weights, float(weights.sum()), task.norms, ridge=0.1)


@pytest.fixture
def sampled(monkeypatch) -> list[tuple[int, bool]]:
    """Makes every problem large, and lists the rows of each sweep and whether it made a model."""
    monkeypatch.setattr(solver, "SMALL", 1)
    monkeypatch.setattr(sweep, "SMALL", 1)
    calls = []

    def counted(problem: ClasswiseProblem, theta: np.ndarray, *, contest: bool = False) -> sweep.Sweep:
        calls.append((len(problem.y), contest))
        return evaluate(problem, theta, contest=contest)

    monkeypatch.setattr(solver, "evaluate", counted)
    return calls


def test_samples_reach_the_same_optimum_with_few_sweeps_over_all_rows(sampled) -> None:
    problem = many_classes()
    found = solve(problem, tol=1e-5)
    rows = [n for n, _ in sampled]
    assert rows[0] < len(problem.y) / 3  # starts on a sample ...
    assert rows.count(len(problem.y)) <= 8
    assert (len(problem.y), True) not in sampled  # ... whose model was good enough for all rows
    assert found.relative_gradient <= 1e-5
    # the tolerance holds on all rows, relative to the true first norm, by another sweep
    theta = np.concatenate([found.scale, found.offset])
    assert evaluate(problem, theta).norm <= 1e-5 * evaluate(problem, problem.identity).norm

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        there = evaluate(problem, x)
        return there.value, there.gradient

    slow = lbfgs(objective, problem.identity, tol=1e-7)
    assert found.value <= objective(slow)[0] + 1e-9
    np.testing.assert_allclose(theta, slow, atol=2e-3)


def test_where_there_is_little_to_learn_the_first_norm_is_taken_on_all_rows(sampled) -> None:
    """Solved already: a sample's gradient is then its noise, and would promise too much."""
    problem = many_classes()
    best = solve(problem, tol=1e-8)
    scores = problem.scores * best.scale + problem.unit * best.offset
    again = replace(problem, scores=scores, ridge=0.0)
    sampled.clear()
    found = solve(again, tol=1e-2)
    first = evaluate(again, again.identity).norm
    theta = np.concatenate([found.scale, found.offset])
    assert evaluate(again, theta).norm <= 1e-2 * first
    assert found.relative_gradient == pytest.approx(evaluate(again, theta).norm / first)


def test_a_sample_that_misleads_gives_way_to_all_rows(sampled, monkeypatch) -> None:
    problem = many_classes()
    honest = ClasswiseProblem.subsample

    def misleading(self: ClasswiseProblem, cap: int) -> ClasswiseProblem:
        sample = honest(self, cap)
        return replace(sample, weights=sample.weights * np.where(sample.y % 2, 30.0, 0.03))

    monkeypatch.setattr(ClasswiseProblem, "subsample", misleading)
    found = solve(problem, tol=1e-6)
    assert (len(problem.y), True) in sampled
    assert found.relative_gradient <= 1e-6


@pytest.mark.parametrize("method", [MARC(), LWS(), LWS(form="weights"), VectorScaling()], ids=repr)
def test_samples_threads_and_memory_maps_change_nothing(method, tmp_path, monkeypatch) -> None:
    task = long_tailed_task(num_classes=8, per_class=300)
    context = {"class_counts": task.counts, "bias": task.bias}
    np.save(tmp_path / "scores.npy", task.scores.astype(np.float32))
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    method.fit(np.array(mapped), task.y, **context)
    plain = method.scale_, method.offset_, method.objective_
    monkeypatch.setattr(solver, "SMALL", 1)
    monkeypatch.setattr(sweep, "SMALL", 1)
    method.fit(mapped, task.y, **context)
    np.testing.assert_allclose(method.scale_, plain[0], atol=2e-3)
    np.testing.assert_allclose(method.offset_, plain[1], atol=4e-3)
    assert method.objective_ == pytest.approx(plain[2], rel=1e-6)


def test_subsample_is_even_over_own_scores_and_keeps_the_weight_of_each_class(problem: ClasswiseProblem) -> None:
    small = problem.subsample(7)
    assert np.bincount(small.y).max() == 7
    uniform = replace(problem, weights=np.ones(len(problem.y))).subsample(7)
    np.testing.assert_allclose(np.bincount(uniform.y, uniform.weights), np.bincount(problem.y))
    for k in range(5):
        every, some = problem.own[problem.y == k], small.own[small.y == k]
        assert abs(np.median(some) - np.median(every)) < 0.2 * every.std()
    np.testing.assert_array_equal(problem.subsample(10**6).own, problem.own)


@pytest.mark.parametrize("shift", [-500.0, 0.0, 90.0, 5e4])
def test_scores_out_of_range_of_single_precision(shift: float, theta) -> None:
    """Sums of exponentials that over- or underflow are redone in double precision; a common shift changes nothing."""
    task = long_tailed_task()
    scores = (task.scores + shift).astype(np.float32)
    weights = np.ones(len(task.y))
    flat = np.repeat([1.0, 0.0], 5) + np.r_[np.zeros(5), theta[5:]]
    single = evaluate(ClasswiseProblem(scores, task.y, weights, 1.0, task.norms), flat)
    double = evaluate(ClasswiseProblem(scores.astype(np.float64), task.y, weights, 1.0, task.norms), flat)
    assert single.value == pytest.approx(double.value, rel=1e-5)
    np.testing.assert_allclose(single.gradient[5:], double.gradient[5:], atol=1e-3)
    one_large = scores.copy()
    one_large[3, 2] = 300.0
    found = evaluate(ClasswiseProblem(one_large, task.y, weights, 1.0, task.norms), flat)
    assert np.isfinite(found.value)
    assert np.isfinite(found.gradient).all()


def test_single_precision_is_close_to_double() -> None:
    task = long_tailed_task()
    double = MARC().fit(task.scores, task.y, class_counts=task.counts)
    single = MARC().fit(task.scores.astype(np.float32), task.y, class_counts=task.counts)
    np.testing.assert_allclose(single.omega_, double.omega_, atol=1e-3)


def test_stopping_short_of_the_goal_warns(problem: ClasswiseProblem) -> None:
    with pytest.warns(ConvergenceWarning, match="set ridge above 0"):
        solve(problem, tol=1e-12, max_iter=1)


def test_separated_classes_without_ridge_end_finite() -> None:
    scores = np.repeat(np.eye(3), 5, axis=0) * 3
    marc = MARC(ridge=0.0).fit(scores, np.repeat(np.arange(3), 5))
    assert np.isfinite(marc.omega_).all()
    assert marc.objective_ < 1e-3


def test_scores_that_are_certain_need_few_sweeps() -> None:
    """The rounding error of an objective near 0 is that of its terms: 1298 sweeps were made for one-hot probabilities."""
    y = np.arange(60) % 3
    scores = np.log(np.maximum(np.eye(3)[y], 1e-12))
    problem = ClasswiseProblem(scores, y, np.ones(60), 60.0, np.ones(3), ridge=0.1, free_offset=False)
    assert solve(problem).sweeps < 20
