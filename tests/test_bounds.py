"""The papers' bounds: reference values, corrections, and the counterexample to a printed constant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from classgap import arrays
from classgap.checks import InputError
from classgap.measure.diagnostics import bounds
from reference import geometry as reference


def problem(seed=0, k=3, d=4, n=20):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(k), n)
    weight = rng.normal(size=(k, d))
    return weight[y] + rng.normal(size=(len(y), d)), y, weight, rng.normal(size=k)


def test_margins_follow_the_cube_root_rule():
    gamma = bounds.margins_of(np.array([1.0, 8.0, 27.0, np.nan]), c_bar=2.0)
    np.testing.assert_allclose(gamma, [1, 2, 3, 2])


def test_cube_root_rule_minimises_the_complexity():
    """Sum of a/γ² is (sum of cube roots)³ / (c̄K)² at the rule, and no more than with equal margins."""
    x, y, weight, _ = problem()
    a = np.array([(x[y == k] ** 2).sum(axis=1).mean() for k in range(3)])
    gamma = bounds.describe(x, y, weight, c_bar=2.0).gamma
    assert (a / gamma**2).sum() == pytest.approx(np.cbrt(a).sum() ** 3 / (2 * 3) ** 2)
    assert (a / gamma**2).sum() <= (a / 2.0**2).sum()


@pytest.mark.parametrize("with_bias", [False, True])
def test_proposition_1_matches_its_formula(with_bias):
    x, y, weight, bias = problem()
    given = bias if with_bias else None
    found = bounds.describe(x, y, weight, given, delta=0.1)
    phi = np.column_stack([x, np.ones(len(x))]) if with_bias else x
    rows = np.column_stack([weight, bias]) if with_bias else weight
    a = np.array(
        [(phi[y == k] ** 2).sum(axis=1).mean() for k in range(3)]
    )  # with the appended 1: the bound alone has it
    gamma = reference.mr2_margins(x, y, 3)
    logits = phi @ rows.T
    risk = np.mean([reference.margin_cross_entropy(z, k, gamma) for z, k in zip(logits, y, strict=True)]) / math.log(2)
    norm = np.linalg.norm(rows, axis=1).max()
    doubt = 3 * math.sqrt(math.log(2 / 0.1) / (2 * len(x)))
    complexity = 4 * math.sqrt(2) * norm * 3 / math.sqrt(len(x)) * math.sqrt((a / gamma**2).sum())
    np.testing.assert_allclose(found.gamma, gamma)
    assert found.risk == pytest.approx(risk)
    assert found.mr2 == pytest.approx(risk + complexity + doubt)
    assert found.mr2_tight == pytest.approx(risk + complexity / math.sqrt(3) + doubt)
    assert found.vacuous


def test_margins_are_equation_1_on_the_features_with_and_without_a_bias():
    """Small features: a constant 1 appended for the bias would level the margins."""
    x, y, weight, bias = problem(k=4)
    x = 0.3 * x * (1 + np.arange(4))[y][:, None]
    expected = reference.mr2_margins(x, y, 4, c_bar=2.0)
    for given in (None, np.zeros(4), bias):
        np.testing.assert_allclose(bounds.describe(x, y, weight, given, c_bar=2.0).gamma, expected)


def test_a_bias_of_zeros_is_no_bias():
    x, y, weight, _ = problem()
    assert bounds.describe(x, y, weight, np.zeros(3)).summary() == bounds.describe(x, y, weight).summary()


def test_ramp_risk_matches_loop_reference():
    x, y, weight, bias = problem()
    found = bounds.describe(x, y, weight, bias)
    logits = x @ weight.T + bias
    ramp = np.array([reference.ramp_loss(z, k, found.gamma) for z, k in zip(logits, y, strict=True)])
    assert found.ramp_risk == pytest.approx(ramp.mean())
    np.testing.assert_allclose(found.columns()["mr2_ramp_risk"], [ramp[y == k].mean() for k in range(3)])
    error = (logits.argmax(axis=1) != y).mean()
    assert error < found.ramp_risk < found.risk
    # the 0-1 loss is its limit for vanishing margins
    assert bounds.describe(x, y, weight, bias, gamma=np.full(3, 1e-9)).ramp_risk == pytest.approx(error)


def test_unbalanced_classes_count_by_their_share():
    """Equals the bound's form before classes were assumed equal: KΛ/N · sqrt(Σ_i ‖φ_i‖²/γ_y²)."""
    x, y, weight, _ = problem()
    x, y = x[8:], y[8:]
    found = bounds.describe(x, y, weight)
    direct = 3 * np.linalg.norm(weight, axis=1).max() / len(x)
    direct *= math.sqrt(((x**2).sum(axis=1) / found.gamma[y] ** 2).sum())
    assert found.complexity[2.0].corrected == pytest.approx(direct)
    assert found.complexity[2.0].corrected == found.complexity[2.0].paper


def test_given_logits_and_margins_are_used():
    x, y, weight, bias = problem()
    own = bounds.describe(x, y, weight, bias)
    same = bounds.describe(x, y, weight, bias, x @ weight.T + bias, gamma=own.gamma)
    assert same.summary() == pytest.approx(own.summary(), nan_ok=True)
    assert bounds.describe(x, y, weight, bias, gamma=10 * own.gamma).mr2 < own.mr2


@pytest.mark.parametrize("p", [1.0, 1.5])
def test_printed_constant_fails_below_two(p):
    """One-hot features: every sign sum has L_p norm N^(1/p), the printed bound is sqrt(N)."""
    vectors = np.eye(8)
    expected = reference.rademacher(vectors, p)
    root = math.sqrt(sum(np.linalg.norm(v, ord=p) ** 2 for v in vectors))
    assert expected > bounds.printed_constant(p, 8) * root
    assert expected / root == pytest.approx(8 ** (1 / p - 0.5))
    assert expected <= bounds.khintchine_constant(p, 8) * root + 1e-12


def test_printed_constant_fails_at_infinity():
    assert reference.rademacher(np.ones((1, 1)), np.inf) > bounds.printed_constant(math.inf, 1)
    assert reference.rademacher(np.ones((1, 1)), np.inf) <= bounds.khintchine_constant(math.inf, 1)


@pytest.mark.parametrize("p", [1.0, 1.3, 2.0, 2.5, 3.0, 5.0, np.inf])
@pytest.mark.parametrize("seed", range(3))
def test_corrected_constant_holds(p, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(9, 4)) * (rng.random((9, 4)) < 0.6)
    root = math.sqrt(sum(np.linalg.norm(v, ord=p) ** 2 for v in vectors))
    assert reference.rademacher(vectors, p) <= bounds.khintchine_constant(p, 4) * root + 1e-12


def test_flags_say_which_printed_constant_holds():
    x, y, weight, bias = problem()
    found = bounds.describe(x, y, weight, bias).complexity
    assert {p: c.paper_holds for p, c in found.items()} == {1.0: False, 2.0: True, 3.0: True, math.inf: False}
    assert all(c.paper >= c.corrected for c in found.values() if c.paper_holds)
    assert all(c.paper < c.corrected for c in found.values() if not c.paper_holds)


def test_per_class_bounds_match_their_formulas():
    x, y, weight, _ = problem()
    found = bounds.describe(x, y, weight, delta=0.1)
    norm = np.linalg.norm(weight, axis=1).max()
    for k in range(3):
        own, gamma = x[y == k], found.gamma[k]
        a = (own**2).sum(axis=1).mean()
        risk = np.mean([reference.margin_cross_entropy(z, k, found.gamma) for z in own @ weight.T]) / math.log(2)
        doubt = 3 * math.sqrt(math.log(2 * 3 / 0.1) / (2 * len(own)))
        base = 4 * norm * math.sqrt(a) / gamma
        assert found.per_class_paper[k] == pytest.approx(risk + base)
        assert found.per_class_tight[k] == pytest.approx(risk + base * math.sqrt(2) * 3 / math.sqrt(len(own)) + doubt)
        assert found.per_class[k] == pytest.approx(risk + base * math.sqrt(2) * 3**1.5 / math.sqrt(len(own)) + doubt)


def test_pull_term_matches_loop_reference_and_its_lower_bound():
    x, y, weight, _ = problem()
    found = bounds.describe(x, y, weight)
    for k in range(3):
        own = x[y == k]
        alpha = math.sqrt(len(own))
        assert found.pull[k] == pytest.approx(reference.pull(own, alpha))
        spread = ((own - own.mean(axis=0)) ** 2).sum()
        assert found.pull_lower[k] == pytest.approx(2 * spread / (len(own) - 1) - alpha + math.log(len(own) - 1))
    assert (found.pull_lower <= found.pull).all()


def test_pull_bound_has_a_known_gap_on_a_simplex():
    """All distances equal c: the gap is ln(1 + e^(α−c) / (b−1))."""
    x = np.vstack([np.eye(5), -np.eye(5)])
    found = bounds.describe(x, np.repeat([0, 1], 5), np.ones((2, 5)), alpha=np.array([1.5, 3.0]))
    np.testing.assert_allclose(found.pull - found.pull_lower, [math.log1p(math.exp(a - 2) / 4) for a in (1.5, 3.0)])


def test_large_classes_average_over_anchors(monkeypatch):
    x, y, weight, _ = problem(n=200)
    exact = bounds.describe(x, y, weight).pull
    monkeypatch.setattr(bounds, "PULL_ANCHORS", 50)
    np.testing.assert_allclose(bounds.describe(x, y, weight).pull, exact, rtol=0.15)


def test_elm_bound_is_for_two_classes():
    x, y, weight, bias = problem(k=2)
    x, y = x[5:], y[5:]  # unequal priors
    found = bounds.describe(x, y, weight, bias, delta=0.1)
    n = np.bincount(y)
    prior = n / n.sum()
    score = (x @ weight.T + bias) @ [-1, 1] + math.log(prior[1] / prior[0])
    losses = np.log1p(np.exp(-np.where(y == 1, 1, -1) * score))
    mean = sum(prior[k] * losses[y == k].mean() for k in range(2))
    for value, odds in ((found.elm, 2 / 0.1), (found.elm_corrected, 4 / 0.1)):
        doubt = 7 * losses.max() * math.log(odds) / 3 * sum(prior / (n - 1))
        slack = sum(prior[k] / n[k] * (reference.pull(x[y == k], math.sqrt(n[k])) + math.sqrt(n[k])) for k in range(2))
        width = np.linalg.norm(weight[1] - weight[0]) * math.sqrt(math.log(odds) * slack)
        assert value == pytest.approx(doubt + mean + width)
    assert found.elm_corrected > found.elm > mean
    assert np.isnan(bounds.describe(*problem(k=3)).elm)


def test_absent_and_single_sample_classes():
    x, y, weight, bias = problem()
    keep = (y != 1) & ((y != 2) | (np.arange(len(y)) == 59))
    found = bounds.describe(x[keep], y[keep], weight, bias)
    for name, column in found.columns().items():
        assert np.isnan(column[1]) or name == "mr2_gamma"
    assert found.gamma[1] == 1.0
    assert found.pull[2] == 0
    assert np.isnan(found.pull_lower[2])
    assert np.isfinite([found.mr2, found.mr2_tight, found.risk]).all()


def test_dead_features_are_finite():
    found = bounds.describe(np.zeros((6, 2)), np.repeat([0, 1, 2], 2), np.ones((3, 2)))
    np.testing.assert_allclose(found.gamma, 1)
    assert np.isfinite(found.mr2)


def test_block_size_does_not_matter(monkeypatch):
    x, y, weight, bias = problem()
    whole = bounds.describe(x, y, weight, bias)
    monkeypatch.setattr(arrays, "BLOCK_ENTRIES", 24)
    split = bounds.describe(x, y, weight, bias)
    for name, column in whole.columns().items():
        np.testing.assert_allclose(split.columns()[name], column, rtol=1e-9)
    assert split.summary() == pytest.approx(whole.summary(), nan_ok=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": np.array([1.0, 0.0, 1.0])}, "gamma must be positive"),
        ({"gamma": np.ones(2)}, "gamma must be 3 numbers"),
        ({"delta": 0.0}, "delta"),
        ({"logits": np.zeros((2, 3))}, "logits must have shape"),
        ({"weight": np.zeros((3, 5))}, "weight must have shape"),
        ({"alpha": np.zeros(4)}, "alpha must be 3 numbers"),
    ],
)
def test_bad_input_is_named(change, message):
    x, y, weight, _ = problem()
    with pytest.raises(InputError, match=message):
        bounds.describe(**({"features": x, "y_true": y, "weight": weight} | change))
