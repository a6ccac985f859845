"""Tables and archives with several labels per sample: every common form is read, and the rest gets one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from classgap import (
    Columns,
    MultiLabelPredictions,
    audit_labels,
)
from classgap.checks import InputError
from multi_label_data import SCORES, TRUE, table


def test_tables_of_scores_are_read_by_name():
    import pandas as pd

    names, turned = list("abcde"), list("daceb")
    scores = pd.DataFrame(SCORES, columns=names)[turned]
    expected = MultiLabelPredictions.from_arrays(TRUE, scores=SCORES, threshold=[0.1, 0.2, 0.3, 0.4, 0.5])
    limits = pd.Series([0.1, 0.2, 0.3, 0.4, 0.5], index=names)[turned]
    found = MultiLabelPredictions.from_arrays(TRUE, scores=scores, label_names=names, threshold=limits)
    np.testing.assert_array_equal(found.y_pred, expected.y_pred)
    found = MultiLabelPredictions.from_arrays(pd.DataFrame(TRUE, columns=names), scores=scores)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        ({}, Columns()),
        ({"true": "{}"}, Columns()),
        ({"true": "{}_label", "scores": "{}_score"}, Columns()),
        ({"true": "is {}", "scores": "P({})"}, Columns(true="is ", scores="P(*)")),
        ({"true": "{}", "scores": "p{}"}, Columns(true="a,b,c,d,e", scores="pa,pb,pc,pd,pe")),
    ],
)
def test_tables_as_people_have_them(tmp_path: Path, form: dict[str, str], columns: Columns) -> None:
    expected = audit_labels(TRUE, scores=SCORES, label_names=list("abcde"))
    frame = table(**form)
    frame.write_csv(tmp_path / "rows.csv")
    frame.write_parquet(tmp_path / "rows.parquet")
    for data in (frame, frame.lazy(), tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        found = audit_labels(data, columns=columns)
        if form.get("true") != "is {}":
            assert found.labels == expected.labels
        assert found.per_label["f1"].tolist() == pytest.approx(expected.per_label["f1"].tolist())
        assert found.per_label["auc"].tolist() == pytest.approx(expected.per_label["auc"].tolist())


def test_archives_and_logits(tmp_path: Path) -> None:
    logits = np.log(SCORES / (1 - SCORES))
    np.savez(tmp_path / "rows.npz", y_true=TRUE, logits=logits, class_names=list("abcde"))
    found = audit_labels(tmp_path / "rows.npz", threshold={"c": 0.2})
    expected = audit_labels(TRUE, SCORES >= [0.5, 0.5, 0.2, 0.5, 0.5], label_names=list("abcde"))
    assert found.samples.scores_kind == "logits"
    assert found.per_label["f1"].tolist() == expected.per_label["f1"].tolist()


def test_a_threshold_decides_instead_of_predictions(tmp_path: Path) -> None:
    frame = table().with_columns(pl.lit(0).alias(f"pred_{name}") for name in "abcde")
    frame.write_csv(tmp_path / "a.csv")
    for data in (frame, tmp_path / "a.csv"):
        assert not audit_labels(data).samples.y_pred.any()
        for limit in (0.5, 0.9):
            np.testing.assert_array_equal(audit_labels(data, threshold=limit).samples.y_pred, limit <= SCORES)
    with pytest.raises(InputError, match="threshold needs scores"):
        audit_labels(frame.select(pl.exclude("^prob_.*$")), threshold=0.9)


def test_label_names_of_the_file_decide_the_order(tmp_path: Path) -> None:
    names, turned, limits = list("abcde"), list("daceb"), [0.1, 0.2, 0.3, 0.4, 0.5]
    order = [names.index(name) for name in turned]
    table().write_csv(tmp_path / "a.csv")
    np.savez(tmp_path / "a.npz", y_true=TRUE, scores=SCORES, label_names=names)
    for file in (tmp_path / "a.csv", tmp_path / "a.npz"):
        found = MultiLabelPredictions.read(file, label_names=turned, threshold=limits)
        assert found.labels == tuple(turned)
        np.testing.assert_array_equal(found.y_true, TRUE[:, order])
        np.testing.assert_array_equal(found.y_pred, SCORES[:, order] >= limits)
        assert MultiLabelPredictions.read(file, label_names=list("vwxyz")).labels == tuple("vwxyz")
        with pytest.raises(
            InputError, match=r"those of the file .* or all different from them, but only 'a', 'b' occur"
        ):
            MultiLabelPredictions.read(file, label_names=list("abxyz"))


def test_parts_must_have_the_same_label_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y_true=TRUE, scores=SCORES, label_names=list("abcde"))
    np.savez(tmp_path / "b.npz", y_true=TRUE, scores=SCORES, label_names=list("edcba"))
    with pytest.raises(InputError, match="label names differ between"):
        MultiLabelPredictions.read([tmp_path / "a.npz", tmp_path / "b.npz"])


def test_unusable_tables(tmp_path: Path) -> None:
    frame = table()
    with pytest.raises(InputError, match="no columns have usual names for scores or predictions of labels"):
        audit_labels(frame.select(pl.exclude("^prob_.*$")))
    with pytest.raises(InputError, match="there is none for 'c', and no true label for none"):
        audit_labels(frame.drop("prob_c"))
    with pytest.raises(InputError, match=r"column 'true_a' must hold 0 and 1 .*, got 2"):
        audit_labels(frame.with_columns(true_a=pl.lit(2)))
    with pytest.raises(InputError, match="column 'true_a' has 800 rows without a value"):
        audit_labels(frame.with_columns(true_a=pl.lit(None, dtype=pl.Int64)))
    with pytest.raises(InputError, match="no column fits --true 'real_'"):
        audit_labels(frame, columns=Columns(true="real_"))
    with pytest.raises(InputError, match=r"slices \(--by\) cannot be used with multi-label data"):
        audit_labels(frame, columns=Columns(by=("file",)))
    with pytest.raises(InputError, match="unknown label in the thresholds: 'z'"):
        audit_labels(frame, threshold={"z": 0.1})
    np.savez(tmp_path / "flat.npz", y_true=TRUE[:, 0], scores=SCORES)
    with pytest.raises(InputError, match="must have shape \\(n, L\\)"):
        audit_labels(tmp_path / "flat.npz")


@pytest.mark.parametrize(("early", "late"), [("0", "1.0"), ("0.0", "1"), (" 0", " 1"), ("false", "true")])
def test_labels_may_be_spelled_otherwise_after_thousands_of_rows(tmp_path: Path, early: str, late: str) -> None:
    """Types are taken from the first 10,000 rows; 1.0 after whole numbers was refused."""
    rows = [f"{value},{k % 2},{value},{k % 2}\n" for k, value in enumerate([early] * 10_100 + [late] * 5)]
    (tmp_path / "a.csv").write_text("true_a,true_b,pred_a,pred_b\n" + "".join(rows))
    found = MultiLabelPredictions.read([tmp_path / "a.csv"])
    assert found.y_true[:, 0].sum() == found.y_pred[:, 0].sum() == 5
    other = "x" if early != "false" else "1"
    (tmp_path / "a.csv").write_text("true_a,true_b,pred_a,pred_b\n" + "".join(rows) + f"{other},0,0,0\n")
    with pytest.raises(
        InputError, match=f"column 'true_a' of .* must hold (numbers|only true and false), got '{other}'"
    ):
        MultiLabelPredictions.read([tmp_path / "a.csv"])


def test_ids_in_files_are_text(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id,true_a,true_b,prob_a,prob_b\n01,1,0,.5,.6\n1,0,1,.4,.3\n", encoding="utf-8")
    assert MultiLabelPredictions.read(file, Columns(id="id")).ids.tolist() == ["01", "1"]


def test_ids_are_no_label(tmp_path):
    table = pl.DataFrame(
        {"label_id": [7, 8], "label_a": [1, 0], "label_b": [0, 1], "prob_a": [0.9, 0.2], "prob_b": [0.1, 0.8]}
    )
    table.write_csv(tmp_path / "a.csv")
    for found in (
        MultiLabelPredictions.from_frame(table, Columns(id="label_id")),
        MultiLabelPredictions.read(tmp_path / "a.csv", Columns(id="label_id")),
    ):
        assert found.labels == ("a", "b")
        assert found.ids is not None


def test_tables_are_put_in_one_order_before_they_are_renamed() -> None:
    import pandas as pd

    true = pd.DataFrame([[1, 0], [1, 0], [0, 1], [1, 1]] * 10, columns=["cat", "dog"])
    turned = true[["dog", "cat"]]
    for names, expected in (
        (None, ("cat", "dog")),
        (["Katze", "Hund"], ("Katze", "Hund")),
        (["dog", "cat"], ("dog", "cat")),
    ):
        for data in ({"y_pred": turned}, {"scores": turned}, {"y_pred": turned, "scores": turned}):
            found = MultiLabelPredictions.from_arrays(true, **data, label_names=names)
            assert found.labels == expected
            np.testing.assert_array_equal(found.y_pred, found.y_true)
    with pytest.raises(
        InputError, match="columns of y_pred and scores must have one order where y_true has no column names"
    ):
        MultiLabelPredictions.from_arrays(true.to_numpy(), turned, scores=true)
    found = MultiLabelPredictions.from_arrays(true.to_numpy(), turned, scores=true, label_names=["cat", "dog"])
    np.testing.assert_array_equal(found.y_pred, found.y_true)
