"""``--fail-if`` conditions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classgap import audit, compare
from classgap.checks import InputError
from classgap.measure.gate import Condition, check, parse
from command_line import call

_RNG = np.random.default_rng(0)
_Y = np.repeat(np.arange(6), 50)
_NAMES = ["cat", "a]b < 3", "c.d", "ünï", "5", "nobody"]
_RIGHT = _RNG.random(300) < np.linspace(0.95, 0.4, 5)[_Y % 5]
REPORT = audit(_Y % 5, np.where(_RIGHT, _Y % 5, (_Y + 1) % 5), class_names=_NAMES, n_boot=100)
BETTER = audit(_Y % 5, _Y % 5, class_names=_NAMES, n_boot=100)
COMPARISON = compare(REPORT, BETTER, n_boot=100)


def value_of(name, result=REPORT):
    """The number a condition compares, by bisection over bounds: seen from outside only."""
    low, high = -2.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if check(result, [f"{name} <= {middle!r}"])[0].failed else (middle, high)
    return high


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hard", REPORT.hard.value),
        ("worst.low", REPORT.worst.low),
        ("gap.high", REPORT.gap.high),
        ("gini", REPORT.metrics["gini"].value),
        ("gap_corrected.low", REPORT.metrics["gap_corrected"].low),
        ("metrics.std.value", REPORT.metrics["std"].value),
        ("groups.cross.hard.low", REPORT.groups["cross"]["hard"].low),
        ("cross.easy", REPORT.groups["cross"]["easy"].value),
        ("homogeneity.p_value", REPORT.homogeneity.p_value),
        ("class[cat].accuracy", REPORT.per_class["accuracy"][0]),
        ("class[cat]", REPORT.per_class["accuracy"][0]),
        ("class[a]b < 3].low", REPORT.per_class["low"][1]),
        ("class[c.d].f1", REPORT.per_class["f1"][2]),
        ("class[ünï].precision", REPORT.per_class["precision"][3]),
    ],
)
def test_names_of_a_report(name, expected):
    assert value_of(name) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hard", COMPARISON.hard.after.value),
        ("hard.before.low", COMPARISON.hard.before.low),
        ("easy.delta.high", COMPARISON.easy.delta.high),
        ("easy.delta", COMPARISON.easy.delta.value),
        ("reference.hard.delta", COMPARISON.groups["reference"]["hard"].delta.value),
        ("class[5].delta", COMPARISON.per_class["delta"][4]),
        ("class[5]", COMPARISON.per_class["after"][4]),
    ],
)
def test_names_of_a_comparison(name, expected):
    assert value_of(name, COMPARISON) == pytest.approx(expected, abs=1e-9)


def test_outcomes_say_why():
    failed, passed = check(REPORT, ["hard < 0.99", "hard < 1%"])
    assert failed.failed
    assert failed.sentence == f"failed: hard is {REPORT.hard.value:.4g}, below 0.99"
    assert not passed.failed
    assert passed.sentence == f"passed: hard is {REPORT.hard.value:.4g}, not below 0.01"
    assert check(REPORT, []) == ()
    assert check(REPORT, ["num_samples != 300"])[0].failed is False
    assert check(REPORT, ["num_samples >= 300"])[0].failed


def test_verdict_may_be_asked_for():
    kind = COMPARISON.verdict.kind
    assert check(COMPARISON, [f"verdict == {kind}"])[0].failed
    assert not check(COMPARISON, ["verdict == worse"])[0].failed
    assert check(COMPARISON, ["verdict != noise"])[0].failed


def test_losses_may_be_asked_for():
    worse = compare(BETTER, REPORT, n_boot=100)
    worsened, improved, low = check(worse, ["any class worsened", " any  class improved ", "worst.delta.low < -0.05"])
    assert worsened.failed
    assert "classes got worse significantly ('" in worsened.sentence
    assert not improved.failed
    assert improved.sentence.startswith("passed: 0 of 6 classes improved")
    assert low.failed
    assert not check(COMPARISON, ["any class worsened"])[0].failed
    assert check(COMPARISON, ["any class improved"])[0].failed
    lost, gained = check(worse, ["any class lost", "any class gained"])
    assert (lost.sentence, gained.sentence) == (worsened.sentence, improved.sentence)
    with pytest.raises(InputError, match="needs a comparison"):
        check(REPORT, ["any class worsened"])


def test_an_undefined_number_fails_instead_of_passing():
    outcome = check(REPORT, ["class[nobody].accuracy < 0.5"])[0]
    assert outcome.failed
    assert "undefined" in outcome.sentence


@given(
    st.sampled_from(["hard", "worst.low", "class[x y].f1"]),
    st.sampled_from(["<", ">", "<=", ">=", "==", "!="]),
    st.floats(0, 1),
)
def test_parsing_ignores_spaces(name, sign, bound):
    for text in (f"{name}{sign}{bound!r}", f"  {name}  {sign}  {bound!r} "):
        assert parse(text) == Condition(text.strip(), name, sign, bound)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("hrad < 0.6", "did you mean 'hard'"),
        ("hard.lwo < 0.6", "did you mean 'low'"),
        ("class[cta].accuracy < 0.6", "did you mean 'cat'"),
        ("class[cat].acuracy < 0.6", "did you mean 'accuracy'"),
        ("hard.value.more < 1", "part of"),
        ("hard", "write NAME OPERATOR NUMBER"),
        ("", "write NAME OPERATOR NUMBER"),
        ("hard = 0.6", "write NAME OPERATOR NUMBER"),
        ("hard < 0.6 and gap > 1", "write NAME OPERATOR NUMBER"),
        ("__import__('os').system('true') < 1", "write NAME OPERATOR NUMBER"),
        ("hard < sixty", "must be a number, got 'sixty'"),
        ("hard < nan", "must be a finite number"),
        ("hard == worse", "must be a number, got 'worse'"),
        ("verdict < 3", "must be text"),
        ("groups < 3", "several entries; add one of"),
        ("per_class < 3", r"class\[NAME\]"),
    ],
)
def test_wrong_conditions_get_a_sentence(condition, message):
    with pytest.raises(InputError, match=message):
        check(REPORT, [condition])


def test_long_lists_of_known_names_are_cut():
    many = audit(np.arange(60), np.arange(60), n_boot=100)
    with pytest.raises(InputError, match="… 20 more"):
        check(many, ["class[x] < 1"])


@pytest.mark.parametrize(
    "condition", ["verdict == real", "verdict == worse", "verdict != closed", "class[a].name == a"]
)
def test_a_condition_that_can_never_be_true_is_refused(condition):
    """The verdict of an audit is a sentence, so ``verdict == real`` passed whatever the gap was."""
    with pytest.raises(InputError, match=r"needs a comparison|must be a number"):
        check(audit(["a", "b"], ["a", "b"]), [condition])


def test_an_unknown_kind_of_verdict_is_refused():
    both = compare(audit(["a", "b"], ["a", "b"]), audit(["a", "b"], ["a", "b"]))
    with pytest.raises(InputError, match="did you mean 'worse'"):
        check(both, ["verdict == worst"])
    assert not check(both, ["verdict == worse"])[0].failed


def test_a_gate_fails_where_nothing_is_correct() -> None:
    """ "There is no gap", and the gate passed, for files whose rows do not belong together."""
    report = audit([0, 1, 2] * 20, [1, 2, 0] * 20)
    assert report.verdict.startswith("No sample is predicted correctly: check")
    outcome = check(report, ["gap > 0.3"])[0]
    assert outcome.failed
    assert "cannot be judged. No sample is predicted correctly" in outcome.sentence


def _with_scores():
    scores = np.eye(3)[_Y % 3] * 2 + _RNG.normal(size=(300, 3))
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    slices = {"site": np.array(["A", "B"])[_Y % 2], "ca=m": np.array(["01", "x=2"])[_Y // 3 % 2]}
    return audit(_Y % 3, scores=probabilities, by=slices, n_boot=100)


SCORED = _with_scores()


@pytest.mark.parametrize(
    "condition",
    [
        "calibration.ece > 5", "slices.worst < 0", "slices.worst.low > 60", "slice[site=A].accuracy < 0", "slice[site=A] > 60",
        "slice[site=A].difference < -1", "class[0].low < 0", "class[0].auc_low > 95", "homogeneity.p_value < 0",
        "num_samples < 0", "class[0].support < 0", "calibration.log_loss <= -1", "ranking.mean_auc > 1",
        "slices.columns.site.homogeneity.p_value < 0", "prediction_sets.coverage == 90", "margins.output_margin < -1",
    ],
)  # fmt: skip
def test_a_condition_outside_the_range_of_its_number_is_refused(condition):
    with pytest.raises(InputError, match="can never be true"):
        check(SCORED, [condition])


@pytest.mark.parametrize(
    "condition", ["class[cat].low > 1", "class[cat].delta < -1", "class[cat].q_value < 0", "num_before < 0"]
)
def test_the_same_in_a_comparison(condition):
    with pytest.raises(InputError, match="can never be true"):
        check(COMPARISON, [condition])


def test_conditions_within_the_range_are_judged():
    possible = ["calibration.ece > 50%", "calibration.log_loss > 5", "num_samples < 100", "class[0].low < 0.1",
                "slices.worst < 0.1", "slice[site=A].difference < -0.9", "margins.logit_margin < -5",
                "class[0].logit_margin < -2", "class[0].brier > 1.5", "margin_levels.output.hard < -0.5",
                "prediction_sets.common_set_size > 2.5"]  # fmt: skip
    assert not any(outcome.failed for outcome in check(SCORED, possible))
    assert not any(
        outcome.failed for outcome in check(COMPARISON, ["class[cat].low < -0.5", "overall.delta.low < -0.5"])
    )


def test_slices_whose_names_hold_an_equals_sign():
    rows = SCORED.to_dict()["slices"]["columns"]["ca=m"]["per_slice"]
    for row in rows:
        assert f"is {row['accuracy']:.4g}" in check(SCORED, [f"slice[ca=m={row['name']}] < 0.01"])[0].sentence
    with pytest.raises(InputError, match="unknown slice '02'"):
        check(SCORED, ["slice[ca=m=02] < 0.5"])
    with pytest.raises(InputError, match="unknown column of slices 'sit'"):
        check(SCORED, ["slice[sit=A] < 0.5"])


def test_a_refused_condition_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("label,pred\na,a\nb,a\nb,b\n")
    for condition in ("hard < -1", "class[zebra].accuracy < 0.5"):
        assert call("audit", tmp_path / "p.csv", "--fail-if", condition, "--out", tmp_path / "out").sentence
        assert not (tmp_path / "out").exists()
