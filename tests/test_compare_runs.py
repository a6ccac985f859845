"""Comparisons of several runs per side, and of so few classes that a third is empty."""

from __future__ import annotations

import numpy as np
import pytest

from classgap import Predictions, compare
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.metric_changes import mean_changes
from classgap.measure.statistics.pooling import half_width

UNKNOWN = {"value": None, "low": None, "high": None}


def run(y: np.ndarray, accuracy: float, rng: np.random.Generator) -> Predictions:
    names = [str(k) for k in range(max(2, y.max() + 1))]
    wrong = rng.random(len(y)) >= accuracy
    return Predictions.from_arrays(y, np.where(wrong, (y + 1) % len(names), y), class_names=names)


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(("number", "empty"), [(2, ["medium"]), (1, ["medium", "hard"])])
def test_a_third_without_classes_has_no_interval(number, empty, runs):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(number), 60)
    before, after = ([run(y, accuracy, rng) for _ in range(runs)] for accuracy in (0.6, 0.8))
    found = compare(before, after, n_boot=100).to_dict()
    for third in empty:
        for change in (found[third], *(ranking[third] for ranking in found["groups"].values())):
            assert change["before"] == change["after"] == change["delta"] == UNKNOWN


def test_intervals_before_and_after_have_the_confidence_that_was_asked_for():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 500)
    sides = [[run(y, accuracy, rng) for accuracy in (0.65, 0.7, 0.75)] for _ in range(2)]
    accuracy = np.array([[found.confusion.correct.sum() / len(y) for found in side] for side in sides])
    between = float(accuracy.var(axis=1, ddof=1).mean()) / 3  # far more than the samples explain
    for confidence in (0.5, 0.95, 0.99):
        level = compare(*sides, confidence=confidence, n_boot=100).overall.before
        half = half_width(0.0, between, 4, (1 - confidence) / 2)
        assert level.value - level.low == pytest.approx(half, rel=0.15), confidence


def test_two_runs_that_agree_by_chance_do_not_narrow_the_interval():
    # the two runs before differ in 40 samples, but have the same accuracy
    y = np.zeros(100, dtype=np.int64)
    right = np.arange(100)
    before = [np.where(right < 70, 0, 1), np.where((right < 50) | (right >= 80), 0, 1)]
    after = [np.where(right < 80, 0, 1)]
    found = mean_changes(Cells.from_samples(y, before, after, 2))["overall"].at(0.95)
    one = mean_changes(Cells.from_samples(y, before[:1], after, 2))["overall"].at(0.95)
    assert found.value == one.value == pytest.approx(0.1)
    assert found.high - found.low > 0.12
    claims = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y = np.repeat(np.arange(3), 30)
        claims += compare([run(y, 0.7, rng), run(y, 0.7, rng)], run(y, 0.7, rng), n_boot=100).verdict.kind != "noise"
    assert claims <= 3


def test_no_change_on_average_does_not_deny_that_classes_changed():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(40), 50)
    shared = rng.random(len(y))
    accuracy = np.full(40, 0.7)
    changed = accuracy.copy()
    changed[:2] += 0.28
    sides = [np.where(shared < level[y], y, (y + 1) % 40) for level in (accuracy, changed)]
    sides[1] = np.where((y > 1) & (rng.random(len(y)) < 0.02), (y + 1) % 40, sides[1])
    found = compare(*(Predictions.from_arrays(y, side) for side in sides), n_boot=100)
    assert found.verdict.kind == "noise"
    assert found.per_class["significant"].sum() == 2
    assert found.verdict.title == "No significant change on average"
