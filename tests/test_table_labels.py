"""Labels and class names in prediction files: every type and spelling gives the same classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from classgap import Columns, Predictions, audit, compare
from classgap.checks import InputError
from classgap.predictions import read_names, read_train_counts
from table_files import COUNTS, NAMES, PRED, TRUE, archive, confusion, write


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (lambda y: y, ("0", "1", "2")),
        (lambda y: y * 10 - 5, ("-5", "5", "15")),
        (lambda y: np.array(NAMES)[y], ("ant", "bee", "cat")),
        (lambda y: np.array(["7", "07", "n07"])[y], ("07", "7", "n07")),
    ],
)
def test_label_kinds(tmp_path: Path, ending: str, rows: bool, labels: Any, classes: tuple[str, ...]) -> None:
    file = write(tmp_path / f"p.{ending}", {"file": ["x"] * 7, "Label": labels(TRUE), "prediction": labels(PRED)})
    found = Predictions.read([file], rows=rows)
    assert found.classes == classes
    assert found.num_samples == 7
    assert found.has_rows == rows
    expected = np.array(COUNTS)
    if classes[0] == "07":
        expected = expected[[1, 0, 2]][:, [1, 0, 2]]
    assert confusion(found) == expected.tolist()


def test_categories_and_booleans(tmp_path: Path) -> None:
    frame = pl.DataFrame({"y": np.array(NAMES)[TRUE], "pred": np.array(NAMES)[PRED]}).cast(pl.Categorical)
    frame.write_parquet(tmp_path / "c.parquet")
    assert confusion(Predictions.read([tmp_path / "c.parquet"])) == COUNTS
    file = write(tmp_path / "b.parquet", {"y_true": [True, False, True], "y_pred": [True, True, True]})
    assert confusion(Predictions.read([file])) == [[0, 1], [0, 2]]
    file = write(tmp_path / "f.parquet", {"y_true": TRUE.astype(float), "y_pred": PRED})
    assert confusion(Predictions.read([file])) == COUNTS


def test_far_apart_integers(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", {"y_true": [1, 10**12, 5], "y_pred": [1, 5, 5]})
    assert confusion(Predictions.read([file])) == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "names",
    [["1", "2", "10"], ["1", "2", "3"], ["00", "01", "02"], ["2", "0", "1"], ['a"b', "c", '"d"'], ["0", "1", "x"]],
)
@pytest.mark.parametrize("batches", [False, True])
def test_classes_named_by_numbers(tmp_path: Path, ending: str, names: list[str], batches: bool) -> None:
    """What ``classgap predict`` writes for classes of any name is read again; labels 1 and 2 of 1, 2, 3 are no positions."""
    true = np.minimum(TRUE, 1)
    scores = {f"logit_{name}": 2.0 * (k == PRED) for k, name in enumerate(names)}
    file = write(tmp_path / f"p.{ending}", {"y_true": np.array(names)[true], "y_pred": np.array(names)[PRED], **scores})
    columns = Columns(scores="logit_") if "x" in names else None
    found = Predictions.read([file], columns, batches=batches)
    assert set(found.classes) == set(names)
    order = [found.classes.index(name) for name in names]
    assert found.confusion.counts[order][:, order].tolist() == [[1, 1, 0], [1, 2, 2], [0, 0, 0]]
    assert not found.notes


def test_names_give_order_and_absent_classes(tmp_path: Path) -> None:
    numbers = write(tmp_path / "n.csv", {"y_true": TRUE, "y_pred": PRED})
    found = Predictions.read(
        [numbers], class_names=[*NAMES, "dog"], train_counts={"ant": 1, "bee": 2, "cat": 3, "dog": 4}
    )
    assert found.classes == ("ant", "bee", "cat", "dog")
    assert found.confusion.counts[3].sum() == 0
    assert found.train_counts is not None
    assert found.train_counts.tolist() == [1, 2, 3, 4]
    mixed = write(tmp_path / "m.csv", {"y_true": np.array(NAMES)[TRUE], "y_pred": PRED})
    assert confusion(Predictions.read([mixed], class_names=NAMES)) == COUNTS
    # Numbers that are names themselves are names, not positions.
    renamed = write(tmp_path / "r.csv", {"y_true": [7, 3], "y_pred": [7, 7]})
    assert confusion(Predictions.read([renamed], class_names=["3", "7"])) == [[0, 1], [0, 1]]


def test_names_files(tmp_path: Path) -> None:
    for name, text in (
        ("a.txt", "ant\nbee\ncat\n"), ("a.json", '["ant","bee","cat"]'), ("b.json", '{"1":"bee","0":"ant","2":"cat"}'),
    ):  # fmt: skip
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_names(tmp_path / name) == NAMES
    (tmp_path / "c.csv").write_text("class,count\nant,3\nbee,4\n", encoding="utf-8")
    assert read_train_counts(tmp_path / "c.csv") == {"ant": 3, "bee": 4}
    (tmp_path / "c.csv").write_text(
        ",class,count\n0,0,300\n1,1,40\n"
    )  # with the index of pandas; the counts were 0 and 1
    with pytest.raises(InputError, match="must have two columns, class and count, got '', 'class', 'count'; remove"):
        read_train_counts(tmp_path / "c.csv")
    (tmp_path / "c.json").write_text("[3, 4]", encoding="utf-8")
    assert read_train_counts(tmp_path / "c.json") == [3, 4]


@pytest.mark.parametrize("names", [["2", "0", "1"], ["1", "2", "3"], ["0", "1", "2"], NAMES])
def test_audit_keeps_positions_whatever_the_names(tmp_path: Path, names: list[str]) -> None:
    file = archive(tmp_path / "a.npz", y_true=np.array(names)[TRUE], y_pred=np.array(names)[PRED])
    for rows in (file, write(tmp_path / "a.csv", {"y_true": np.array(names)[TRUE], "y_pred": np.array(names)[PRED]})):
        report = audit(Predictions.read([rows], class_names=names))
        assert report.classes == tuple(names)
        assert report.confusion.counts.tolist() == COUNTS


def test_whole_numbers_are_positions_in_the_class_names(tmp_path: Path) -> None:
    """Names that are numbers in another order must not be read as the labels: 0.043 where 0.885 is true."""
    names = ["2", "0", "1"]
    for found in (
        Predictions.read([archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED)], class_names=names),
        Predictions.from_arrays(TRUE, PRED, class_names=names),
    ):
        assert confusion(found) == COUNTS
        assert any("positions in the list of class names" in note for note in found.notes)
    assert not Predictions.from_arrays(TRUE, PRED, class_names=NAMES).notes


def test_all_label_columns_are_read_alike(tmp_path: Path) -> None:
    """A column without the highest label was read as positions, the other one as names: 0.25 where 0.75 is true."""
    names, true, pred = ["1", "2", "3"], [1, 1, 2, 2], [1, 1, 2, 3]
    expected = [[2, 0, 0], [0, 1, 1], [0, 0, 0]]
    for found in (
        Predictions.from_arrays(true, pred, class_names=names),
        Predictions.from_arrays(true, list(map(str, pred)), class_names=names),
        Predictions.read([write(tmp_path / "a.csv", {"label": true, "pred": pred})], class_names=names),
        Predictions.read([write(tmp_path / "a.parquet", {"label": true, "pred": pred})], class_names=names),
        Predictions.read([archive(tmp_path / "a.npz", y_true=true, y_pred=pred)], class_names=names),
    ):
        assert confusion(found) == expected
    # Positions and names, told apart by how they are stored.
    assert confusion(Predictions.from_arrays([0, 1, 2], ["1", "2", "3"], class_names=names)) == np.eye(3).tolist()
    with pytest.raises(InputError, match=r"but 3 \(y_pred\) is no index and 0 \(y_true\) is no class name"):
        Predictions.from_arrays([0, 1, 2], [1, 2, 3], class_names=names)


def test_an_empty_text_is_no_label(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('"y","pred"\n"a","a"\n"b","b"\n"","b"\n"b","a"\n', encoding="utf-8")
    for rows in (False, True):
        with pytest.raises(InputError, match="column 'y' has rows without a label"):
            Predictions.read([file], rows=rows)
    with pytest.raises(InputError, match="y_pred has rows without a label"):
        Predictions.from_arrays(["a", "b", "b"], ["a", "b", " "])
    with pytest.raises(InputError, match="array 'y_true' has rows without a label"):
        Predictions.read([archive(tmp_path / "a.npz", y_true=["a", ""], y_pred=["a", "a"])])
    assert Predictions.from_arrays(["a", ""], ["a", "a"], class_names=["a", ""]).classes == ("a", "")


def test_whole_numbers_with_decimals_are_the_same_labels(tmp_path: Path) -> None:
    """pandas writes 3.0 where a column had missing values; "3" and "3.0" are then the same class."""
    decimals = [f"{k}.0" for k in PRED]
    mixed = write(tmp_path / "a.csv", {"y_true": TRUE, "y_pred": decimals})
    assert confusion(Predictions.read([mixed])) == confusion(Predictions.read([mixed], class_names=NAMES)) == COUNTS
    versions = write(tmp_path / "b.csv", {"y_true": [f"{k}.0" for k in TRUE], "y_pred": decimals})
    assert Predictions.read([versions]).classes == ("0.0", "1.0", "2.0")
    assert confusion(Predictions.read([versions], class_names=["0.0", "1.0", "2.0"])) == COUNTS


def test_classes_of_two_runs_are_compared_in_one_spelling(tmp_path: Path) -> None:
    """A CSV file holds 1.0 or true where arrays hold 1 or True; alone, each keeps its spelling."""
    import pandas as pd

    true = np.array([1.0, 2, 3] * 20)
    pred = np.where(np.arange(60) % 5, true, 1.0)
    for labels, predicted, classes in ((true, pred, ("1", "2", "3")), (true > 1, pred > 1, ("False", "True"))):
        columns = {"label": labels, "pred": predicted}
        text, table = write(tmp_path / "a.csv", columns), write(tmp_path / "a.parquet", columns)
        stored = archive(tmp_path / "a.npz", **columns)
        pd.DataFrame(columns).to_csv(tmp_path / "b.csv", index=False)
        read = pd.read_csv(tmp_path / "b.csv")
        for before, after in ((text, stored), (stored, text), (text, read), (text, table), (tmp_path / "b.csv", table)):
            found = compare(before, after)
            assert (found.classes, found.metrics["overall"].delta.value) == (classes, 0)
            reports = [audit(Predictions.from_frame(side) if side is read else Predictions.read(side, rows=True))
                       for side in (before, after)]  # fmt: skip
            assert compare(*reports).classes == classes
        compare(text, tmp_path / "b.csv")  # polars writes true, pandas True
    assert Predictions.from_arrays(["true", "True", "true"], ["true", "True", "True"]).classes == ("True", "true")
    with pytest.raises(InputError, match="the true labels differ"):
        compare(audit(["01", "2"] * 9, ["01", "2"] * 9), audit(["1", "2"] * 9, ["1", "2"] * 9))
