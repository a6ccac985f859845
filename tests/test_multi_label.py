"""Multi-label data: one binary problem per label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from classgap import (
    Columns,
    MultiLabelPredictions,
    audit,
    audit_labels,
    compare_labels,
    fix_labels,
)
from classgap.checks import InputError
from classgap.measure.gate import check
from classgap.measure.render.multi_label import render_label_comparison, render_labels
from classgap.measure.statistics.f1 import f1_changes
from classgap.posthoc import LabelThresholds
from command_line import call
from multi_label_data import SCORES, TRUE, table


def test_matches_scikit_learn():
    report = audit_labels(TRUE, scores=SCORES, label_names=list("abcde"))
    order = [list("abcde").index(name) for name in report.per_label["name"]]
    predicted = SCORES >= 0.5
    for column, score in (("recall", recall_score), ("precision", precision_score), ("f1", f1_score)):
        assert report.per_label[column] == pytest.approx(score(TRUE, predicted, average=None)[order])
    assert report.per_label["auc"] == pytest.approx(roc_auc_score(TRUE, SCORES, average=None)[order])
    assert report.per_label["average_precision"] == pytest.approx(
        average_precision_score(TRUE, SCORES, average=None)[order]
    )
    assert report.per_label["specificity"] == pytest.approx(recall_score(~TRUE, ~predicted, average=None)[order])
    assert report.per_label["name"][0] == "c"
    assert (report.per_label["f1_low"] < report.per_label["f1"]).all()
    assert report.verdict.startswith("Labels really differ in recall and precision")
    assert report.metrics["worst"].value == report.per_label["recall"].min()
    assert report.groups["precision"]["worst"].value == report.per_label["precision"].min()
    for mean in ("macro", "micro"):
        found = report.metrics[f"{mean}_f1"]
        assert found.value == pytest.approx(f1_score(TRUE, predicted, average=mean))
        assert found.low < found.value < found.high
    assert (np.diff(report.per_label["f1"]) >= 0).all()
    assert json.dumps(report.to_dict())
    assert "| c |" in report.to_markdown()
    assert "c" in repr(report)
    assert report.to_pandas().loc["c", "support"] == TRUE[:, 2].sum()


def test_thresholds_per_label():
    one = audit_labels(TRUE, scores=SCORES, threshold=[0.5, 0.5, 0.1, 0.5, 0.5])
    other = audit_labels(TRUE, SCORES >= [0.5, 0.5, 0.1, 0.5, 0.5])
    assert one.per_label["recall"].tolist() == other.per_label["recall"].tolist()


def test_equal_labels_are_not_called_different():
    """Labels of one sample are right or wrong together."""
    rng = np.random.default_rng(1)
    real = 0
    for _ in range(60):
        true = rng.random((200, 8)) < 0.3
        right = rng.random((200, 8)) < np.where(rng.random((200, 1)) < 0.5, 0.95, 0.5)
        real += audit_labels(true, true == right).homogeneity.p_value < 0.05
    assert real <= 7


def test_unusable():
    with pytest.raises(InputError, match="y_true must be a matrix of 0 and 1"):
        audit_labels([0, 1, 2], [0, 1, 2])
    with pytest.raises(InputError, match="y_true must be a matrix of 0 and 1"):
        audit_labels([[0, 2]], [[0, 1]])
    with pytest.raises(InputError, match="pass y_pred, or scores"):
        audit_labels(TRUE)
    with pytest.raises(InputError, match="y_pred must have the shape of y_true"):
        audit_labels(TRUE, TRUE[:, :2])
    with pytest.raises(InputError, match="label_names must be 5 different names"):
        audit_labels(TRUE, TRUE, label_names=["a"])
    with pytest.raises(InputError, match="threshold must be one number, or 5 numbers"):
        audit_labels(TRUE, scores=SCORES, threshold=[0.5, 0.5])
    with pytest.raises(InputError, match="only zeros"):
        audit_labels(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"argmax\(axis=1\), for multi-label data use classgap.audit_labels"):
        audit(TRUE, TRUE)


# ---------------------------------------------------------------- false comfort


def test_predicting_everything_is_no_success():
    """Every recall is then 100 %; precision, F1, the note and the gate say what it is worth."""
    report = audit_labels(TRUE, np.ones_like(TRUE), label_names=list("abcde"))
    assert report.groups["recall"]["worst"].value == 1
    assert report.groups["precision"]["worst"].value == pytest.approx(TRUE.mean(0).min())
    assert report.verdict.startswith("Labels really differ in precision")
    assert any("predicted for every sample, so a recall of 100 % says nothing" in note for note in report.notes)
    assert check(report, ["macro_f1 < 0.5"])[0].failed


def test_predicting_nothing_fails_every_gate():
    report = audit_labels(TRUE, np.zeros_like(TRUE))
    assert report.verdict.startswith("No label is predicted correctly for any sample")
    assert check(report, ["macro_f1 < 0"])[0].failed


def test_labels_without_samples_are_nan_and_named():
    true, scores = TRUE.copy(), SCORES.copy()
    true[:, 1] = False
    scores[:, 3] = 0.1
    report = audit_labels(true, scores=scores, label_names=list("abcde"))
    rows = report.to_pandas()
    assert rows.loc["b", ["recall", "precision", "f1", "auc"]].isna().all()
    assert np.isnan(rows.loc["d", "precision"])
    assert rows.loc["d", "recall"] == 0
    assert report.per_label["name"][-1] == "b"
    assert any("label 'b' has no samples; recall, precision and F1 are nan" in note for note in report.notes)
    assert any("label 'd' has samples but is never predicted" in note for note in report.notes)
    assert check(report, ["label[b].recall < 0.5"])[0].failed  # undefined: cannot be ruled out
    expected = np.nanmean(report.per_label["f1"])
    assert report.metrics["macro_f1"].value == pytest.approx(expected)
    change = compare_labels(report.samples, report.samples.at_threshold(0.3))
    assert np.isnan(change.to_pandas().loc["b", "delta"])
    assert any("cannot be compared: 'b'" in note for note in change.notes)


# ---------------------------------------------------------------- compare


def test_changes_match_a_simulated_exchange():
    rng = np.random.default_rng(3)
    before = SCORES[:60] >= 0.5
    after = np.where(rng.random(before.shape) < 0.15, TRUE[:60], before)
    true = TRUE[:60]
    found = f1_changes(true, before, after, 0.95)
    swap = rng.random((20_000, 60)) < 0.5
    for k in range(5):
        first = np.where(swap, after[:, k], before[:, k])
        second = np.where(swap, before[:, k], after[:, k])
        scores = [2 * (side & true[:, k]).sum(1) / (side.sum(1) + true[:, k].sum()) for side in (first, second)]
        drawn = np.abs(scores[1] - scores[0])
        size = abs(found.delta[k])
        if (before[:, k] == after[:, k]).all():
            assert found.p_value[k] == 1
            continue
        expected = (drawn > size + 1e-9).mean() + (np.abs(drawn - size) < 1e-9).mean() / 2
        assert found.p_value[k] == pytest.approx(expected, abs=0.015)
        assert found.delta[k] == pytest.approx(f1_score(true[:, k], after[:, k]) - f1_score(true[:, k], before[:, k]))


def test_compare_finds_gains_losses_and_nothing():
    old = MultiLabelPredictions.from_arrays(TRUE, scores=SCORES, label_names=list("abcde"))
    same = compare_labels(old, old)
    assert same.verdict.kind == "noise"
    assert (same.per_label["p_value"] == 0.5).sum() + (same.per_label["p_value"] == 1).sum() == 5
    lower = compare_labels(old, old.at_threshold({"c": 0.15}))
    assert lower.improved["name"].tolist() == ["c"]
    assert lower.verdict.kind == "better"
    mixed = compare_labels(old, old.at_threshold({"c": 0.15, "a": 0.95}))
    assert mixed.worsened["name"].tolist() == ["a"]
    assert "label 'a'" in mixed.verdict.sentence
    assert check(mixed, ["any label worsened"])[0].failed
    assert check(mixed, ["macro_f1.delta.low < -0.5"])[0].failed is False
    assert check(lower, ["verdict == worse", "label[c].delta < 0"])[0].failed is False
    assert "Labels with the largest changes" in mixed.to_markdown()
    assert json.dumps(mixed.to_dict())
    assert "<table" in mixed._repr_html_()
    assert len(repr(mixed)) < 300


def test_equal_models_are_rarely_called_different():
    """Two models that differ by chance only, on samples of shared difficulty: about 5 % of the verdicts may claim a change."""
    rng = np.random.default_rng(4)
    claims = 0
    for _ in range(150):
        true = rng.random((200, 8)) < np.array([0.4, 0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.02])
        base = 3 * true - 1.5 + 0.8 * rng.normal(size=(200, 1)) + rng.normal(size=true.shape)
        sides = [MultiLabelPredictions.from_arrays(true, base + rng.normal(size=true.shape) > 0) for _ in range(2)]
        claims += compare_labels(*sides).verdict.kind != "noise"
    assert claims <= 16  # 5 % of 150 is 7.5; beyond 16 has a probability of 0.3 %


def test_compare_matches_samples_by_id():
    frame = table()
    shuffled = frame.sample(fraction=1, shuffle=True, seed=0)
    found = compare_labels(frame, shuffled, columns=Columns(id="file"))
    assert found.metrics["macro_f1"].delta.value == 0
    with pytest.raises(InputError, match="name the column of sample ids with --id"):
        compare_labels(frame, shuffled)
    with pytest.raises(InputError, match="lacks 1 ids of the first run"):
        compare_labels(frame, shuffled.head(799), columns=Columns(id="file"))
    assert compare_labels(frame, shuffled.head(700), columns=Columns(id="file"), common=True).num_samples == 700


def test_ids_of_different_types_are_matched_as_text(tmp_path: Path) -> None:
    frame = table().drop("file").with_row_index("file")
    renamed = frame.with_columns(file=pl.Series([str(i) if i < 700 else f"x{i}" for i in range(800)]))
    frame.write_csv(tmp_path / "a.csv")
    renamed.write_csv(tmp_path / "b.csv")
    for sides in ((frame, renamed), (tmp_path / "a.csv", tmp_path / "b.csv")):
        found = compare_labels(*sides, columns=Columns(id="file"), common=True)
        assert found.num_samples == 700
        assert found.metrics["macro_f1"].delta.value == 0
    padded = frame.with_columns(file=pl.col("file").cast(pl.String).str.zfill(4))
    padded.write_csv(tmp_path / "c.csv")
    with pytest.raises(InputError, match="lacks 800 ids of the first run"):
        compare_labels(tmp_path / "a.csv", tmp_path / "c.csv", columns=Columns(id="file"))


# ---------------------------------------------------------------- fix


def test_thresholds_per_label_raise_f1_on_samples_set_aside(tmp_path: Path) -> None:
    result = fix_labels(TRUE, scores=SCORES, label_names=list("abcde"))
    assert result.helps
    assert result.comparison.metrics["macro_f1"].delta.low > 0
    assert result.thresholds.thresholds_[2] < 0.35  # the label whose scores are too low
    rows = result.report_rows
    assert result.comparison.num_samples == len(rows) < 300
    after = result.thresholds.predict(SCORES[rows])
    assert result.comparison.metrics["macro_f1"].after.value == pytest.approx(
        f1_score(TRUE[rows], after, average="macro")
    )
    result.save(tmp_path / "out")
    again = LabelThresholds.load(tmp_path / "out" / "thresholds.json")
    np.testing.assert_array_equal(again.predict(SCORES), result.thresholds.predict(SCORES))
    assert (tmp_path / "out" / "report.html").exists()
    assert pl.read_csv(tmp_path / "out" / "predictions.csv").height == 800
    with pytest.raises(InputError, match="fitted on probabilities, but the scores have values outside"):
        again.predict(10 * SCORES)


def test_fix_of_calibrated_scores_claims_nothing_often(tmp_path: Path) -> None:
    """Scores without information about the label: no threshold helps, and thresholds must not be written."""
    rng = np.random.default_rng(5)
    claims = 0
    for seed in range(20):
        true = rng.random((300, 4)) < 0.4
        scores = np.clip(rng.normal(0.5, 0.1, true.shape), 0, 1)
        # predicting every label is best for F1 then, so start from there
        result = fix_labels(true, scores=scores, threshold=0.05, seed=seed)
        claims += result.helps
    assert claims <= 2
    result.save(tmp_path)
    assert (tmp_path / "methods.md").exists()
    assert not (tmp_path / "thresholds.json").exists()


# ---------------------------------------------------------------- command line and page


def run(*arguments: str) -> Any:
    done = call(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def refused(*arguments: str) -> str:
    return call(*arguments).sentence


def test_command_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    table().write_csv(file)
    found = run("audit", str(file), "--multi-label")
    assert found["num_labels"] == 5
    assert "--thresholds needs --multi-label" in refused("audit", str(file), "--thresholds", "x.json")
    assert "--positive cannot be used with --multi-label" in refused(
        "audit", str(file), "--multi-label", "--positive", "a"
    )
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps({"a": 0.5, "b": 0.5, "c": 0.15, "d": 0.5}))
    assert "no threshold: 'e'" in refused("audit", str(file), "--multi-label", "--thresholds", str(limits))
    limits.write_text(json.dumps({"a": 0.5, "b": 0.5, "c": 0.15, "d": 0.5, "e": 0.5}))
    better = run("audit", str(file), "--multi-label", "--thresholds", str(limits))
    assert better["metrics"]["macro_f1"]["value"] > found["metrics"]["macro_f1"]["value"]
    change = run("compare", str(file), str(file), "--multi-label", "--id", "file")
    assert change["verdict"]["kind"] == "noise"


def test_pages_hold_every_label(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "b", "c", "d", "e"]
    found = MultiLabelPredictions.from_arrays(TRUE, scores=SCORES, label_names=names)
    report = audit_labels(found)
    page = render_labels(report, tmp_path / "page.html", source="rows.csv")
    assert "<script>alert" not in page
    assert "Labels really differ in recall and precision" in page
    assert "class accuracy" not in page
    other = render_label_comparison(compare_labels(found, found.at_threshold(0.3)))
    assert "Labels that improved or got worse" in other
    assert "| label |" in report.to_markdown()
    assert "<table" in report._repr_html_()


def test_a_rounding_error_does_not_make_logits_of_probabilities():
    scores = SCORES.copy()
    scores[0, :2] = 1.0000001, -1e-9
    found = MultiLabelPredictions.from_arrays(TRUE, scores=scores)
    assert found.scores_kind == "probabilities"
    assert 0 <= found.scores.min() <= found.scores.max() <= 1
    np.testing.assert_array_equal(found.y_pred, scores >= 0.5)
    method = LabelThresholds().fit(SCORES, TRUE)
    np.testing.assert_array_equal(method.predict(scores)[1:], method.predict(SCORES)[1:])


def test_thresholds_take_the_columns_of_a_table_by_name() -> None:
    import pandas as pd

    scores = pd.DataFrame(SCORES, columns=list("abcde"))
    fitted = LabelThresholds().fit(scores, TRUE)
    assert fitted.labels_ == tuple("abcde")
    np.testing.assert_array_equal(fitted.predict(scores[list("edcba")]), fitted.predict(SCORES))


def test_a_label_without_samples_has_no_precision_in_audit_and_comparison():
    y = np.array([[1, 0], [0, 0], [1, 0]])
    said = np.array([[1, 1], [0, 0], [1, 0]])
    audited = audit_labels(y, said, label_names=["a", "b"]).per_label
    found = [MultiLabelPredictions.from_arrays(y, said, label_names=["a", "b"]) for _ in range(2)]
    compared = compare_labels(*found).per_label
    assert np.isnan(audited["precision"][audited["name"] == "b"]).all()
    for name in ("precision_before", "precision_after"):
        assert np.isnan(compared[name][compared["name"] == "b"]).all()
