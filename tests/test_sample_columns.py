"""Columns that describe samples: ids, weights, paths, texts and slices, and runs that are aligned by id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from classgap import Columns, MultiLabelPredictions, Predictions, audit, compare
from classgap.checks import InputError
from classgap.predictions import align
from table_files import PRED, TRUE, archive, write


def test_alignment_by_id(tmp_path: Path) -> None:
    order = np.array([3, 1, 0, 2, 6, 5, 4])
    columns = Columns(id="id")
    first = write(tmp_path / "a.csv", {"y_true": TRUE, "y_pred": PRED, "id": np.arange(7)})
    second = write(tmp_path / "b.csv", {"y_true": TRUE[order], "y_pred": PRED[order], "id": np.arange(7)[order]})
    runs = align([Predictions.read([file], columns) for file in (first, second)])
    assert [run.y_pred.tolist() for run in runs if run.y_pred is not None] == [PRED.tolist()] * 2
    twice = write(tmp_path / "c.csv", {"y_true": TRUE, "y_pred": PRED, "id": [0, 0, 1, 2, 3, 4, 5]})
    with pytest.raises(InputError, match=r"unique, but 0 occurs more than once"):
        align([Predictions.read([file], columns) for file in (first, twice)])
    other = write(tmp_path / "d.csv", {"y_true": TRUE, "y_pred": PRED, "id": np.arange(7) + 1})
    with pytest.raises(InputError, match=r"must have the same sample ids.*lacks 1 ids.*has 1 others"):
        align([Predictions.read([file], columns) for file in (first, other)])


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
@pytest.mark.parametrize("role", ["id", "sample_weight", "path", "text", "by"])
def test_a_column_with_another_role_holds_no_counts(tmp_path: Path, name: str, role: str) -> None:
    more = {"site": ["x"] * 7} if role == "by" else {}
    file = write(tmp_path / name, {"label": TRUE, "pred": PRED, "n": np.arange(7) + 2, **more})
    columns = Columns(**{role: ("n",) if role == "by" else "n"})
    assert Predictions.read([file], columns).num_samples == 7
    assert Predictions.read([file], Columns(by=("site",) if role == "by" else ())).num_samples == 35


def test_arrays_with_another_role_are_neither_head_nor_names(tmp_path: Path) -> None:
    file = archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED, weight=TRUE + 1.0, names=np.array(list("abcdefg")))
    found = Predictions.read([file], Columns(sample_weight="weight", id="names"))
    assert found.classes == ("0", "1", "2")
    assert found.ids is not None
    assert found.ids.tolist() == list("abcdefg")
    scores = {"label": TRUE, "prob_0": TRUE == 0, "prob_1": TRUE == 1, "prob_2": TRUE == 2, "prob_weight": TRUE + 1.0}
    frame = pl.DataFrame(scores).cast({f"prob_{k}": float for k in range(3)})
    assert Predictions.from_frame(frame, Columns(sample_weight="prob_weight")).confusion.counts.diagonal().sum() == 7


def test_ids_of_different_types_are_matched_as_text(tmp_path: Path) -> None:
    """Numbers sort in another order than text: 0, 1, 2 … against 0, 1, 10, 11 …"""
    rng, ids = np.random.default_rng(0), np.arange(200)
    true = (ids < 2).astype(int)
    pred = np.where(rng.random(200) < 0.7, true, 2)
    columns = {"id": ids, "y_true": true, "y_pred": pred}
    text = write(tmp_path / "a.csv", columns)
    files = [archive(tmp_path / "b.npz", **columns), write(tmp_path / "c.parquet", columns | {"id": ids.astype(float)})]
    pl.DataFrame(columns).with_columns(pl.col("id").cast(pl.String).cast(pl.Categorical)).write_parquet(
        tmp_path / "d.parquet"
    )
    for before, after in ((text, files[0]), (files[0], tmp_path / "d.parquet"), (files[0], files[1])):
        found = compare(before, after, columns=Columns(id="id"))
        assert found.per_class["gained"].sum() == found.per_class["lost"].sum() == 0
    whole = write(tmp_path / "f.parquet", columns)
    assert compare(whole, files[1], columns=Columns(id="id")).per_class["gained"].sum() == 0  # joined by polars
    with pytest.raises(InputError, match=r"lacks 1 ids of the first run and has 1 others \(e.g. 0, x\)"):
        compare(
            files[0], write(tmp_path / "g.csv", columns | {"id": ["x", *ids[1:].astype(str)]}), columns=Columns(id="id")
        )


def test_whole_ids_with_decimals_are_the_same_ids(tmp_path: Path) -> None:
    """pandas writes 7.0 where a column had missing values."""
    rng, true = np.random.default_rng(0), np.arange(30) % 3
    order = rng.permutation(30)
    spellings = [
        [str(k) for k in order],
        [f"{k}.0" for k in order],
        order,
        order.astype(float),
        order.astype(np.uint32),
    ]
    runs = [Predictions.from_arrays(true[order], true[order], ids=np.asarray(ids)) for ids in spellings]
    first = Predictions.from_arrays(true, true, ids=np.arange(30.0))
    for run in runs:
        assert align([first, run])[1].y_true.tolist() == true.tolist()
    for several in ([first, *runs], [first, *runs[2:]]):
        assert all(run.y_true.tolist() == true.tolist() for run in align(several))
    half = Predictions.from_arrays([0, 1], [0, 1], ids=[7.5, 7.0])
    assert align([half, Predictions.from_arrays([1, 0], [1, 0], ids=["7", "7.5"])])[1].y_true.tolist() == [0, 1]
    files = [write(tmp_path / f"{k}.parquet", {"id": ids, "label": true[order], "pred": true[order]})
             for k, ids in enumerate(spellings)]  # fmt: skip
    numbers = write(tmp_path / "a.parquet", {"id": np.arange(30.0), "label": true, "pred": true})
    for file in files:  # joined by polars
        assert compare(numbers, file, columns=Columns(id="id")).per_class["support"].sum() == 30
    other = write(tmp_path / "b.parquet", {"id": ["x", *map(str, range(1, 30))], "label": true, "pred": true})
    with pytest.raises(InputError, match=r"lacks 1 ids of the first run and has 1 others \(e.g. 0, x\)"):
        compare(numbers, other, columns=Columns(id="id"))


def test_a_missing_id_is_refused() -> None:
    import pandas as pd

    for ids in (pd.array(["x", pd.NA]), ["x", None], [1.0, float("nan")], pd.Series([1, None], dtype="Int64")):
        for made in (Predictions.from_arrays, MultiLabelPredictions.from_arrays):
            labels = [0, 1] if made == Predictions.from_arrays else [[0, 1], [1, 1]]
            with pytest.raises(
                InputError, match="ids must have a value for every sample, but that of row 1 is missing"
            ):
                made(labels, labels, ids=ids)


@pytest.mark.parametrize("several", [False, True], ids=["one_label", "multi_label"])
def test_a_missing_id_is_refused_in_files(tmp_path: Path, several: bool) -> None:
    """An id that is nan was accepted in archives and in Parquet files."""
    reader = MultiLabelPredictions.read if several else Predictions.read
    labels = np.array([[0, 1], [1, 1]]) if several else np.array([0, 1])
    columns, ids = Columns(id="id"), [1.0, float("nan")]
    arrays = archive(tmp_path / "a.npz", y_true=labels, y_pred=labels, id=np.array(ids))
    with pytest.raises(
        InputError, match=r"array 'id' in .*a.npz must have a value for every sample, but that of row 1"
    ):
        reader([arrays], columns)
    names = ("true_a", "true_b", "pred_a", "pred_b") if several else ("label", "pred")
    values = [*labels.T, *labels.T] if several else [labels, labels]
    table = write(tmp_path / "a.parquet", {"id": ids, **dict(zip(names, values, strict=True))})
    with pytest.raises(InputError, match="column 'id' has 1 row without a value"):
        reader([table], columns) if several else compare(table, table, columns=columns)
    if not several:
        with pytest.raises(InputError, match="column 'id' has 1 row without a value"):
            Predictions.read([table], columns, rows=True)


def test_what_is_known_of_a_sample_is_a_column(tmp_path: Path) -> None:
    """Ids, paths, texts and slices from arrays, tables and archives, in parts and after take()."""
    names = [f"s{i}" for i in range(7)]
    files = [f"images/{i}.png" for i in range(7)]
    texts: list[str | None] = ["plain", "", None, "=1+1", "ünï", "a,b", "line\nbreak"]
    known = ["" if text is None else text for text in texts]
    sites = np.array([0, 1, 0, 1, 2, 2, 2])
    table = {"y_true": TRUE, "y_pred": PRED, "name": names, "picture": files, "body": texts, "site": sites}
    wanted = Columns(id="name", path="picture", text="body", by=("site",))
    flat = {**table, "body": np.array(known)}
    halves = [archive(tmp_path / f"{i}.npz", **{k: np.array(v)[i::2] for k, v in flat.items()}) for i in (0, 1)]
    order = np.argsort([0, 2, 4, 6, 1, 3, 5])
    for found in (
        Predictions.read(write(tmp_path / "a.parquet", table), wanted),
        Predictions.read(write(tmp_path / "a.csv", table), wanted),
        Predictions.read(halves, wanted).take(order),
        Predictions.from_frame(pl.DataFrame(table), wanted),
        Predictions.from_frame(pl.DataFrame(table).to_pandas(), wanted),
        Predictions.from_arrays(TRUE, PRED, ids=names, paths=files, texts=np.array(texts, object), by={"site": sites}),
    ):
        assert found.has_rows
        assert found.ids is not None
        assert found.paths is not None
        assert found.texts is not None
        assert found.ids.tolist() == names
        assert found.paths.tolist() == files
        assert found.texts.tolist() == known
        assert list(found.by) == ["site"]
        assert found.by["site"].astype(int).tolist() == sites.tolist()
        few = found.take(np.array([4, 0]))
        assert few.texts is not None
        assert few.texts.tolist() == [known[4], known[0]]
    report = audit(pl.DataFrame(table), ids="name", texts="body")
    assert report.samples is not None
    assert report.samples.texts is not None
    assert report.samples.texts.tolist() == known


def test_columns_of_samples_with_missing_values_or_other_encodings(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    texts = pd.Series(["x", None, "z"], dtype="string")
    found = Predictions.from_arrays([0, 1, 1], [0, 1, 1], texts=texts, paths=texts, by={"site": texts})
    for column in (found.texts, found.paths, found.by["site"]):
        assert column.tolist() == ["x", "", "z"]
    with pytest.raises(InputError, match=r"y_true has missing labels \(row 1\)"):
        Predictions.from_arrays(pd.array([True, None, False], dtype="boolean"), [True, True, False])
    file = archive(tmp_path / "a.npz", y_true=[0, 1], y_pred=[0, 1], name=np.array([b"\xff0", b"\xff1"]))
    for columns in (Columns(id="name"), Columns(by=("name",))):
        with pytest.raises(InputError, match=r"array 'name' holds text that is not UTF-8 \(e.g. b'.xff0'\)"):
            Predictions.read([file], columns)


def test_unusable_columns_of_samples(tmp_path: Path) -> None:
    table = {"y_true": TRUE, "y_pred": PRED, "name": [None, *"bcdefg"], "text": PRED}
    with pytest.raises(InputError, match=r"ids must have one entry per sample like y_true, 7, got shape \(3,\)"):
        audit(TRUE, PRED, ids=["a", "b", "c"])
    with pytest.raises(InputError, match="column 'name' has 1 row without a value"):
        Predictions.from_frame(pl.DataFrame(table), Columns(id="name"))
    with pytest.raises(InputError, match="column 'name' has 1 row without a value"):
        Predictions.read(write(tmp_path / "a.parquet", table), Columns(id="name"))
    with pytest.raises(InputError, match="unknown column for --path 'nam'; did you mean 'name'"):
        Predictions.read(tmp_path / "a.parquet", Columns(path="nam"))
    with pytest.raises(InputError, match="the column 'text' cannot define slices under this name"):
        Predictions.read(tmp_path / "a.parquet", Columns(by=("text",)))
    with pytest.raises(InputError, match="by must not hold the name 'id'"):
        Predictions.from_arrays(TRUE, PRED, by={"id": TRUE})
    with pytest.raises(InputError, match=r"ids cannot be combined with a table.*name of its column"):
        audit(pl.DataFrame(table), ids=TRUE)
    short = archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED, picture=np.array(["a"]))
    with pytest.raises(InputError, match=r"array 'picture' in .* must have one entry per sample, 7, got 1"):
        Predictions.read(short, Columns(path="picture"))
