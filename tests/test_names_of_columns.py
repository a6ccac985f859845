"""Counts, scores and columns are read by their names and roles, not by their position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from classgap import Columns, Predictions, audit, compare
from classgap.checks import InputError
from test_tables import COUNTS, NAMES, PRED, TRUE, confusion, write


def test_a_series_is_read_by_the_names_in_its_index() -> None:
    import pandas as pd

    counts = pd.Series(list("ccccccbbba")).value_counts()  # sorted by count, not by name
    letters = np.array(list("abc"))
    found = Predictions.from_arrays(letters[TRUE], letters[PRED], train_counts=counts)
    assert np.asarray(found.train_counts).tolist() == [1, 3, 6]
    codes = pd.Series([2] * 6 + [1] * 3 + [0]).value_counts()
    assert np.asarray(Predictions.from_arrays(TRUE, PRED, train_counts=codes).train_counts).tolist() == [1, 3, 6]
    by_place = Predictions.from_arrays(letters[TRUE], letters[PRED], train_counts=pd.Series([6, 3, 1]))
    assert np.asarray(by_place.train_counts).tolist() == [6, 3, 1]
    with pytest.raises(InputError, match="must name every class, but 1 of 3 are missing"):
        Predictions.from_arrays(letters[TRUE], letters[PRED], train_counts=counts.drop("a"))
    before, after = (audit(letters[TRUE], letters[y], n_boot=100) for y in (PRED, TRUE))
    ranks = pd.Series([1, 2, 3], index=list("bca"))
    expected = compare(before, after, reference=[3, 1, 2])
    assert repr(compare(before, after, reference=ranks).groups) == repr(expected.groups)
    with pytest.raises(
        InputError, match=r"index of reference must hold every class once \('a', 'b', 'c'\), got 'b', 'c', 'x'"
    ):
        audit(letters[TRUE], letters[PRED], reference=ranks.rename({"a": "x"}))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_of_scores_is_read_by_its_columns(library: str) -> None:
    frame = pl.DataFrame({name: 1.0 * (k == PRED) for k, name in enumerate("abc")})
    other = frame.select("c", "a", "b")
    table, turned = (frame.to_pandas(), other.to_pandas()) if library == "pandas" else (frame, other)
    letters = np.array(list("abc"))
    for scores in (table, turned):
        for names in (None, list("abc")):
            found = Predictions.from_arrays(letters[TRUE], scores=scores, class_names=names)
            assert np.array(found.classes)[found.y_pred].tolist() == letters[PRED].tolist()
    with pytest.raises(InputError, match="the columns of scores must hold every class once"):
        Predictions.from_arrays(letters[TRUE], scores=turned, class_names=["a", "b", "d"])
    free = (
        turned.rename(columns=dict(zip("cab", "xyz", strict=True))) if library == "pandas" else other.rename(str.upper)
    )
    assert (
        Predictions.from_arrays(TRUE, scores=free).y_pred.tolist() == ((PRED + 1) % 3).tolist()
    )  # no class has such a name


def test_numbers_as_columns_are_names_of_the_classes() -> None:
    import pandas as pd

    scores = pd.DataFrame({k: 1.0 * (k == PRED + 1) for k in (3, 1, 2)})
    found = Predictions.from_arrays(TRUE + 1, scores=scores)
    assert np.array(found.classes)[found.y_pred].tolist() == [str(k + 1) for k in PRED]


def test_counts_of_a_cross_table_are_read_by_name() -> None:
    import pandas as pd

    letters = np.array(list("abc"))
    table = pd.crosstab(letters[TRUE], letters[PRED])
    assert Predictions.from_counts(table).classes == ("a", "b", "c")
    assert confusion(Predictions.from_counts(table.loc[["c", "a", "b"]], ["a", "b", "c"])) == COUNTS
    with pytest.raises(InputError, match="rows and columns of counts must both be the classes"):
        Predictions.from_counts(table.drop(columns="c"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "polars", "pandas", "npz"])
def test_columns_with_another_role_are_no_scores(kind: str, tmp_path: Path) -> None:
    scores = {f"logit_{name}": 4.0 * (k == PRED) for k, name in enumerate(NAMES)}
    true, bins = np.array(NAMES)[TRUE], TRUE % 2
    if kind == "npz":
        np.savez(tmp_path / "a.npz", label=TRUE, y_pred=PRED, scores=bins)
        found = Predictions.read(tmp_path / "a.npz", Columns(by=("scores",)))
        assert found.scores is None
        assert found.columns["scores"].tolist() == bins.tolist()
        return
    for role, columns, options in (
        ("by", {"label": true, **scores, "logit_bin": bins}, Columns(by=("logit_bin",))),
        ("by", {"label": true, **scores, "logit_bin": bins}, Columns(scores="logit_", by=("logit_bin",))),
        ("true", {**scores, "logit_true": true}, Columns(true="logit_true")),
        ("pred", {"label": true, **scores, "logit_pred": np.array(NAMES)[PRED]}, Columns(pred="logit_pred")),
    ):
        if kind in ("csv", "parquet"):
            found = Predictions.read(write(tmp_path / f"{role}.{kind}", columns), options)
        else:
            table = pl.DataFrame(columns)
            found = Predictions.from_frame(table.to_pandas() if kind == "pandas" else table, options)
        assert found.classes == tuple(NAMES)
        assert confusion(found) == COUNTS
    numbered = {"label": TRUE, **{f"score_{k}": 1.0 * (k == PRED) for k in range(3)}, "score_band": bins}
    if kind == "csv":
        assert confusion(Predictions.read(write(tmp_path / "n.csv", numbered), Columns(by=("score_band",)))) == COUNTS


def test_training_counts_are_named_as_the_labels_are(tmp_path: Path) -> None:
    import pandas as pd

    train, wanted = pd.Series([0] + [1] * 3 + [2] * 5), [1, 3, 5]
    counts = train.value_counts()
    by_frame = train.to_frame("label").value_counts()
    floats = train.astype(float).value_counts()
    for given in (counts, by_frame, by_frame.sort_index(), floats, counts.to_dict()):
        for names in (None, ["a", "b", "c"], ["2", "0", "1"], ["1", "2", "3"]):
            found = Predictions.from_arrays(TRUE, PRED, class_names=names, train_counts=given)
            assert found.train_counts.tolist() == wanted
        assert Predictions.from_arrays(TRUE * 1.0, PRED * 1.0, train_counts=given).train_counts.tolist() == wanted
    file = write(tmp_path / "a.parquet", {"label": TRUE, "pred": PRED})
    np.savez(tmp_path / "a.npz", label=TRUE, pred=PRED)
    for path in (file, tmp_path / "a.npz"):
        found = Predictions.read(path, class_names=["2", "0", "1"], train_counts=counts)
        assert found.train_counts.tolist() == wanted
    with pytest.raises(InputError, match="must name every class, but 1 of 3 are missing"):
        Predictions.from_arrays(TRUE + 1, PRED + 1, train_counts=counts)
    texts = np.array(["1.5", "2.0", "3.0"])  # names as they are written
    by_text = pd.Series([5, 3, 1], index=[3.0, 2.0, 1.5])
    assert Predictions.from_arrays(texts[TRUE], texts[PRED], train_counts=by_text).train_counts.tolist() == wanted


def test_a_reference_may_have_numbers_as_names() -> None:
    import pandas as pd

    given = pd.Series([0.3, 0.9, 0.5], index=[2.0, 0.0, 1.0])
    assert audit(TRUE, PRED, reference=given).to_dict() == audit(TRUE, PRED, reference=[0.9, 0.5, 0.3]).to_dict()


def test_sums_in_a_cross_table_are_no_class() -> None:
    import pandas as pd

    letters = np.array(list("abc"))
    with pytest.raises(InputError, match=r"'Sum' holds the sums of the others; .*margins=False"):
        Predictions.from_counts(pd.crosstab(letters[TRUE], letters[PRED], margins=True, margins_name="Sum"))
    with pytest.raises(InputError, match="'All' holds the sums"):
        Predictions.from_counts(pd.crosstab(letters[:1], letters[:1], margins=True))
    equal = pd.DataFrame([[5, 5], [5, 5]], index=["a", "b"], columns=["a", "b"])
    assert Predictions.from_counts(equal).num_samples == 20


def test_tables_of_many_classes_are_read_by_name() -> None:
    import pandas as pd

    names = [f"c{k}" for k in range(3000)]
    table = pd.DataFrame(np.eye(3000, dtype=int), index=names, columns=names)
    found = Predictions.from_counts(table.iloc[::-1], names)
    assert found.confusion.correct.sum() == 3000


@pytest.mark.parametrize("names", [["True", "False"], ["false", "true"]])
def test_booleans_are_the_classes_true_and_false(names: list[str], tmp_path: Path) -> None:
    truth, said = np.array([True, True, True, False]), np.array([True, True, False, False])
    scores = {f"p_{name}": np.where(said == (name.lower() == "true"), 0.8, 0.2) for name in names}
    table = pl.DataFrame({"label": truth, **scores})
    table.write_parquet(tmp_path / "p.parquet")
    for found in (
        audit(str(tmp_path / "p.parquet"), columns=Columns(scores="p_")),
        audit(table, columns=Columns(scores="p_")),
        audit(truth, scores=np.column_stack(list(scores.values())), class_names=names),
    ):
        support = dict(zip(found.classes, found.per_class["support"].tolist(), strict=True))
        assert {name.lower(): count for name, count in support.items()} == {"true": 3, "false": 1}
        assert found.overall.value == 0.75
    with_other_names = audit(truth, said, class_names=["no", "yes"])  # False is 0, True is 1
    assert with_other_names.per_class["support"].tolist() == [1, 3]


@pytest.mark.parametrize("names", [["2.0", "0.0", "1.0"], ["25.0", "7.0", "1.0"], ["-1.0", "1.0", "0.0"]])
@pytest.mark.parametrize("stored", [float, int, str])
def test_labels_are_the_names_of_score_columns_with_decimals(names: list[str], stored: type) -> None:
    truth = [0, 0, 0, 1, 2]
    labels = pl.Series([stored(float(names[k])) for k in truth])
    table = pl.DataFrame(
        {"label": labels, **{f"p_{name}": 1.0 * (np.array(truth) == k) for k, name in enumerate(names)}}
    )
    found = audit(table, columns=Columns(scores="p_"))
    assert found.classes == tuple(names)
    assert found.per_class["support"].tolist() == [3, 1, 1]
    assert found.overall.value == 1


def test_many_codes_with_zeros_in_front_are_classes() -> None:
    codes = [f"{k:04d}" for k in range(60)]
    assert audit(codes, codes).classes == tuple(codes)


@pytest.mark.parametrize("kind", [int, float])
def test_training_counts_follow_the_names_of_shuffled_score_columns(kind: type) -> None:
    import pandas as pd

    y = np.repeat([0, 1, 2], [30, 20, 10]).astype(kind)
    scores = pd.DataFrame({kind(k): 1.0 * (y == k) for k in (2, 0, 1)})
    table = pd.DataFrame({"label": y, **{f"p_{name}": column for name, column in scores.items()}})
    counts = pd.Series(y).value_counts()  # its index is 0, 1, 2
    for given in (counts, counts[::-1], counts.to_dict(), {0: 30, 1: 20, 2: 10}):
        for found in (
            audit(y, scores=scores, train_counts=given),
            audit(table, columns=Columns(scores="p_"), train_counts=given),
        ):
            assert found.per_class["train_count"].tolist() == found.per_class["support"].tolist()
    in_class_order = audit(y, scores=scores, train_counts=pd.Series([5, 6, 7]))
    assert in_class_order.per_class["train_count"].tolist() == [5, 6, 7]
