"""A prediction file that cannot be read gets one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from classgap import Columns, Predictions
from classgap.checks import InputError
from classgap.predictions import read_names, read_train_counts
from table_files import write


@pytest.mark.parametrize("text", ["nan", "NA", "<NA>", "N/A", "None"])
def test_a_missing_label_among_numbers_is_refused(tmp_path: Path, text: str) -> None:
    """NA, as R writes it, was a class."""
    (tmp_path / "a.csv").write_text(f"label,pred\n0,0\n1,1\n{text},1\n")
    with pytest.raises(InputError, match=f"column 'label' has rows without a label \\('{text}' among numbers\\)"):
        Predictions.read([tmp_path / "a.csv"])


def test_parquet_with_damaged_text_is_refused(tmp_path: Path) -> None:
    """The sentence about the encoding of CSV files ended in an IndexError."""
    file, names = tmp_path / "p.parquet", ["cats", "dogs"] * 20
    pl.DataFrame({"y_true": names, "y_pred": names}).write_parquet(file, compression="uncompressed", statistics=False)
    file.write_bytes(file.read_bytes().replace(b"dogs", b"\xf7\xf4\xf4\xff"))
    with pytest.raises(InputError, match=r"p\.parquet ends in \.parquet but cannot be read"):
        Predictions.read([file])


def bad(tmp_path: Path, name: str, content: bytes | dict[str, Any] | None) -> Path:
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None and file.suffix == ".npz":
        np.savez(file, allow_pickle=True, **content)
    elif content is not None:
        write(file, content)
    return file


GOOD = {"y_true": [0, 1], "y_pred": [0, 1]}


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("none.csv", None, {}, "there is no file"),
        ("a.xlsx", b"x", {}, "unknown file extension"),
        ("a.csv", b"", {}, "a.csv is an empty file"),
        ("a.csv", b"y_true,y_pred\n", {}, "must have at least one row"),
        ("a.csv", b"PAR1\0\0", {}, "not a CSV"),
        ("a.parquet", b"y_true,y_pred\n0,1\n", {}, "not a PARQUET"),
        ("a.parquet", b"PAR1 and then nothing", {}, "cannot be read in this format"),
        ("a.npz", b"y_true,y_pred\n0,1\n", {}, "not an NPZ"),
        ("a.safetensors", b"y_true,y_pred\n0,1\n", {}, "cannot be read as safetensors"),
        ("a.npz", {"y_true": np.array(["a", None], dtype=object), "y_pred": [0, 1]}, {}, "pickled"),
        ("a.csv", {"x": [1], "z": [2]}, {}, "no column has a usual name for true labels.*'x', 'z'"),
        ("a.csv", {"y_true": [1], "z": [2]}, {}, "no column has a usual name for predictions"),
        ("a.csv", {"label": [1], "target": [1], "pred": [1]}, {}, "could both be meant by --true"),
        ("a.csv", GOOD, {"columns": Columns(true="y_ture")}, "did you mean 'y_true'"),
        ("a.csv", {"y_true": ["a", None], "y_pred": ["a", "b"]}, {}, "'y_true' has 1 row without a label"),
        ("a.parquet", {"y_true": [0.0, float("nan")], "y_pred": [0, 1]}, {}, "NaN"),
        ("a.parquet", {"y_true": [0, 1], "y_pred": [0.2, 0.9]}, {}, "fraction 0.2; check that it is not a column of scores"),
        ("a.csv", {"y_true": ["a", "b"], "y_pred": [0, 1]}, {}, "holds numbers .* the other label column holds names"),
        ("a.csv", GOOD, {"class_names": ["a"]}, "label 1, but there are 1 class names"),
        ("a.csv", GOOD, {"class_names": ["a", "a"]}, "'a' occurs twice"),
        ("a.csv", {"y_true": ["a", "b"], "y_pred": ["a", "x"]}, {"class_names": ["a", "b"]}, "'x', which is not among"),
        ("a.csv", {"y": [1, 2], "score_0": [0.5, 1], "score_1": [1, 2]}, {}, "if labels start at 1, subtract 1"),
        ("a.csv", {"y": ["a", "b"], "score_0": [0.5, 1], "score_1": [1, 2]}, {}, "order of the scores"),
        ("a.csv", {"y": [0, 1], "score_0": [0.5, 1], "score_2": [1, 2]}, {}, r"label 1, which is not among .*'0', '2'"),
        ("a.parquet", {"y": [0, 1], "score_1": [0.5, 1], "score_2": [1, 2]}, {}, r"label 0, which is not among .*'1', '2'"),
        ("a.csv", {"y": [0, 1], "score_0": [0, 1], "score_1": [1, 2], "score_x": [1, 2]}, {}, "'score_x' is not;.*--scores"),
        ("a.csv", {"y": [0, 1], "y_pred": [0, 1], "feat_1": [0.5, 1], "feat_2": [1, 2]}, {}, "without gaps"),
        ("a.csv", {"y": [0, 1], "score_0": [0.5, 1], "score_1": ["u", "v"]}, {}, "must hold numbers"),
        ("a.csv", {"y": [0, 1], "score_0": [0.5, None], "score_1": [1, 2]}, {}, "some cells are empty"),
        ("a.parquet", {"y": [0, 1], "scores": [[0.5], [1.0, 2.0]]}, {}, "equal lengths, got 1 to 2"),
        ("a.npz", {"y_true": [0, 1], "y_pred": [0]}, {}, "'y_pred' must have one entry per sample .* 2, got 1"),
        ("a.npz", {"y_true": [[0, 1]], "y_pred": [0]}, {}, "one label per row.*argmax"),
        ("a.npz", {"y_true": [0, 1], "scores": ["a", "b"]}, {}, "matrix of numbers"),
        ("a.csv", GOOD, {"train_counts": [3]}, "one training count per class, 2, got 1"),
        ("a.csv", GOOD, {"train_counts": {"0": 3}}, "1 of 2 are missing .*'1'"),
        ("a.csv", GOOD, {"train_counts": [3, -1]}, "whole numbers"),
    ],
)  # fmt: skip
def test_unreadable(tmp_path: Path, name: str, content: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Predictions.read([bad(tmp_path, name, content)], **options)
    assert "\n" not in str(caught.value)


def test_unreadable_folders_and_mixtures(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no prediction file"):
        Predictions.read([tmp_path])
    files = [write(tmp_path / "a.csv", GOOD), write(tmp_path / "a.parquet", GOOD)]
    with pytest.raises(InputError, match="must have the same format"):
        Predictions.read(files)
    with pytest.raises(InputError, match="more than the 65,536 classes"):
        Predictions.read([write(tmp_path / "ids.parquet", {"y_true": np.arange(70_000), "y_pred": np.arange(70_000)})])


@pytest.mark.parametrize(
    ("name", "text"), [("n.json", "{"), ("n.json", '{"1": "a"}'), ("n.txt", ""), ("n.json", "[1]")]
)
def test_unreadable_names(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="class name"):
        read_names(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_names(tmp_path / "missing.txt")


@pytest.mark.parametrize(("name", "text"), [("c.json", "3"), ("c.csv", "class,count\na,b\n"), ("c.csv", "x\n1\n")])
def test_unreadable_counts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="must"):
        read_train_counts(tmp_path / name)
    with pytest.raises(InputError, match=r"missing\.csv does not exist"):
        read_train_counts(tmp_path / "missing.csv")
