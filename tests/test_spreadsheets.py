"""Prediction files as Excel, pandas, Keras and Hugging Face write them: read as meant, or a sentence with the way out."""

from __future__ import annotations

import decimal
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from classgap import Columns, Predictions, audit, audit_labels
from classgap.checks import InputError
from classgap.predictions.side_files import read_names, read_train_counts
from command_line import call

ROWS = [("cat", "cat"), ("dog", "cat"), ("dog", "dog"), ("Löwe", "Löwe"), ("cat", "dog"), ("Löwe", "cat")]
ACCURACY = 3 / 6
SCORES = np.random.default_rng(0).dirichlet(np.ones(3), size=40)
TRUE = np.random.default_rng(1).integers(0, 3, size=40)


def table(rows: list[tuple[str, ...]] = ROWS, *, header: str = "label,pred", end: str = "\n") -> str:
    return end.join([header, *(",".join(row) for row in rows)]) + end


def accuracy(path: Path, **options: str) -> float:
    found = Predictions.read(path, Columns(**options), rows=True)  # type: ignore[arg-type]
    counted = Predictions.read(path, Columns(**options))
    assert counted.num_samples == found.num_samples
    return float((found.y_true == found.y_pred).mean())


@pytest.mark.parametrize("blank", ["\n", "\n\n\n", "\r\n", ",\n,\n", "  \n", "\n,\n \n", "\n" * 70_000])
def test_blank_lines_at_the_end_are_no_samples(tmp_path: Path, blank: str) -> None:
    """They were refused as rows without a label."""
    path = tmp_path / "p.csv"
    path.write_text("\ufeff" + table() + blank, encoding="utf-8", newline="")
    assert accuracy(path) == ACCURACY
    other = tmp_path / "q.csv"
    other.write_text(table(), encoding="utf-8")
    assert Predictions.read([path, other]).num_samples == 12
    assert call("compare", path, other, "--json").code == 0


def test_a_line_without_values_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    gap = [*ROWS[:3], ("", ""), *ROWS[3:]]
    for text, line in (
        (table(gap), 5),
        (table(gap).replace("\n,\n", "\n\n"), 5),
        (table(gap) + "\n\n", 5),
        (table([*ROWS, ("cat", "")]), 8),
        ("\n" + table([('"a\nb"', "cat"), ("cat", "")]), 5),
    ):
        path.write_text(text, encoding="utf-8")
        assert f"without a label; remove these rows or add labels (the first is line {line} of {path})" in (
            call("audit", path).sentence
        )
    (tmp_path / "good.csv").write_text(table(), encoding="utf-8")
    assert (
        f"line 8 of {path}" in call("compare", tmp_path / "good.csv", write(path, table([*ROWS, ("cat", "")]))).sentence
    )
    scores = "label,prob_0,prob_1\n0,0.9,0.1\n1,0.3,\n"
    assert f"some cells are empty (the first is line 3 of {path})" in call("audit", write(path, scores)).sentence
    labels = "true_a,true_b,prob_a,prob_b\n1,0,0.9,0.2\n0,1,,0.7\n"
    assert f"(the first is line 3 of {path})" in call("audit", write(path, labels), "--multi-label").sentence


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_decimal_commas(tmp_path: Path) -> None:
    """As Excel writes them in most of Europe: columns are separated by semicolons."""
    path = tmp_path / "p.csv"
    rows = [
        ";".join([str(y), *(f"{p:.7f}".replace(".", ",") for p in row)]) for y, row in zip(TRUE, SCORES, strict=True)
    ]
    path.write_text("\ufeff" + "\r\n".join(["label;prob_0;prob_1;prob_2", *rows, "", ""]), encoding="utf-8", newline="")
    found = Predictions.read(path)
    assert found.scores_kind == "probabilities"
    np.testing.assert_allclose(np.asarray(found.scores), SCORES, atol=1e-6)
    several = "\n".join(["true_a;true_b;prob_a;prob_b", "1;0;0,9;0,2", "0;1;0,1;0,7"])
    assert call("audit", write(path, several), "--multi-label", "--json").code == 0
    weighted = "label;pred;w\n" + "0;0;0,5\n1;0;1,5\n" * 5
    report = json.loads(call("audit", write(path, weighted), "--sample-weight", "w", "--json").out)
    assert report["overall"]["value"] == 0.25


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("label,prob_0,prob_1\n0,\"0,9\",\"0,1\"\n", "with a decimal point, or separate the columns by semicolons or tabs"),
        ("label,prob_0,prob_1\n0,90%,10%\n", "write 0.25 instead of 25%"),
        ('label,probs\n0,"[0.9 0.1]"\n', "a CSV file cannot hold lists: write one column per class"),
        ("sep=;\nlabel;pred\n0;0\n", "names the separator for Excel (sep=…); remove this line"),
        ("label|pred\n0|0\n", "must be separated by commas, semicolons or tabs"),
        ("label,pred\n0,0\n1,1,1\n", "line 3 of {path} has 3 fields, but the header names 2 columns"),
        ("label,pred\r0,0\r1,1\r", "end with CR only; save the file with line ends LF or CR LF"),
        ("label,pred\nL\xf6we,cat\n".encode("latin-1"), "is not encoded in UTF-8; save it in UTF-8"),
        ("label,pred\ncat,cat\n".encode("utf-16"), "is encoded in UTF-16; save it in UTF-8"),
        (b"\x1f\x8b\x08\x00", "is compressed with gzip; unpack it first"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_a_way_out(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert sentence.format(path=path) in call("audit", path).sentence


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("p.csv.gz", "unpack it first"),
        ("p.npy", "numpy.savez(FILE, y_true=…, scores=…)"),
        ("p.jsonl", "pass the table to classgap.audit"),
        ("p.txt", "rename it to .csv"),
    ],
)
def test_other_formats_have_a_way_out(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / name).write_text("label,pred\n0,0\n", encoding="utf-8")
    assert sentence in call("audit", tmp_path / name).sentence


def test_a_query_on_a_csv_file(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", table())
    assert (
        f"--sql is for DuckDB files, got {path}; leave --sql out" in call("audit", path, "--sql", "select 1").sentence
    )


# ---------------------------------------------------------------- percentages


def test_percentages_are_no_logits(tmp_path: Path) -> None:
    """They were: of two classes every sample was positive, and with more classes all probabilities were wrong."""
    yes = TRUE > 0
    percent = 100 * (1 - SCORES[:, 0])
    for call_it in (
        lambda: audit(TRUE, scores=100 * SCORES, n_boot=100),
        lambda: audit(TRUE, scores=np.rint(1000 * SCORES) / 10, n_boot=100),
        lambda: audit(yes, scores=percent, n_boot=100),
        lambda: audit_labels(np.eye(3)[TRUE], scores=100 * SCORES),
    ):
        with pytest.raises(InputError, match=r"the values look like percentages .*; divide them by 100"):
            call_it()
    pl.DataFrame({"label": yes, "prob": percent}).write_csv(tmp_path / "p.csv")
    for more in ([], ["--sample", "100"]):
        assert "column 'prob'" in call("audit", tmp_path / "p.csv", *more).sentence or more
        assert "look like percentages" in call("audit", tmp_path / "p.csv", *more).sentence
    pl.DataFrame({"label": yes, "logit": percent}).write_csv(tmp_path / "l.csv")
    assert call("audit", tmp_path / "l.csv", "--json").code == 0
    for logits in (percent / 10, percent + 100, percent - 50):  # as of a model that accepts every sample
        assert audit(yes, scores=logits, n_boot=100).num_samples == 40
    assert audit(TRUE, scores=100 * SCORES, scores_kind="logits", n_boot=100).num_samples == 40


def test_rounded_probabilities_have_a_way_out() -> None:
    with pytest.raises(
        InputError, match="if these are rounded probabilities, write more digits or divide every row by its"
    ):
        audit([0, 1, 2], scores=[[0.33, 0.33, 0.32]] * 3)


def test_the_row_of_a_missing_score_is_named() -> None:
    scores = SCORES.copy()
    scores[7, 1] = np.nan
    with pytest.raises(InputError, match=r"nan or infinite values \(first: row 7\)"):
        audit(TRUE, scores=scores)


# ---------------------------------------------------------------- names, types and roles


def test_names_of_columns_with_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", table(header="True Label,Predicted-Label"))
    assert accuracy(path) == ACCURACY


def test_scores_with_the_usual_name_of_predicted_labels(tmp_path: Path) -> None:
    """Hugging Face's ``trainer.predict`` calls the logits ``predictions``; they were predicted labels also with ``--scores``."""
    np.savez(tmp_path / "p.npz", label_ids=TRUE, predictions=SCORES)
    sentence = call("audit", tmp_path / "p.npz", "--true", "label_ids").sentence
    assert "if these are scores, name the array with --scores" in sentence
    found = Predictions.read(tmp_path / "p.npz", Columns(true="label_ids", scores="predictions"))
    assert found.y_pred.tolist() == SCORES.argmax(axis=1).tolist()
    pl.DataFrame({"label": TRUE > 0, "prediction": 1 - SCORES[:, 0]}).write_csv(tmp_path / "p.csv")
    found = Predictions.read(tmp_path / "p.csv", Columns(scores="prediction"))
    assert found.y_pred.tolist() == (1 - SCORES[:, 0] >= 0.5).tolist()


def test_listed_columns_that_are_numbers_are_the_classes_of_these_numbers(tmp_path: Path) -> None:
    """They were taken in the order of the list, so that label 0 was the class of column 2."""
    frame = pl.DataFrame({"label": TRUE} | {str(k): SCORES[:, k] for k in (2, 0, 1)})
    frame.write_parquet(tmp_path / "p.parquet")
    found = Predictions.read(tmp_path / "p.parquet", Columns(scores="2,0,1"))
    assert found.y_pred.tolist() == SCORES.argmax(axis=1).tolist()


def test_labels_in_one_column_of_a_matrix(tmp_path: Path) -> None:
    """As Keras keeps them; labels 0 and 1 were called multi-label data."""
    np.savez(tmp_path / "p.npz", y=(TRUE[:, None] > 0).astype(int), probs=1 - SCORES[:, :1])
    assert "got shape (40, 1); save its column [:, 0]" in call("audit", tmp_path / "p.npz").sentence
    with pytest.raises(InputError, match="pass its column"):
        audit(TRUE[:, None], scores=SCORES)


def test_decimals_of_a_database_are_numbers(tmp_path: Path) -> None:
    """Scores of this type were no matrix of numbers."""
    kind = pl.Decimal(10, 6)
    columns = {
        f"prob_{k}": pl.Series([decimal.Decimal(f"{p:.6f}") for p in SCORES[:, k]], dtype=kind) for k in range(3)
    }
    pl.DataFrame({"label": TRUE, **columns}).write_parquet(tmp_path / "p.parquet")
    np.testing.assert_allclose(np.asarray(Predictions.read(tmp_path / "p.parquet").scores), SCORES, atol=1e-6)
    truth = {f"true_{k}": (k == TRUE).astype(int) for k in range(3)}
    pl.DataFrame({**truth, **columns}).write_parquet(tmp_path / "m.parquet")
    assert call("audit", tmp_path / "m.parquet", "--multi-label", "--json").code == 0


def test_joiners_are_parts_of_names() -> None:
    """Families of emoji, and words in Persian, were shown with ``\\u200d``."""
    names = ["👩\u200d👧", "می\u200cخواهم", "a\u200bb"]
    assert Predictions.from_arrays([0, 1, 2], [0, 1, 2], class_names=names).classes == (*names[:2], "a\\u200bb")


# ---------------------------------------------------------------- side files


def test_side_files_of_a_spreadsheet(tmp_path: Path) -> None:
    for text in (
        "class;count\r\ncat;10\r\ndog;20\r\n",
        "class,count\ncat,10.0\ndog,20.0\n\n",
        "class\tcount\ncat\t10\ndog\t20\n",
    ):
        assert read_train_counts(write(tmp_path / "c.csv", text)) == {"cat": 10, "dog": 20}


@pytest.mark.parametrize("text", ["id,name\n0,cat\n1,dog\n", "name\ncat\ndog\n", "0;cat\n1;dog\n"])
def test_a_table_of_class_names_is_refused(tmp_path: Path, text: str) -> None:
    """The header was class 0, and all other names belonged to the class before."""
    with pytest.raises(InputError, match="must hold one class name per line"):
        read_names(write(tmp_path / "names.csv", text))
    assert read_names(write(tmp_path / "names.csv", 'cat\n"dog, small"\n')) == ["cat", '"dog, small"']
