"""The gap dial, selection rules, and the whole of fit, choose and report."""

from __future__ import annotations

import numpy as np
import pytest

from classgap import Predictions
from classgap.checks import InputError
from classgap.measure import audit, compare
from classgap.posthoc import RULES, FixReport, GapDial, fix
from classgap.posthoc.estimators.base import balanced_accuracy
from classgap.posthoc.estimators.gap_dial import STRENGTHS, _Base, _Contest
from classgap.posthoc.fix_report import Candidate
from classgap.posthoc.fixing import applicable
from classgap.posthoc.held_out import HeldOut
from classgap.posthoc.selection import choose, fold_numbers, splits
from posthoc_data import Task, long_tailed_task
from reference import posthoc as reference


def uneven_task(per_class: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Balanced, calibrated scores of six classes, two of which are hard to tell apart from an easy one."""
    rng = np.random.default_rng(seed)
    means = 2.2 * np.eye(6)
    means[4], means[5] = means[0] * 0.6 + means[4] * 0.4, means[1] * 0.6 + means[5] * 0.4
    y = np.repeat(np.arange(6), per_class)
    x = means[y] + rng.normal(size=(len(y), 6))
    return x @ means.T - (means**2).sum(1) / 2, y


@pytest.fixture(scope="module")
def task() -> Task:
    return long_tailed_task()


def contest(scores: np.ndarray, y: np.ndarray) -> _Contest:
    held_out, _ = HeldOut.gather(scores, y)
    return _Contest.of(held_out, _Base(1.0, np.zeros(scores.shape[1])))


def test_strength_zero_changes_no_prediction_on_balanced_data() -> None:
    scores, y = uneven_task()
    dial = GapDial(strength=0.0, ridge=1.0).fit(scores, y)
    np.testing.assert_array_equal(dial.predict(scores), scores.argmax(1))


def test_a_prior_is_taken_out_once() -> None:
    """Calibrated scores plus the log of a long-tailed prior are moved back; the scores without it stay where they are."""
    scores, y = uneven_task()
    counts = np.array([500, 200, 80, 30, 12, 5])
    carrying = scores + np.log(counts)
    for given in (scores, carrying):
        dial = GapDial(strength=0.0, ridge=1.0).fit(given, y, class_counts=counts)
        agree = (dial.predict(given) == scores.argmax(1)).mean()
        assert agree > 0.97
    assert (carrying.argmax(1) == scores.argmax(1)).mean() < 0.8


def test_offsets_minimise_the_reference_objective() -> None:
    scores, y = uneven_task(per_class=20)
    offsets = contest(scores, y).offsets(2.0, 1.0)
    best = reference.dial_objective(scores, y, offsets, 2.0, 1.0)
    assert best < reference.dial_objective(scores, y, np.zeros(6), 2.0, 1.0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        nearby = offsets + 0.05 * rng.normal(size=6)
        assert best <= reference.dial_objective(scores, y, nearby, 2.0, 1.0) + 1e-4


def test_hard_classes_gain_on_fresh_samples() -> None:
    scores, y = uneven_task()
    fresh, y_fresh = uneven_task(per_class=1000, seed=1)
    before = audit(y_fresh, fresh.argmax(1))
    after = audit(y_fresh, GapDial(strength=2.0, ridge=1.0).fit(scores, y).predict(fresh))
    assert after.hard.value > before.hard.value + 0.02
    assert after.gap.value < before.gap.value


def test_more_ridge_moves_less() -> None:
    scores, y = uneven_task()
    sizes = [np.abs(contest(scores, y).offsets(3.0, r)).sum() for r in (0.1, 1.0, 10.0, 1e4)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.02


def test_few_contenders_are_enough() -> None:
    """Keeping the 32 best classes of a sample gives nearly the offsets of keeping all."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(60), 20)
    scores = 2 * rng.normal(size=(len(y), 60))
    scores[np.arange(len(y)), y] += 4
    narrow = contest(scores, y)
    assert narrow.columns.shape == (1200, 32)
    np.testing.assert_array_equal(narrow.columns[:, 0], y)
    wide = _Contest(np.take_along_axis(scores, every := _columns(y, 60), axis=1), every, np.bincount(y))
    np.testing.assert_allclose(narrow.offsets(2.0, 1.0), wide.offsets(2.0, 1.0), atol=0.05)


def _columns(y: np.ndarray, K: int) -> np.ndarray:
    return np.array([[t, *[k for k in range(K) if k != t]] for t in y])


def test_long_tail_is_corrected_before_the_dial_turns(task: Task) -> None:
    fresh = long_tailed_task(per_class=200, balanced=True)
    dial = GapDial(strength=0.0, ridge=1.0).fit(task.scores, task.y, class_counts=task.counts)
    after = balanced_accuracy(dial.transform(fresh.scores), fresh.y)
    assert after > balanced_accuracy(fresh.scores, fresh.y) + 0.05


def test_frontier_is_cross_fitted_and_the_rule_picks_from_it() -> None:
    scores, y = uneven_task()
    dial = GapDial(rule="best_hard", ridge=1.0).fit(scores, y)
    assert tuple(p.strength for p in dial.frontier_) == STRENGTHS
    assert dial.frontier_[0].hard.value == 0
    assert dial.strength_ == max(dial.frontier_, key=lambda p: p.hard.value).strength
    careful = GapDial(rule="hard_if_overall_gains", ridge=1.0).fit(scores, y)
    picked = next(p for p in careful.frontier_ if p.strength == careful.strength_)
    assert picked.overall.value >= 0


def test_ridge_is_chosen_by_cross_fitting() -> None:
    scores, y = uneven_task()
    dial = GapDial(strength=2.0, rule="best_hard").fit(scores, y)
    assert [p.ridge for p in dial.frontier_] == [1.0, 3.0, 10.0]
    assert dial.ridge_ == max(dial.frontier_, key=lambda p: p.hard.value).ridge
    assert dial.strength_ == 2.0


def test_folds_are_stratified_even_for_tiny_classes() -> None:
    y = np.repeat(np.arange(4), [50, 10, 3, 1])
    fold = fold_numbers(y, 5, seed=0)
    counts = np.array([np.bincount(fold[y == k], minlength=5) for k in range(4)])
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 1
    np.testing.assert_array_equal(fold, fold_numbers(y, 5, seed=0))


def test_splits_never_share_a_sample(task: Task) -> None:
    held_out, _ = HeldOut.gather(np.arange(600.0).reshape(300, 2), np.arange(300) % 2)
    seen = []
    for fitting, rows in splits(held_out, 4, seed=0):
        assert not np.intersect1d(fitting.scores[:, 0], held_out.scores[rows, 0]).size
        seen.append(rows)
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(300))


def outcome(hard: int, medium: int, easy: int):
    """A comparison in which the three classes gain or lose this many of their 200 samples."""
    y = np.repeat([0, 1, 2], 200)
    before = np.where(np.arange(600) % 200 < np.repeat([180, 140, 80], 200), y, (y + 1) % 3)
    after = np.where(np.arange(600) % 200 < np.repeat([180 + easy, 140 + medium, 80 + hard], 200), y, (y + 1) % 3)
    return compare(audit(y, before), audit(y, after))


def test_rules_choose_what_they_say() -> None:
    candidates = {
        "bold": outcome(40, -18, -60),
        "fair": outcome(30, 0, -33),
        "safe": outcome(20, 0, -2),
        "flat": outcome(0, 0, 20),
    }
    picked = {rule: choose(candidates, rule) for rule in RULES}
    assert picked == {
        "hard_if_overall_holds": "fair",
        "hard_if_overall_gains": "safe",
        "best_hard": "bold",
        "best_overall": "flat",
    }
    assert choose({"bold": candidates["bold"]}) is None
    with pytest.raises(InputError, match="did you mean 'best_hard'"):
        choose(candidates, "best_hrd")


def test_what_the_rule_rejected_is_said_with_the_reason() -> None:
    """ "Nothing helps beyond noise" was printed beside a row with a significant gain on the hard classes."""
    gain, noise, costly = outcome(40, 0, 0), outcome(2, 0, 0), outcome(40, -18, -60)
    dial = GapDial()
    candidates = {
        "picked": Candidate("picked", dial, selection=gain, report=noise),
        "costly": Candidate("costly", dial, selection=costly, report=gain),
        "second": Candidate("second", dial, selection=noise, report=gain),
    }
    before = Predictions.from_arrays([0, 1, 2], scores=np.eye(3) * 5)
    result = FixReport(before, candidates, {}, "picked", "hard_if_overall_holds", np.arange(3))
    assert set(result.rejected) == {"costly", "second"}
    assert "significantly lower in cross-fitting" in result.rejected["costly"]
    assert "another method has a larger gain" in result.rejected["second"]
    assert "hard_if_overall_holds chose picked" in result.verdict
    assert "costly: its balanced accuracy is significantly lower" in result.verdict
    assert "best_hard" in result.verdict


def task_predictions(task: Task) -> Predictions:
    head = (task.weight, task.bias)
    return Predictions.from_arrays(
        task.y, scores=task.scores, features=task.features, head=head, train_counts=task.counts
    )


def gathered(task: Task, **missing) -> HeldOut:
    return HeldOut.gather(task.scores, task.y, **{**task.context, **missing})[0]


def test_fix_finds_what_helps_and_reports_on_untouched_samples() -> None:
    task = long_tailed_task(per_class=150)
    result = fix(task_predictions(task), folds=2)
    assert result.helps
    assert result.chosen in result.candidates
    assert not result.skipped
    report = result.candidates[result.chosen].report
    assert report.num_samples == len(result.report_rows) == pytest.approx(len(task.y) / 3, abs=5)
    assert report.metrics["hard"].delta.low > 0


def test_fix_says_when_nothing_helps() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 60)
    scores = rng.normal(size=(180, 3))  # pure noise
    result = fix(y, scores=scores, folds=2)
    assert not result.helps
    assert "logit_adjustment" in result.skipped


def test_applicable_methods_depend_on_what_is_known(task: Task) -> None:
    everything, none = applicable(gathered(task))
    assert not none
    _, skipped = applicable(gathered(task, features=None, weight_norms=None))
    assert set(skipped) == {"crt", "disalign", "tau_norm"}
    assert {name.split("(")[0] for name in everything} == {
        "crt", "disalign", "gap_dial", "logit_adjustment", "lws", "marc", "matrix_scaling", "tau_norm",
        "temperature_scaling", "vector_scaling",
    }  # fmt: skip


def test_fix_refuses_a_handful_of_samples() -> None:
    with pytest.raises(InputError, match="cross-fitting"):
        fix(np.arange(3), scores=3 * np.eye(3))


def test_settings_fitted_together_equal_settings_fitted_alone() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 400)
    held_out, _ = HeldOut.gather(2 * np.eye(6)[y] + rng.normal(size=(400, 6)), y, class_counts=np.arange(1, 7))
    together = [GapDial(strength=s, ridge=r) for s, r in ((0.0, 1.0), (2.0, 1.0), (4.0, 3.0))]
    GapDial.fit_settings(together, held_out)
    for dial in together:
        alone = GapDial(strength=dial.strength, ridge=dial.ridge).fit(held_out.scores, y, class_counts=np.arange(1, 7))
        np.testing.assert_array_equal(dial.offset_, alone.offset_)
        np.testing.assert_array_equal(dial.scale_, alone.scale_)
        assert (dial.strength_, dial.ridge_, dial.frontier_) == (alone.strength_, alone.ridge_, ())


def test_fix_leaves_out_a_matrix_of_many_classes() -> None:
    y = np.arange(501).repeat(2)
    held_out, _ = HeldOut.gather(np.eye(501)[y], y)
    assert "above 500 classes" in applicable(held_out)[1]["matrix_scaling"]


@pytest.mark.parametrize(
    "wrong", [{"folds": True}, {"folds": 1}, {"folds": float("-inf")}, {"seed": -1}, {"seed": 0.5}]
)
def test_folds_and_seed_are_checked(wrong: dict[str, float]) -> None:
    y = np.arange(40) % 2
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be a whole number"):
        GapDial(**wrong).fit(np.eye(2)[y], y)  # type: ignore[arg-type]
