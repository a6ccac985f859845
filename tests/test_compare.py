"""classgap.compare: paired, per class and per group, with a verdict that holds its level."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

import classgap
from classgap import Predictions
from classgap.checks import InputError
from classgap.measure import Comparison, Estimate, compare_counts
from classgap.measure.statistics import metric_changes
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.class_changes import class_changes, mcnemar
from classgap.measure.statistics.false_discovery import benjamini_hochberg
from classgap.measure.statistics.pooling import half_width
from classgap.measure.verdict import TITLES, WITH_LOSSES, evidence
from reference import metrics as reference

Y = np.repeat(np.arange(9), 60)
ACCURACY = np.linspace(0.95, 0.5, 9)


def audit(y_true, y_pred, **kwargs):
    return classgap.audit(y_true, y_pred, n_boot=100, **kwargs)


def runs(y_true, accuracy, count, rng, *, agree=0.7, shared=None, seed_spread=0.0):
    """Predictions of ``count`` runs that share part of their luck, sample by sample."""
    shared = rng.random(len(y_true)) if shared is None else shared
    num_classes = len(accuracy)
    for _ in range(count):
        luck = np.where(rng.random(len(y_true)) < agree, shared, rng.random(len(y_true)))
        truth = np.clip(accuracy + seed_spread * rng.standard_normal(num_classes), 0, 1)
        yield np.where(luck < truth[y_true], y_true, (y_true + 1) % num_classes)


def pair(accuracy_after, *, y_true=Y, accuracy=ACCURACY, seed=0, runs_each=1):
    rng = np.random.default_rng(seed)
    shared = rng.random(len(y_true))
    sides = [
        [audit(y_true, p) for p in runs(y_true, a, runs_each, rng, shared=shared)] for a in (accuracy, accuracy_after)
    ]
    return sides[0], sides[1]


def compare(before, after, **kwargs) -> Comparison:
    return classgap.compare(before, after, **{"n_boot": 100, **kwargs})


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


def test_differences_are_those_of_the_two_audits():
    (before,), (after,) = pair(ACCURACY + 0.03)
    result = compare(before, after)
    np.testing.assert_allclose(result.per_class["delta"], after.per_class["accuracy"] - before.per_class["accuracy"])
    for name in ("overall", "balanced", "easy", "hard", "worst", "gap", "std"):
        change = result.metrics[name]
        assert change.before == before.metrics[name]
        assert change.after == after.metrics[name]
        assert change.delta.value == pytest.approx(change.after.value - change.before.value)
        assert change.delta.low <= change.delta.value <= change.delta.high
    right = [r.samples.y_pred == Y for r in (before, after)]
    assert result.per_class["gained"].sum() == (~right[0] & right[1]).sum()
    assert result.per_class["lost"].sum() == (right[0] & ~right[1]).sum()
    assert result.groups["own"]["hard"] == result.hard


def test_reference_ranking_is_that_of_before_unless_given():
    (before,), (after,) = pair(ACCURACY)
    hard = before.per_class["group"] == "hard"
    result = compare(before, after)
    expected = (after.per_class["accuracy"] - before.per_class["accuracy"])[hard].mean()
    assert result.groups["reference"]["hard"].delta.value == pytest.approx(expected)
    assert any("regression to the mean" in note for note in result.notes)
    given_ = compare(before, after, reference=np.arange(9))
    assert given_.groups["reference"]["easy"].before.value == pytest.approx(before.per_class["accuracy"][6:].mean())
    assert not any("regression to the mean" in note for note in given_.notes)


def test_thirds_that_few_samples_rank_get_a_note():
    y = np.repeat(np.arange(9), 4)
    few = compare(audit(y, y), audit(y, (y + (np.arange(36) % 5 == 0)) % 9))
    assert any("differ from the true thirds" in note for note in few.notes)
    (before,), (after,) = pair(ACCURACY)
    assert not any("differ from the true thirds" in note for note in compare(before, after).notes)


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


_TEMPLATE = audit(Y, Y)


def report(y_pred):
    """An audit that carries only what a comparison reads: cheap enough for simulations."""
    return replace(_TEMPLATE, samples=replace(_TEMPLATE.samples, y_pred=y_pred))


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


def test_several_seeds_are_pooled():
    before, after = pair(ACCURACY + 0.04, runs_each=3)
    result = compare(before, after)
    expected = np.mean([r.overall.value for r in after]) - np.mean([r.overall.value for r in before])
    assert result.overall.delta.value == pytest.approx(expected)
    own = np.mean([r.hard.value for r in after]) - np.mean([r.hard.value for r in before])
    assert result.hard.delta.value == pytest.approx(own)
    assert "3 runs before, 3 after" in result.method
    assert not any("one run per side" in note for note in result.notes)
    lopsided = compare(before, after[0])
    assert any("single run" in note for note in lopsided.notes)
    assert any("one run per side" in note for note in compare(before[0], after[0]).notes)


def test_standard_deviations_over_runs():
    """Divisor runs - 1, of every metric and every group; a dash for a side with a single run."""
    before, after = pair(np.clip(ACCURACY + 0.05, 0, 1), runs_each=3)
    found = compare(before, after)
    for name in ("overall", "easy", "hard", "worst", "gap"):
        for reports, std in ((before, found.metrics[name].before_run_std), (after, found.metrics[name].after_run_std)):
            values = [report.metrics[name].value for report in reports]
            mean = sum(values) / 3
            assert std == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 2))
    assert found.groups["own"]["hard"] == found.metrics["hard"]
    pooled = np.mean([report.per_class["accuracy"] for report in before], axis=0)  # its ranking is the reference
    hard = np.argsort(-pooled, kind="stable")[6:]
    values = [report.per_class["accuracy"][hard].mean() for report in after]
    assert found.groups["reference"]["hard"].after_run_std == pytest.approx(np.std(values, ddof=1))
    assert found.groups["cross"]["hard"].before_run_std > 0
    tree = found.to_dict()
    assert tree["hard"]["before_run_std"] == pytest.approx(found.hard.before_run_std)
    assert "std over runs before" in found.to_markdown()
    one_side = compare(before[:1], after)
    assert np.isnan(one_side.overall.before_run_std)
    row = next(line for line in one_side.to_markdown().splitlines() if line.startswith("| overall"))
    assert row.endswith(f"| – | {100 * one_side.overall.after_run_std:.1f} |")
    single = compare(before[0], after[0])
    assert np.isnan([single.overall.before_run_std, single.overall.after_run_std]).all()
    assert single.to_dict()["overall"]["after_run_std"] is None
    assert "std over runs" not in single.to_markdown()


def test_seeds_that_disagree_widen_the_interval():
    rng = np.random.default_rng(0)
    shared = rng.random(len(Y))
    widths = []
    for spread in (0.0, 0.15):
        sides = [
            report(next(runs(Y, np.full(9, 0.6) + rng.normal(0, spread, 1), 1, rng, shared=shared))) for _ in range(6)
        ]
        delta = compare(sides[:3], sides[3:]).overall.delta
        widths.append(delta.high - delta.low)
    assert widths[1] > 2 * widths[0]


def test_half_width_is_normal_without_and_student_with_seeds():
    assert half_width(0.04, 0.0, 0, 0.025) == pytest.approx(1.96 * 0.2, abs=1e-3)
    assert half_width(0.0, 0.04, 4, 0.025) == pytest.approx(2.776 * 0.2, abs=1e-3)


def test_many_runs_use_unpacked_cells():
    rng = np.random.default_rng(0)
    y_true = np.repeat([0, 1], 20)[rng.permutation(40)]
    hits = [np.where(rng.random(40) < 0.7, y_true, 1 - y_true) for _ in range(44)]
    cells = Cells.from_samples(y_true, hits[:22], hits[22:], 2)
    np.testing.assert_allclose(cells.accuracy[1], [(h == y_true)[y_true == 1].mean() for h in hits])


def test_tables_give_the_same_comparison():
    (before,), (after,) = pair(ACCURACY + 0.05)
    tables = np.zeros((9, 2, 2), dtype=int)
    right = [r.samples.y_pred == Y for r in (before, after)]
    np.add.at(tables, (Y, right[0].astype(int), right[1].astype(int)), 1)
    counted = [classgap.audit(Predictions.from_counts(r.confusion.counts), n_boot=100) for r in (before, after)]
    streamed = compare_counts(*counted, tables, n_boot=100)
    full = compare(before, after)
    np.testing.assert_array_equal(streamed.per_class, full.per_class)
    assert streamed.metrics == full.metrics
    assert streamed.groups == full.groups
    assert streamed.verdict == full.verdict


def test_classes_known_to_one_report_only():
    before, after = audit(["a", "b", "b"], ["a", "b", "c"]), audit(["a", "b", "b"], ["a", "b", "b"])
    result = compare(before, after)
    assert result.classes == ("a", "b", "c")
    assert result.per_class["support"].tolist() == [1, 2, 0]
    assert np.isnan(result.per_class["p_value"][2])
    assert result.per_class["delta"][1] == 0.5
    assert any("cannot be compared" in note for note in result.notes)
    json.dumps(result.to_dict(), allow_nan=False)


def test_confidence_may_differ_from_the_reports():
    (before,), (after,) = pair(ACCURACY)
    wide, narrow = compare(before, after, confidence=0.99), compare(before, after, confidence=0.5)
    assert wide.hard.delta.high - wide.hard.delta.low > narrow.hard.delta.high - narrow.hard.delta.low
    assert narrow.hard.before.high < wide.hard.before.high


def test_before_after_and_delta_use_one_division_into_thirds():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 400)
    said = [np.where(rng.random(400) < share, y, rng.integers(0, 5, 400)) for share in (0.7, 0.8)]
    for of_reports in ("first", "last"):
        reports = [audit(y, predicted, remainder=of_reports) for predicted in said]
        for remainder in ("first", "last"):
            found = compare(*reports, remainder=remainder, n_boot=100)
            wanted = [audit(y, predicted, remainder=remainder) for predicted in said]
            for name in ("easy", "medium", "hard"):
                change = found.metrics[name]
                assert change.before.value == pytest.approx(wanted[0].metrics[name].value)
                assert change.delta.value == pytest.approx(change.after.value - change.before.value)


def test_views():
    (before,), (after,) = pair(np.clip(ACCURACY + np.linspace(0, 0.35, 9), 0, 1))
    result = compare(before, after)
    tree = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    for name in ("overall", "easy", "medium", "hard", "worst", "gap"):
        assert set(tree[name]) == {"before", "after", "delta", "before_run_std", "after_run_std"}
    assert tree["groups"]["cross"]["hard"]["delta"]["value"] == result.groups["cross"]["hard"].delta.value
    text = result.to_markdown(classes=1)
    assert text.startswith(f"## {result.verdict.title} on these test predictions (one run per side")
    assert "**Classes that improved significantly**" in text
    assert "**Classes that got worse significantly**: none." in text
    assert len(result.improved) > 1
    assert "largest 1 of" in text
    assert result.to_pandas().loc["8", "delta"] == result.per_class["delta"][8]
    assert result.gap.delta.value == pytest.approx(after.gap.value - before.gap.value)
    assert result.medium == result.metrics["medium"]
    assert result.worst == result.metrics["worst"]


def test_audits_are_matched_by_their_ids():
    rng = np.random.default_rng(0)
    y, ids = np.repeat([0, 1, 2], 40), np.array([f"f{i:03d}" for i in range(120)])
    p = np.where(rng.random(120) < 0.7, y, (y + 1) % 3)
    order = np.concatenate([k * 40 + rng.permutation(40) for k in range(3)])
    before, after = audit(y, p, ids=ids), audit(y[order], p[order], ids=ids[order])
    for other in (after, Predictions.from_arrays(y[order], p[order], ids=ids[order])):
        found = classgap.compare(before, other)
        assert found.per_class["gained"].sum() == found.per_class["lost"].sum() == 0
    with pytest.raises(InputError, match="lacks 120 ids of the first run and has 120 others"):
        classgap.compare(before, audit(y, p, ids=[f"g{i}" for i in range(120)]))


def test_refusals():
    report_ = audit([0, 1, 1], [0, 1, 0])
    for other, message in (
        (audit([0, 1], [0, 1]), "same samples, got 3 and 2"),
        (audit([1, 0, 1], [0, 1, 1]), r"true labels differ in 2 of 3 rows \(first: row 0\)"),
        (classgap.audit(Predictions.from_counts([[1, 0], [1, 1]])), "hold only counts"),
        ([], "at least one run"),
        (["x"], "there is no file x"),
        ([3], "must be predictions, audits, files or tables, got int"),
    ):
        with pytest.raises(InputError, match=message):
            compare(report_, other)
    with pytest.raises(InputError, match="reference must be 2 numbers"):
        compare(report_, report_, reference=[1])
    with pytest.raises(InputError, match="confidence must be"):
        compare(report_, report_, confidence=2)
    with pytest.raises(InputError, match="n_boot"):
        compare(report_, report_, n_boot=1)


def test_refusals_of_tables():
    report_ = classgap.audit(Predictions.from_counts([[1, 1], [0, 2]]))
    good = np.array([[[1, 0], [0, 1]], [[0, 0], [0, 2]]])
    assert compare_counts(report_, report_, good, n_boot=100).verdict.kind == "noise"
    with pytest.raises(InputError, match=r"\(2, 2, 2\) counts"):
        compare_counts(report_, report_, good[0])
    with pytest.raises(InputError, match="must add up to the counts of before"):
        compare_counts(report_, report_, good * 2)
    with pytest.raises(InputError, match="must add up to the counts of after"):
        compare_counts(report_, report_, np.array([[[0, 1], [0, 1]], [[0, 0], [0, 2]]]))
    with pytest.raises(InputError, match="same classes"):
        compare_counts(report_, classgap.audit(Predictions.from_counts([[1, 1], [0, 2]], ["x", "y"])), good)


def test_an_interval_that_does_not_decide_is_marked():
    """The sentence shows plain intervals, the verdict allows for four questions: where they differ, it says so."""
    shown = {
        "hard": Estimate(0.034, 0.01, 0.057),
        "easy": Estimate(0.0, -0.01, 0.01),
        "overall": Estimate(0.02, 0.01, 0.03),
    }
    text = evidence(shown, sure={"overall"})
    assert text.count("not significant") == 1
    assert "[+1.0, +5.7] (not significant after correction for 5 tests), classes that were easy" in text


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


def test_the_headline_names_what_got_worse():
    """Better overall, while one class loses significantly and with it the worst class and the gap."""
    y_true = np.repeat(np.arange(9), 300)
    accuracy = np.r_[np.full(8, 0.7), 0.5]
    before, after = pair(np.r_[np.full(8, 0.8), 0.3], y_true=y_true, accuracy=accuracy)
    verdict = compare(before, after).verdict
    assert verdict.title.endswith("; class '8', the worst class and the gap got worse"), verdict
    assert "no loss detected" not in verdict.title
    assert len(verdict.losses) == 3
    assert all(loss in verdict.sentence for loss in verdict.losses)
    assert "one run per side does not judge the training method" in verdict.headline
    several = compare(*pair(accuracy, y_true=y_true, accuracy=accuracy, runs_each=2)).verdict
    assert "one run" not in several.sentence


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
