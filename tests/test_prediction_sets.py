"""Prediction sets: the promised coverage in every class, honest evaluation, and what fix writes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.base import clone

from classgap import audit, fix
from classgap.checks import InputError
from classgap.measure.diagnostics.prediction_sets import describe, thresholds
from classgap.posthoc import PredictionSets, load


def draw(rng, per_class=200):
    """Class 2 is hard; logits are over-confident, so that probabilities cannot be taken literally."""
    y = np.repeat(np.arange(4), per_class)
    strength = np.array([4.0, 4.0, 1.0, 3.0])[y]
    return y, 3 * (strength[:, None] * np.eye(4)[y] + 1.5 * rng.normal(size=(len(y), 4)))


def test_every_class_is_covered_on_new_samples():
    """Mean over rounds, because the promise is about new samples and new calibration samples together."""
    rng = np.random.default_rng(0)
    held = np.zeros((60, 4))
    for i in range(60):
        y, logits = draw(rng, 25)
        new, new_logits = draw(rng, 50)
        sets = PredictionSets(0.8).fit(logits, y).predict(new_logits)
        held[i] = [sets[new == k, k].mean() for k in range(4)]
    exact = 1 - np.floor(26 * 0.2) / 26  # the coverage that 25 samples give, at least 0.8
    assert held.mean(0) == pytest.approx(np.full(4, exact), abs=0.03)


def test_audit_shows_which_class_a_common_threshold_misses():
    y, logits = draw(np.random.default_rng(1))
    report = audit(y, scores=logits)
    found = report.prediction_sets
    assert found.common[2] < 0.75
    assert found.common[[0, 1, 3]].min() > 0.85
    assert (found.low < 0.9).all()
    assert (found.high > 0.9).all()
    assert report.to_dict()["prediction_sets"]["common_set_lowest_coverage"] == pytest.approx(found.common[2])
    assert "### Prediction sets" in report.to_markdown()


def test_thresholds_are_not_evaluated_on_their_own_samples():
    """Scores without information: in-sample thresholds per class would seem to hold exactly; here the interval says so."""
    rng = np.random.default_rng(2)
    held = []
    for _ in range(40):
        y = rng.integers(0, 3, 60)
        found = describe(rng.dirichlet(np.ones(3), 60), y, 3, 0.95, rng)
        held += found.per_class.tolist()
    assert np.mean(held) == pytest.approx(0.91, abs=0.025)


def test_small_and_absent_classes_are_always_in_the_set():
    found = thresholds(np.linspace(0.1, 0.9, 8), np.zeros(8, dtype=np.int64), 2, 0.9)
    assert found.tolist() == [0.0, 0.0]
    assert thresholds(np.linspace(0.1, 0.9, 9), np.zeros(9, dtype=np.int64), 1, 0.9)[0] == pytest.approx(0.1)


def test_names_probabilities_and_files(tmp_path):
    y, logits = draw(np.random.default_rng(3), 50)
    names = np.array(["ant", "bee", "cat", "dog"])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    first = PredictionSets().fit(logits, names[y])
    second = PredictionSets().fit(probabilities, y, classes=None)
    assert (first.predict(logits) == second.predict(probabilities)).all()
    again = PredictionSets.load(first.save(tmp_path / "sets.json"))
    assert again.classes_.tolist() == names.tolist()
    assert (again.predict(logits) == first.predict(logits)).all()
    assert clone(first).coverage == 0.9
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="is not a file of prediction sets"):
        PredictionSets.load(tmp_path / "other.json")
    with pytest.raises(InputError, match="coverage must be a number between 0 and 1"):
        PredictionSets(coverage=90).fit(logits, y)
    with pytest.raises(InputError, match="one label per row"):
        PredictionSets().fit(logits, y[:-1])


def test_fix_writes_sets_for_the_corrected_scores(tmp_path):
    rng = np.random.default_rng(4)
    y, logits = draw(rng)
    result = fix(y, scores=logits - [0, 0, 4, 0], folds=2)
    result.save(tmp_path)
    sets = PredictionSets.load(tmp_path / "prediction_sets.json")
    assert json.loads((tmp_path / "prediction_sets.json").read_text())["coverage"] == 0.9
    new, new_logits = draw(rng)
    corrected = load(tmp_path / "method").transform(new_logits - [0, 0, 4, 0])
    found = sets.predict(corrected)
    assert min(found[new == k, k].mean() for k in range(4)) > 0.78
