"""Which differences of two models are real: exact tests, verdicts, coverage of the intervals, and no false claims."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from classgap.measure import Comparison
from classgap.measure.statistics import metric_changes
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.class_changes import class_changes, mcnemar
from classgap.measure.statistics.false_discovery import benjamini_hochberg
from classgap.measure.statistics.pooling import half_width
from classgap.measure.verdict import TITLES, WITH_LOSSES
from reference import metrics as reference
from simulated_runs import ACCURACY, Y, audit, compare, pair, report, runs


@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_exact(gained, lost):
    p_value = mcnemar(np.array([gained]), np.array([lost]))[0]
    assert p_value == pytest.approx(reference.mcnemar_mid_p(gained, lost))
    if gained + lost:
        assert p_value <= binomtest(gained, gained + lost).pvalue + 1e-12


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 0.5))
def test_false_discovery_control_is_the_step_up_procedure(p_values, level):
    adjusted = benjamini_hochberg(np.array(p_values))
    close = np.abs(adjusted - level) < 1e-9
    assert ((adjusted <= level) | close == (np.array(reference.benjamini_hochberg(p_values, level)) | close)).all()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (np.linspace(0, 0.3, 9), "closed"),
        (np.full(9, 0.0), "noise"),
        (np.linspace(-0.35, 0.35, 9), "traded"),
        (np.full(9, -0.2), "worse"),
        (np.r_[np.full(6, 0.12), np.zeros(3)], "not_hard"),
        (np.r_[np.full(6, 0.12), np.full(3, 0.015)], "likely_hard"),
        (np.r_[np.full(3, 0.12), np.zeros(3), np.full(3, -0.04)], "elsewhere"),
        (np.r_[np.full(3, 0.2), np.full(3, 0), np.full(3, -0.2)], "widened"),
        (np.full(9, 0.15), "better"),
    ],
)
def test_verdicts(change, kind):
    room = ("better", "likely_hard", "not_hard", "elsewhere", "widened")
    accuracy = np.linspace(0.8, 0.5, 9) if kind in room else ACCURACY
    y_true = np.repeat(np.arange(9), 300)
    before, after = pair(np.clip(accuracy + change, 0, 1), y_true=y_true, accuracy=accuracy)
    verdict = compare(before, after).verdict
    assert verdict.kind == kind, verdict
    assert verdict.title.split("; ")[0] in (TITLES[kind], WITH_LOSSES.get(kind))
    assert (verdict.title == TITLES[kind]) == (not verdict.losses)
    assert verdict.sentence.startswith(verdict.title)


@pytest.mark.parametrize(("easy", "hard", "doubted"), [(-0.012, 0.15, "easy"), (-0.15, 0.038, "hard")])
def test_a_trade_needs_only_one_side_beyond_doubt(easy, hard, doubted):
    change = np.r_[np.full(3, easy), np.zeros(3), np.full(3, hard)]
    verdict = compare(*pair(ACCURACY + change, y_true=np.repeat(np.arange(9), 300))).verdict
    assert verdict.kind == "traded", verdict
    (in_doubt,) = (part for part in verdict.sentence.split("], ") if "correction for 5 tests" in part)
    assert f"classes that were {doubted} before" in in_doubt.rpartition(" (")[0]


def test_identical_predictions_are_within_noise():
    (before,), _ = pair(ACCURACY)
    result = compare(before, before)
    assert result.verdict.kind == "noise"
    assert (result.per_class["p_value"] == 1).all()
    assert result.groups["cross"]["hard"].delta.low < 0 < result.groups["cross"]["hard"].delta.high
    assert len(result.improved) == len(result.worsened) == 0


@pytest.mark.parametrize(
    ("runs_each", "seed_spread", "accuracy"),
    [(1, 0.0, ACCURACY), (1, 0.0, np.full(9, 0.7)), (3, 0.03, ACCURACY)],
    ids=["one run", "one run, equal classes", "three seeds that differ"],
)
def test_a_mere_rerun_is_within_noise(runs_each, seed_spread, accuracy):
    """About 95 % of re-runs of the same model must come out as noise, however the ranking came about."""
    rng = np.random.default_rng(1)
    kinds, hard, covered = Counter(), [], []
    rounds = 100 if runs_each == 1 else 50
    for _ in range(rounds):
        shared = rng.random(len(Y))
        sides = [
            [report(p) for p in runs(Y, accuracy, runs_each, rng, shared=shared, seed_spread=seed_spread)]
            for _ in range(2)
        ]
        result = compare(*sides)
        kinds[result.verdict.kind] += 1
        hard.append([result.groups[r]["hard"].delta.value for r in ("own", "reference", "cross")])
        covered.append([c.delta.low <= 0 <= c.delta.high for c in (result.overall, result.hard, result.gap)])
    assert kinds["noise"] >= 0.9 * rounds, kinds
    own, fixed, cross = np.mean(hard, axis=0)
    assert abs(own) < 0.01
    assert abs(cross) < 0.012
    if accuracy[0] == accuracy[-1]:
        assert fixed > 0.02  # the trap the cross-fitted ranking avoids
    assert (np.mean(covered, axis=0) >= 0.88).all()


def test_real_changes_of_single_classes_are_found_and_false_ones_rare():
    rng = np.random.default_rng(0)
    y_true = np.repeat(np.arange(40), 150)
    accuracy = np.full(40, 0.7)
    better = accuracy.copy()
    better[:5] += 0.2
    found, false = 0, 0
    for _ in range(20):
        first, second = (next(runs(y_true, a, 1, rng)) for a in (accuracy, better))
        cells = Cells.from_samples(y_true, [first], [second], 40)
        rejected = benjamini_hochberg(class_changes(cells, 0.95).p_value) <= 0.05
        found += rejected[:5].sum()
        false += rejected[5:].sum()
    assert found > 0.8 * 100
    assert false <= 0.12 * (found + false)


def test_per_class_intervals_cover():
    rng = np.random.default_rng(0)
    y_true = np.repeat(np.arange(30), 50)
    before, after = np.linspace(0.5, 0.98, 30), np.linspace(0.6, 0.99, 30)
    covered = []
    for _ in range(40):
        first, second = (next(runs(y_true, a, 1, rng)) for a in (before, after))
        changes = class_changes(Cells.from_samples(y_true, [first], [second], 30), 0.95)
        covered.append((changes.low <= after - before) & (after - before <= changes.high))
    assert 0.93 < np.mean(covered) < 0.99


def test_half_width_is_normal_without_and_student_with_seeds():
    assert half_width(0.04, 0.0, 0, 0.025) == pytest.approx(1.96 * 0.2, abs=1e-3)
    assert half_width(0.0, 0.04, 4, 0.025) == pytest.approx(2.776 * 0.2, abs=1e-3)


def _rerun(support, accuracy, rng, rounds, agree=0.7):
    """Comparisons of two runs of one model on classes of these sizes."""
    y_true = np.repeat(np.arange(len(support)), support)
    blank = audit(y_true, y_true)
    for _ in range(rounds):
        shared = rng.random(len(y_true))
        first, second = (next(runs(y_true, accuracy, 1, rng, agree=agree, shared=shared)) for _ in range(2))
        sides = [replace(blank, confidence=0.5, samples=replace(blank.samples, y_pred=p)) for p in (first, second)]
        yield compare(*sides, confidence=0.95)


@pytest.mark.parametrize(
    ("support", "accuracy"),
    [
        (np.ones(100, int), 0.7),
        (np.full(50, 2), 0.7),
        (np.repeat([100, 1], [10, 20]), 0.7),
        (np.full(40, 10), 0.98),
    ],
    ids=["one sample per class", "two", "ten of 100 and twenty of one", "ten at 98 %"],
)
def test_small_classes_make_no_false_claims(support, accuracy):
    """One sample per class gave 65 % false verdicts, and balanced intervals that left out 0 in 89 % of re-runs."""
    rng = np.random.default_rng(0)
    kinds, outside, losses = Counter(), Counter(), 0
    rounds = 40
    for result in _rerun(support, np.full(len(support), accuracy), rng, rounds):
        kinds[result.verdict.kind] += 1
        losses += bool(result.verdict.losses)
        for name, change in result.metrics.items():
            outside[name] += not change.delta.low <= 0 <= change.delta.high
    assert kinds["noise"] >= 0.93 * rounds, kinds
    assert losses <= 0.07 * rounds
    assert max(outside.values()) <= 0.1 * rounds, outside


def test_one_changed_sample_of_a_class_with_one_sample_proves_nothing():
    y_true = np.r_[np.zeros(100, int), np.ones(100, int), 2]
    before, after = y_true.copy(), y_true.copy()
    before[-1] = 0
    result = compare(audit(y_true, before), audit(y_true, after))
    assert result.verdict.kind == "noise"
    for name in ("overall", "balanced", "worst", "gap"):
        delta = result.metrics[name].delta
        assert delta.low < 0 < delta.high, (name, delta)
    assert any("fewer than 15 samples" in note for note in result.notes)


def test_exchange_keeps_what_both_sides_have_in_common():
    (before,), (after,) = pair(ACCURACY - 0.1)
    cells = Cells.from_samples(Y, [before.samples.y_pred], [after.samples.y_pred], 9)
    swapped = metric_changes._exchange(cells, 400, np.random.default_rng(0))
    np.testing.assert_allclose(swapped.sum(1), np.broadcast_to(cells.accuracy.sum(1), (400, 9)))
    assert abs(np.diff(swapped.mean(0), axis=0)).max() < 0.02  # no difference on average


def _pair(lost: list[int], size: int = 200, num_classes: int = 10) -> Comparison:
    """Two models, the second of which loses samples of the first classes and gains as many in the others."""
    y = np.repeat(np.arange(num_classes), size)
    before, after = y.copy(), y.copy()
    before[::5] = after[::5] = (y[::5] + 1) % num_classes
    for k, number in enumerate(lost):
        rows = np.flatnonzero((y == k) & (before == y))[:number]
        after[rows] = (k + 1) % num_classes
    return compare(audit(y, before), audit(y, after))


def test_a_class_that_only_its_own_test_shows_needs_the_corrected_level():
    weak, strong = _pair([8]), _pair([14])
    assert 0.01 < weak.per_class["q_value"][0] <= 0.05  # significant by itself, not as one of five tests
    assert not weak.per_class["significant"].any()
    assert weak.verdict.kind == "noise"
    assert not weak.verdict.losses
    assert strong.per_class["significant"][0]
    assert "class '0'" in strong.verdict.title


def test_many_small_classes_make_all_thirds_uncertain():
    support = np.array([300] * 17 + [3] * 3)  # 15 %, though the median class is large
    y = np.repeat(np.arange(20), support)
    rng = np.random.default_rng(0)
    before, after = (np.where(rng.random(len(y)) < 0.3, (y + 1) % 20, y) for _ in range(2))
    change = compare(audit(y, before), audit(y, after))
    assert change.metrics["medium"].delta.high - change.metrics["medium"].delta.low > 0.1
    assert any("any third" in note for note in change.notes)
