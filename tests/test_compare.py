"""classgap.compare: paired, per class and per group, with a verdict that holds its level."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import classgap
from classgap import Predictions
from classgap.checks import InputError
from classgap.measure import Estimate, compare_counts
from classgap.measure.statistics.cells import Cells
from classgap.measure.verdict import evidence
from simulated_runs import ACCURACY, Y, audit, compare, pair, report, runs


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
    """The sentence shows plain intervals, the verdict is corrected for four tests: where they differ, it says so."""
    shown = {
        "hard": Estimate(0.034, 0.01, 0.057),
        "easy": Estimate(0.0, -0.01, 0.01),
        "overall": Estimate(0.02, 0.01, 0.03),
    }
    text = evidence(shown, sure={"overall"})
    assert text.count("not significant") == 1
    assert "[+1.0, +5.7] (not significant after correction for 5 tests), classes that were easy" in text


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
