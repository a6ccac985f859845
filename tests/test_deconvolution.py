"""The distribution of the true accuracies: against a slow reference, and what it removes."""

from __future__ import annotations

import numpy as np
import pytest

from classgap.measure.statistics import deconvolution
from classgap.measure.statistics.metrics import evaluate
from reference import metrics as reference

NAMES = ("hard", "worst", "worst_decile", "gap", "std")


def _log_likelihood(mixture, correct, support):
    chance = mixture.atom ** correct[:, None] * (1 - mixture.atom) ** (support - correct)[:, None]
    return np.log(chance @ mixture.weight).mean()


@pytest.mark.parametrize("seed", range(4))
def test_no_distribution_on_a_fine_grid_is_more_likely(seed):
    """Expectation maximisation over 201 atoms, thousands of steps, does not beat the fit."""
    rng = np.random.default_rng(seed)
    support = rng.integers(1, 40, 30)
    correct = rng.binomial(support, rng.choice([0.4, 0.8, 0.95], 30))
    fitted = deconvolution.fit(correct, support)
    best = reference.mixture_log_likelihood(correct.tolist(), support.tolist(), steps=1500)
    assert fitted.weight.sum() == pytest.approx(1)
    assert _log_likelihood(fitted, correct, support) >= best - 2e-4


def test_two_kinds_of_classes_are_found():
    rng = np.random.default_rng(0)
    support = np.full(100, 100)
    mixture = deconvolution.fit(rng.binomial(support, np.repeat([0.95, 0.4], 50)), support)
    assert mixture.weight[mixture.atom < 0.6].sum() == pytest.approx(0.5, abs=0.01)
    assert mixture.atom @ mixture.weight == pytest.approx(0.675, abs=0.02)


# Before: +19 points on the gap of the first, +17 on that of the second.
@pytest.mark.parametrize(
    ("truth", "support", "allowed"),
    [
        (np.repeat([0.95, 0.4], 50), np.full(100, 30), 0.1),
        (np.full(100, 0.7), np.round(1000 ** np.linspace(1, 0, 100)).astype(int), 0.1),
        (np.linspace(0.5, 0.9, 400), np.full(400, 50), 0.05),
    ],
    ids=["half and half", "equal, 1000 to 1 samples", "uniform"],
)
def test_bias_of_any_shape_is_small(truth, support, allowed):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(15):
        correct = rng.binomial(support, truth)
        found.append(deconvolution.corrected_values(correct, support, NAMES, draws=100, rng=rng))
    assert np.abs(np.mean(found, axis=0) - evaluate(truth, NAMES)).max() < allowed


def test_many_samples_need_no_correction():
    truth, support = np.linspace(0.4, 0.9, 10), np.full(10, 200_000)
    hits = np.random.default_rng(0).binomial(support, truth)
    value = deconvolution.corrected_values(hits, support, NAMES, draws=100, rng=np.random.default_rng(0))
    np.testing.assert_allclose(value, evaluate(truth, NAMES), atol=0.004)


def test_many_distinct_pairs_are_thinned():
    rng = np.random.default_rng(0)
    support = rng.integers(1000, 100_000, 6000)
    truth = rng.beta(8, 2, 6000)
    found = deconvolution.corrected_values(rng.binomial(support, truth), support, NAMES, draws=20, rng=rng)
    np.testing.assert_allclose(found, evaluate(truth, NAMES), atol=0.02)


@pytest.mark.parametrize(
    ("hits", "support"), [((5,), (9,)), ((9, 9), (9, 9)), ((0, 0, 0), (1, 1, 1)), ((1, 0), (1, 1))]
)
def test_tiny_inputs(hits, support):
    found = deconvolution.corrected_values(
        np.array(hits), np.array(support), ("worst", "gap"), draws=50, rng=np.random.default_rng(0)
    )
    assert ((found >= 0) & (found <= 1)).all()
