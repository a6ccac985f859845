"""Identities of each post-hoc method, and agreement with the slow references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from classgap.checks import InputError
from classgap.posthoc import (
    CRT,
    LWS,
    MARC,
    DisAlign,
    LogitAdjustment,
    MatrixScaling,
    TauNorm,
    TemperatureScaling,
    VectorScaling,
    load,
    save,
)
from classgap.posthoc.estimators.base import balanced_accuracy, class_weights
from classgap.posthoc.estimators.crt import _weighted_cross_entropy
from classgap.posthoc.estimators.disalign import _aligned_cross_entropy
from posthoc_data import Task, long_tailed_task
from reference import posthoc as reference

CIFAR10_LT = np.array([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50])


@pytest.fixture(scope="module")
def task() -> Task:
    return long_tailed_task()


def numeric_gradient(function, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    return np.array([(function(x + e) - function(x - e)) / (2 * step) for e in step * np.eye(len(x))])


def test_golden_weights() -> None:
    golden = [0.0183, 0.0338, 0.0624, 0.1153, 0.2134, 0.3939, 0.7278, 1.3459, 2.4988, 4.5905]
    np.testing.assert_allclose(class_weights(CIFAR10_LT, 1.2), golden, atol=6e-5)
    np.testing.assert_allclose(class_weights(CIFAR10_LT, 1.2), reference.marc_weights(CIFAR10_LT.tolist(), 1.2))
    np.testing.assert_array_equal(class_weights(CIFAR10_LT, 0.0), np.ones(10))


@pytest.mark.parametrize("gamma", [0.0, 1.2])
@pytest.mark.parametrize("normalize", ["weights", "batch"])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_marc_objective_matches_reference(task: Task, gamma: float, normalize: str, ridge: float) -> None:
    marc = MARC(gamma=gamma, normalize=normalize, ridge=ridge).fit(task.scores, task.y, **task.context)
    settings = {"gamma": gamma, "normalize": normalize, "ridge": ridge}
    given = task.scores, task.y, np.bincount(task.y), task.norms
    at_solution = reference.marc_objective(*given, marc.omega_, marc.beta_, **settings)
    assert marc.objective_ == pytest.approx(at_solution, rel=1e-9)
    assert at_solution < reference.marc_objective(*given, np.ones(5), np.zeros(5), **settings)


def test_marc_minimises_equation_11_and_nothing_else(task: Task) -> None:
    """The default has no ridge: no other point is lower, and the offsets are the smallest of those that are as low."""
    marc = MARC(tol=1e-7).fit(task.scores, task.y, **task.context)
    given = task.scores, task.y, np.bincount(task.y), task.norms
    eq_11 = {"gamma": 1.2, "normalize": "batch", "ridge": 0.0}

    def value(theta: np.ndarray) -> float:
        return reference.marc_objective(*given, theta[:5], theta[5:], **eq_11)

    theta = np.concatenate([marc.omega_, marc.beta_])
    np.testing.assert_allclose(numeric_gradient(value, theta), 0, atol=1e-6)
    assert (marc.beta_ / task.norms).sum() == pytest.approx(0, abs=1e-9)
    ridged = MARC(ridge=0.1, tol=1e-7).fit(task.scores, task.y, **task.context)
    assert value(theta) < value(np.concatenate([ridged.omega_, ridged.beta_])) - 1e-4


@pytest.mark.parametrize("normalize", ["weights", "batch"])
@pytest.mark.parametrize("batch", [32, 512])
def test_marc_in_steps_is_the_papers_sgd(
    task: Task, normalize: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classgap.posthoc.estimators.marc._BATCH", batch)
    size = min(batch, len(task.y))
    steps = 30 * (len(task.y) // size)
    marc = MARC(normalize=normalize, steps=steps).fit(task.scores, task.y, **task.context)
    given = task.scores, task.y, np.bincount(task.y), task.norms
    settings = {"gamma": 1.2, "ridge": 0.0, "normalize": normalize}
    omega, beta = reference.marc_by_sgd(*given, **settings, epochs=30, batch=size)
    np.testing.assert_allclose(marc.omega_, omega, rtol=1e-10)
    np.testing.assert_allclose(marc.beta_, beta, rtol=1e-8, atol=1e-12)
    assert marc.objective_ == pytest.approx(reference.marc_objective(*given, omega, beta, **settings))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("certainty", [3.0, 8.0, 20.0, 100.0])
def test_marc_on_scores_that_are_all_right_ends_finite(dtype: type, certainty: float) -> None:
    """Eq. 11 has no minimum there; with scores that are certain already there is nothing left to gain either."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), [40, 20, 10, 5])
    scores = (rng.uniform(size=(75, 4)) + certainty * np.eye(4)[y]).astype(dtype)
    for method in (MARC(), MARC(steps=50)):  # a warning would be an error
        method.fit(scores, y, weight_norms=[2.0, 1.5, 1.2, 1.0])
        assert np.abs(method.omega_).max() < 20
        assert np.abs(method.beta_).max() < 20
        np.testing.assert_array_equal(method.predict(scores), y)
    if certainty == 100.0:
        np.testing.assert_allclose(method.omega_, 1)
        np.testing.assert_allclose(method.beta_, 0, atol=1e-12)


def test_margins_after_marc_are_equation_8(task: Task, tmp_path: Path) -> None:
    """Not those of the folded layer, whose rows have another length: there the margin would be d + β/ω."""
    names = np.array(["e", "b", "d", "a", "c"])
    marc = MARC().fit(task.scores, names[task.y], classes=names, weight_norms=task.norms)
    d = task.scores / task.norms
    np.testing.assert_allclose(marc.margins(task.scores), marc.omega_ * d + marc.beta_)
    np.testing.assert_allclose(marc.margins(task.scores) * task.norms, marc.transform(task.scores))  # eq. 9
    expected = reference.marc_margins(task.scores, task.y, task.norms, marc.omega_, marc.beta_)
    np.testing.assert_allclose(marc.average_margins(task.scores, names[task.y]), expected)
    weight, bias = marc.fold(task.weight, task.bias)
    folded = (task.features @ weight.T + bias) / np.linalg.norm(weight, axis=1)
    assert not np.allclose(folded, marc.margins(task.scores), rtol=0.05)
    loaded = load(save(marc, tmp_path))
    np.testing.assert_allclose(loaded.average_margins(task.scores, names[task.y]), expected)
    np.testing.assert_array_equal(loaded.margin_norms, task.norms)
    few = task.y < 4
    assert np.isnan(marc.average_margins(task.scores[few], names[task.y[few]])[4])
    with pytest.raises(InputError, match="same length"):
        marc.average_margins(task.scores, names[task.y[few]])


def test_marc_is_at_or_below_the_papers_sgd(task: Task) -> None:
    settings = {"gamma": 1.2, "ridge": 0.1}
    exact = MARC(normalize="weights", **settings).fit(task.scores, task.y, **task.context)
    omega, beta = reference.marc_by_sgd(task.scores, task.y, np.bincount(task.y), task.norms, **settings)
    given = task.scores, task.y, np.bincount(task.y), task.norms
    assert exact.objective_ <= reference.marc_objective(*given, omega, beta, normalize="weights", **settings)


def test_marc_with_fixed_parameters_is_logit_adjustment(task: Task) -> None:
    tau, prior = 0.7, task.counts / task.counts.sum()
    marc = MARC().fit(task.scores, task.y, **task.context)
    marc.scale_, marc.offset_ = np.ones(5), -tau * np.log(prior) / task.norms * task.norms
    adjusted = LogitAdjustment(tau=tau).fit(task.scores, task.y, class_counts=task.counts)
    np.testing.assert_array_equal(marc.predict(task.scores), adjusted.predict(task.scores))
    np.testing.assert_allclose(marc.predict_proba(task.scores), adjusted.predict_proba(task.scores))


def test_marc_normalisations_differ_only_through_the_ridge(task: Task) -> None:
    by_weights, by_batch = (
        MARC(normalize=n, ridge=1e-6, tol=1e-8).fit(task.scores, task.y, **task.context) for n in ("weights", "batch")
    )
    np.testing.assert_allclose(by_weights.predict_proba(task.scores), by_batch.predict_proba(task.scores), atol=1e-3)


def test_training_counts_do_not_weigh_twice(task: Task) -> None:
    """On a balanced held-out set there is nothing to re-weight."""
    even = long_tailed_task(balanced=True)
    weighted, plain = (MARC(gamma=g).fit(even.scores, even.y, **even.context) for g in (1.2, 0.0))
    np.testing.assert_allclose(weighted.scale_, plain.scale_, atol=1e-6)


@pytest.mark.parametrize(
    "method", [MARC(), CRT(), LogitAdjustment(), LWS(), DisAlign()], ids=lambda m: type(m).__name__
)
def test_balanced_accuracy_rises_on_a_long_tail(task: Task, method) -> None:
    fresh = long_tailed_task(per_class=200, balanced=True)
    method.fit(task.scores, task.y, **task.context)
    after = balanced_accuracy(method.transform(fresh.scores, features=fresh.features), fresh.y)
    assert after > balanced_accuracy(fresh.scores, fresh.y) + 0.05


def test_logit_adjustment_matches_reference(task: Task) -> None:
    prior = task.counts / task.counts.sum()
    corrected = LogitAdjustment(tau=1.5).fit(task.scores, task.y, class_counts=task.counts).transform(task.scores)
    expected = np.array([reference.logit_adjustment(row, prior, 1.5) for row in task.scores])
    np.testing.assert_allclose(softmax(corrected, 1), softmax(expected, 1), atol=1e-12)
    by_prior = LogitAdjustment(tau=1.5).fit(task.scores, task.y, prior=prior)
    np.testing.assert_allclose(by_prior.transform(task.scores), corrected)


def test_logit_adjustment_does_nothing_without_reason(task: Task) -> None:
    off = LogitAdjustment(tau=0.0).fit(task.scores, task.y, class_counts=task.counts)
    uniform = LogitAdjustment().fit(task.scores, task.y, class_counts=np.full(5, 7))
    np.testing.assert_array_equal(off.transform(task.scores), task.scores)
    np.testing.assert_array_equal(uniform.transform(task.scores), task.scores)


def test_tuned_tau_is_the_best_of_the_grid(task: Task) -> None:
    tuned = LogitAdjustment(tau=None).fit(task.scores, task.y, class_counts=task.counts)
    values = [
        balanced_accuracy(
            LogitAdjustment(t / 10).fit(task.scores, task.y, class_counts=task.counts).transform(task.scores), task.y
        )
        for t in range(21)
    ]
    assert tuned.tau_ == pytest.approx(int(np.argmax(values)) / 10)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_tau_norm_matches_reference(task: Task, tau: float) -> None:
    method = TauNorm(tau=tau).fit(task.scores, task.y, weight_norms=task.norms, bias=task.bias)
    weight, bias = method.fold(task.weight, task.bias)
    np.testing.assert_allclose(weight, reference.tau_norm_head(task.weight, tau))
    np.testing.assert_allclose(bias, 0, atol=1e-12)
    if tau == 1:
        np.testing.assert_allclose(np.linalg.norm(weight, axis=1), 1)
    if tau == 0:
        np.testing.assert_allclose(weight, task.weight)


def test_tau_norm_needs_the_head(task: Task) -> None:
    with pytest.raises(InputError, match="weight_norms"):
        TauNorm().fit(task.scores, task.y)


def test_lws_forms(task: Task) -> None:
    whole = LWS().fit(task.scores, task.y, bias=task.bias)
    np.testing.assert_array_equal(whole.offset_, 0)
    rows = LWS(form="weights").fit(task.scores, task.y, bias=task.bias)
    weight, bias = rows.fold(task.weight, task.bias)
    np.testing.assert_allclose(bias, task.bias)
    np.testing.assert_allclose(weight, rows.scale_[:, None] * task.weight)
    no_bias = np.zeros(5)
    raw = task.scores - task.bias
    np.testing.assert_allclose(
        LWS(form="weights").fit(raw, task.y, bias=no_bias).scale_, LWS().fit(raw, task.y, bias=no_bias).scale_
    )
    with pytest.raises(InputError, match="bias="):
        LWS(form="weights").fit(task.scores, task.y)


def calibrated_task(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 4))
    p = softmax(logits, axis=1)
    return logits, (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(0, 3)


def test_temperature_recovers_two() -> None:
    logits, y = calibrated_task()
    method = TemperatureScaling().fit(2 * logits, y)
    assert method.temperature_ == pytest.approx(2, rel=0.05)
    np.testing.assert_array_equal(method.predict(logits), logits.argmax(1))


def test_temperature_at_perfect_separation_is_finite() -> None:
    assert TemperatureScaling().fit(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 0]).temperature_ > 0


def test_vector_scaling_recovers_scale_and_offset() -> None:
    logits, y = calibrated_task(20_000)
    scale, offset = np.array([1.0, 2.0, 0.5, 1.0]), np.array([0.0, 1.0, -1.0, 0.5])
    method = VectorScaling(ridge=0.0, tol=1e-7).fit((logits - offset) / scale, y)
    np.testing.assert_allclose(method.scale_, scale, rtol=0.1)
    np.testing.assert_allclose(method.offset_ - method.offset_[0], offset, atol=0.15)


def test_unweighted_marc_is_vector_scaling(task: Task) -> None:
    marc = MARC(gamma=0.0, ridge=0.1, tol=1e-8).fit(task.scores, task.y)
    vector = VectorScaling(tol=1e-8).fit(task.scores, task.y)
    np.testing.assert_allclose(marc.scale_, vector.scale_, atol=1e-6)
    np.testing.assert_allclose(marc.offset_, vector.offset_, atol=1e-6)


def test_matrix_scaling_with_a_huge_ridge_changes_nothing(task: Task) -> None:
    np.testing.assert_allclose(
        MatrixScaling(ridge=1e8).fit(task.scores, task.y).transform(task.scores), task.scores, atol=1e-4
    )


def test_matrix_scaling_undoes_a_swap() -> None:
    logits, y = calibrated_task()
    swapped = logits[:, [1, 0, 2, 3]]
    method = MatrixScaling(ridge=0.01).fit(swapped, y)
    assert (method.predict(swapped) == logits.argmax(1)).mean() > 0.9


def test_crt_gradient_and_optimum(task: Task) -> None:
    weights = class_weights(np.bincount(task.y), 1.0)[task.y]
    weights /= weights.sum()
    head = np.random.default_rng(0).normal(size=(5, 9)) / 10
    seen = np.ones(5, dtype=bool)

    def value(x: np.ndarray) -> float:
        return _weighted_cross_entropy(task.features, task.y, weights, x.reshape(5, 9), 1.3, seen)[0]

    analytic = _weighted_cross_entropy(task.features, task.y, weights, head, 1.3, seen)[1].ravel()
    np.testing.assert_allclose(analytic, numeric_gradient(value, head.ravel()), atol=1e-7)


def test_crt_is_balanced_logistic_regression(task: Task) -> None:
    from sklearn.linear_model import LogisticRegression

    rows = np.flatnonzero((task.y != 4) | (np.arange(len(task.y)) % 6 == 0))  # a rare class
    x, y = task.features[rows], task.y[rows]
    decay = 1e-2
    crt = CRT(weight_decay=decay, tol=1e-7).fit(None, y, features=x)
    scale = np.sqrt(np.mean(x**2))
    twin = LogisticRegression(C=1 / (decay * len(y)), class_weight="balanced", tol=1e-9, max_iter=5000).fit(
        x / scale, y
    )
    np.testing.assert_allclose(softmax(crt.transform(None, features=x), 1), twin.predict_proba(x / scale), atol=1e-4)


def test_crt_never_predicts_a_class_it_has_not_seen(task: Task) -> None:
    rows = task.y != 1
    crt = CRT().fit(task.scores[rows], task.y[rows], features=task.features[rows])
    assert 1 not in crt.predict(None, features=task.features)
    with pytest.raises(InputError, match="8"):
        crt.predict(None, features=task.features[:, :3])
    with pytest.raises(InputError, match="needs features="):
        CRT().fit(task.scores, task.y)


@pytest.mark.parametrize("form", ["paper", "code"])
def test_disalign_matches_reference(task: Task, form: str) -> None:
    method = DisAlign(form=form).fit(task.scores, task.y, **task.context)
    expected = [
        reference.disalign(row, phi, method.alpha_, method.beta_, method.confidence_[:-1], method.confidence_[-1], form)
        for row, phi in zip(task.scores[:20], task.features[:20], strict=True)
    ]
    np.testing.assert_allclose(method.transform(task.scores, features=task.features)[:20], expected)


def test_disalign_starts_at_no_change(task: Task) -> None:
    method = DisAlign(ridge=1e9).fit(task.scores, task.y, **task.context)
    np.testing.assert_allclose(method.alpha_, 1, atol=1e-6)
    np.testing.assert_allclose(method.transform(task.scores, features=task.features), task.scores, atol=1e-4)


def test_disalign_gradient(task: Task) -> None:
    weights = np.full(len(task.y), 1 / len(task.y))
    x = np.random.default_rng(0).normal(size=2 * 5 + 9) / 3

    def value(at: np.ndarray) -> float:
        return _aligned_cross_entropy(task.scores, task.features, task.y, weights, at, 1.7)[0]

    analytic = _aligned_cross_entropy(task.scores, task.features, task.y, weights, x, 1.7)[1]
    np.testing.assert_allclose(analytic, numeric_gradient(value, x), atol=1e-7)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (MARC(gamma=-1), "gamma"),
        (MARC(normalize="sum"), "normalize"),
        (MARC(ridge=-1), "ridge"),
        (MARC(steps=0), "steps"),
        (MARC(steps=1.5), "steps"),
        (LWS(form="x"), "form"),
        (LogitAdjustment(tau=-1), "tau"),
        (DisAlign(form="x"), "form"),
        (CRT(weight_decay=-1), "weight_decay"),
        (VectorScaling(ridge=float("nan")), "ridge"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_bad_parameters_are_named(task: Task, method, message: str) -> None:
    with pytest.raises(InputError, match=message):
        method.fit(task.scores, task.y, **task.context)
