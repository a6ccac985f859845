"""Reading prediction files: what comes out equals what went in, and what cannot be read gets one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from classgap import Columns, MultiLabelPredictions, Predictions, audit, compare
from classgap.checks import InputError
from classgap.predictions import align, read_names, read_train_counts
from classgap.predictions.files import count_two

NAMES = ["ant", "bee", "cat"]
TRUE = np.array([0, 0, 1, 1, 2, 2, 2])
PRED = np.array([0, 1, 1, 1, 2, 0, 2])
COUNTS = [[1, 1, 0], [0, 2, 0], [1, 0, 2]]


def confusion(found: Predictions) -> list[list[int]]:
    return found.confusion.counts.tolist()


def write(path: Path, columns: dict[str, Any]) -> Path:
    frame = pl.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


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


def test_folder_and_several_files_are_parts(tmp_path: Path) -> None:
    for i, part in enumerate((slice(0, 3), slice(3, 7))):
        write(tmp_path / f"part-{i}.parquet", {"y_true": TRUE[part], "y_pred": PRED[part]})
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").touch()
    assert confusion(Predictions.read([tmp_path])) == COUNTS
    assert confusion(Predictions.read(sorted(tmp_path.glob("part-*")))) == COUNTS
    for hidden in (".ipynb_checkpoints", "_temporary/0"):  # copies, which counted twice
        (tmp_path / hidden).mkdir(parents=True)
        write(tmp_path / hidden / "part-0.parquet", {"y_true": TRUE, "y_pred": PRED})
    assert confusion(Predictions.read([tmp_path])) == COUNTS


def test_linked_folders_are_parts(tmp_path: Path) -> None:
    """Their samples were left out silently."""
    for folder, part in (("here/site=1", slice(0, 3)), ("there", slice(3, 7))):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / "a.parquet", {"y_true": TRUE[part], "y_pred": PRED[part]})
    here = tmp_path / "here"
    for name, target in (("site=2", "there"), ("latest", "here/site=1"), ("site=1/up", "here")):
        (here / name).symlink_to(tmp_path / target)  # the last two lead to folders that are read anyway
    assert confusion(Predictions.read([here])) == COUNTS
    assert Predictions.read([here], Columns(by=("site",))).slice_counts()["site"].names == ("1", "2")


def test_a_file_counts_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {"label": TRUE, "pred": PRED})
    for given in ([file, file], [str(file), tmp_path / ".." / tmp_path.name / "a.csv"], [tmp_path, file]):
        with pytest.raises(InputError, match=r"a\.csv is given twice.*its samples would count twice"):
            Predictions.read(given)
    (tmp_path / "b.csv").symlink_to(file)
    with pytest.raises(InputError, match=r"b\.csv is given twice \(.*a\.csv is the same file\)"):
        Predictions.read([tmp_path])


def test_files_that_were_joined_with_their_headers_are_refused(tmp_path: Path) -> None:
    """The second header was a sample of a class named "label"."""
    text = "label,pred\n" + "".join(f"{k % 3},{k % 2}\n" for k in range(9))
    (tmp_path / "a.csv").write_text(text * 2)
    for rows in (False, True):
        with pytest.raises(InputError, match=r"a row of the table is its header again \(label, pred\)"):
            Predictions.read([tmp_path / "a.csv"], rows=rows)
    with pytest.raises(InputError, match="is its header again"):
        compare(tmp_path / "a.csv", tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(text + "label,0\n")  # a class of this name, say
    assert Predictions.read([tmp_path / "a.csv"]).num_samples == 10


@pytest.mark.parametrize("text", ["nan", "NA", "<NA>", "N/A", "None"])
def test_a_missing_label_among_numbers_is_refused(tmp_path: Path, text: str) -> None:
    """NA, as R writes it, was a class."""
    (tmp_path / "a.csv").write_text(f"label,pred\n0,0\n1,1\n{text},1\n")
    with pytest.raises(InputError, match=f"column 'label' has rows without a label \\('{text}' among numbers\\)"):
        Predictions.read([tmp_path / "a.csv"])


def test_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "b.csv").hardlink_to(write(tmp_path / "a.csv", {"label": TRUE, "pred": PRED}))
    (tmp_path / "c").mkdir()
    write(tmp_path / "c" / "c.csv", {"label": TRUE, "pred": PRED})
    assert Predictions.read([tmp_path / "a.csv", tmp_path / "c"]).num_samples == 14
    with pytest.raises(InputError, match=r"b\.csv is given twice \(.*a\.csv is the same file\)"):
        Predictions.read([tmp_path])


def test_partitions_are_text(tmp_path: Path) -> None:
    for site, count in (("01", 2), ("02", 3), ("1", 4)):
        (tmp_path / f"site={site}").mkdir()
        write(tmp_path / f"site={site}" / "a.parquet", {"label": [0, 1] * count, "pred": [0, 1] * count})
    found = Predictions.read([tmp_path], Columns(by=("site",)))
    assert found.counted_by["site"].names == ("01", "02", "1")


def test_some_files_may_be_in_no_partition(tmp_path: Path) -> None:
    for folder in ("other", "site=1", "site=1/day=2", "zone"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.parquet", {"label": TRUE, "pred": PRED})
    assert Predictions.read([tmp_path]).num_samples == 28
    assert Predictions.read([tmp_path], rows=True).y_pred.tolist() == [*PRED] * 4
    found = Predictions.read([tmp_path], Columns(by=("site",)))
    assert found.counted_by["site"].names == ("(missing)", "1")


def test_partitions_may_hold_counts(tmp_path: Path) -> None:
    for count in ("2", "5"):
        (tmp_path / f"n={count}").mkdir()
        write(tmp_path / f"n={count}" / "a.parquet", {"label": TRUE, "pred": PRED})
    for columns in (Columns(), Columns(count="n")):
        assert Predictions.read([tmp_path], columns).num_samples == 49
    (tmp_path / "n=5").rename(tmp_path / "n=many")
    with pytest.raises(InputError, match="column 'n' must hold whole numbers"):
        Predictions.read([tmp_path])


def test_streaming_equals_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    true, pred = rng.integers(0, 30, (2, 5000))
    file = write(tmp_path / "p.parquet", {"y_true": true, "y_pred": pred})
    assert confusion(Predictions.read([file])) == confusion(Predictions.read([file], rows=True))


def test_scores_as_columns_list_or_prefix(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(7, 12))
    numbered = {f"score_{k}": scores[:, k] for k in (11, *range(11))}
    found = Predictions.read([write(tmp_path / "a.csv", {"label": TRUE, **numbered})])
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, scores)
    np.testing.assert_array_equal(found.y_pred, scores.argmax(1))
    assert len(found.classes) == 12
    listed = write(tmp_path / "b.parquet", {"label": TRUE, "logits": scores.tolist()})
    np.testing.assert_array_equal(Predictions.read([listed]).scores, scores)
    arrays = pl.DataFrame({"label": TRUE, "out": pl.Series(scores)})
    arrays.write_parquet(tmp_path / "c.parquet")
    np.testing.assert_array_equal(Predictions.read([tmp_path / "c.parquet"], Columns(scores="out")).scores, scores)
    named = {f"p_{name}": scores[:, k] for k, name in enumerate(NAMES)}
    file = write(tmp_path / "d.csv", {"label": np.array(NAMES)[TRUE], **named})
    found = Predictions.read([file], Columns(scores="p_"))
    assert found.classes == tuple(NAMES)
    assert found.y_true is not None
    assert found.y_true.tolist() == TRUE.tolist()


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


def archive(path: Path, **arrays: Any) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        names = arrays.pop("class_names", None)
        metadata = None if names is None else {"class_names": json.dumps(list(names))}
        save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path, metadata=metadata)
    return path


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_archives(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(2)
    arrays = {
        "y_true": TRUE, "logits": rng.normal(size=(7, 3)), "features": rng.normal(size=(7, 4)).astype(np.float32),
        "weight": rng.normal(size=(3, 4)), "bias": np.zeros(3), "train_counts": np.array([5, 6, 7]),
        "class_names": np.array(NAMES),
    }  # fmt: skip
    found = Predictions.read([archive(tmp_path / f"a.{ending}", **arrays)])
    assert found.classes == tuple(NAMES)
    assert found.train_counts is not None
    assert found.train_counts.tolist() == [5, 6, 7]
    for ours, theirs in ((found.scores, "logits"), (found.features, "features"), (found.weight, "weight")):
        np.testing.assert_array_equal(ours, arrays[theirs])
    twice = Predictions.read([tmp_path / f"a.{ending}", archive(tmp_path / f"b.{ending}", **arrays)])
    assert twice.num_samples == 14
    assert twice.weight is not None
    assert twice.weight.shape == (3, 4)


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.25]], dtype=np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = {
        "y_true": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        "scores": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [16, 24]},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + np.array([1, 0], dtype="<i8").tobytes() + raw
    (tmp_path / "b.safetensors").write_bytes(data)
    np.testing.assert_array_equal(Predictions.read([tmp_path / "b.safetensors"]).scores, values)


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


def test_semicolons_and_late_names(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("target;pred\n" + "1;1\n" * 20_000 + "owl;1\n", encoding="utf-8")
    assert Predictions.read([file]).classes == ("1", "owl")


def test_late_decimals_are_numbers(tmp_path: Path) -> None:
    """Columns that are whole numbers in the first 10 000 rows were read as whole numbers."""
    file = tmp_path / "a.csv"
    file.write_text("label,prob,w\n" + "0,0,1\n" * 10_001 + "1,0.75,0.5\n", encoding="utf-8")
    found = Predictions.read([file], Columns(sample_weight="w"))
    assert found.scores[-1].tolist() == [0.25, 0.75]
    assert found.sample_weight[-1] == 0.5
    assert Predictions.read([file], Columns(scores="prob")).y_pred[-1] == 1
    file.write_text("label,pred,n\n" + "0,0,1\n" * 10_001 + "1,1,0.5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"column 'n' of .* must hold whole numbers, got '0.5'"):
        Predictions.read([file])


def test_separators_in_quotes_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('label;pred;"a,b,c,d"\n1;1;x\n2;2;y\n', encoding="utf-8")
    assert Predictions.read([file]).classes == ("1", "2")


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


@pytest.mark.parametrize("names", [["2", "0", "1"], ["1", "2", "3"], ["0", "1", "2"], NAMES])
def test_audit_keeps_positions_whatever_the_names(tmp_path: Path, names: list[str]) -> None:
    file = archive(tmp_path / "a.npz", y_true=np.array(names)[TRUE], y_pred=np.array(names)[PRED])
    for rows in (file, write(tmp_path / "a.csv", {"y_true": np.array(names)[TRUE], "y_pred": np.array(names)[PRED]})):
        report = audit(Predictions.read([rows], class_names=names))
        assert report.classes == tuple(names)
        assert report.confusion.counts.tolist() == COUNTS


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


def test_frames_equal_arrays() -> None:
    columns = {
        "label": np.array(NAMES)[TRUE],
        "prediction": np.array(NAMES)[PRED],
        "emb_0": TRUE / 3,
        "emb_1": PRED / 7,
    }
    expected = Predictions.from_arrays(columns["label"], columns["prediction"])
    import pandas as pd
    import pyarrow as pa

    for frame in (pl.DataFrame(columns), pd.DataFrame(columns), pa.table(columns)):
        found = Predictions.from_frame(frame)
        assert found.classes == expected.classes
        assert confusion(found) == confusion(expected)
        np.testing.assert_allclose(found.features, np.stack([TRUE / 3, PRED / 7], 1))
        assert audit(frame).overall == audit(expected).overall
    with pytest.raises(InputError, match="no column has a usual name for true labels"):
        Predictions.from_frame(pl.DataFrame({"a": [1]}))
    with pytest.raises(InputError, match="scores cannot be combined with a table"):
        audit(pl.DataFrame(columns), scores=np.eye(7))


def test_a_path_is_enough(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {"y_true": TRUE, "y_pred": PRED})
    assert audit(file).confusion.counts.tolist() == COUNTS
    assert audit(str(file)).samples is not None
    with pytest.raises(InputError, match="y_pred cannot be combined with Predictions"):
        audit(Predictions.read(file), PRED)
    with pytest.raises(InputError, match="expected the path of a prediction file"):
        audit("")


def test_parts_must_agree(tmp_path: Path) -> None:
    first = archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED, class_names=np.array(NAMES))
    other = archive(tmp_path / "b.npz", y_true=TRUE, y_pred=PRED, class_names=np.array(NAMES[::-1]))
    with pytest.raises(InputError, match="class_names differs between"):
        Predictions.read([first, other])


def test_scores_from_a_head_in_small_integers(tmp_path: Path) -> None:
    """int8 features times an int8 weight would wrap."""
    features, weight = np.array([[100, 0], [0, 100]], np.int8), np.array([[100, 0], [0, 100]], np.int8)
    found = Predictions.read([archive(tmp_path / "a.npz", y_true=np.arange(2), features=features, weight=weight)])
    assert found.scores.tolist() == [[1e4, 0.0], [0.0, 1e4]]  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"'bias' .* must hold one number per class"):
        Predictions.read(
            [archive(tmp_path / "b.npz", y_true=np.arange(2), features=features, weight=weight, bias=np.zeros((2, 2)))]
        )


def test_streamed_comparison(tmp_path: Path) -> None:
    before = write(tmp_path / "a.parquet", {"y_true": TRUE, "y_pred": PRED})
    after = write(tmp_path / "b.csv", {"label": TRUE, "prediction": TRUE})
    assert count_two(before, after, Columns()) is not None
    found = compare(before, after)
    assert found.per_class["gained"].tolist() == [1, 0, 1]
    assert found.per_class["lost"].tolist() == [0, 0, 0]
    scored = write(tmp_path / "s.csv", {"y_true": TRUE, "score_0": PRED, "score_1": PRED, "score_2": PRED})
    assert count_two(before, scored, Columns()) is None
    assert count_two(archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED), after, Columns()) is None
    short = write(tmp_path / "short.csv", {"y_true": TRUE[:5], "y_pred": PRED[:5]})
    with pytest.raises(InputError, match="before has 7 rows but after has 5"):
        count_two(before, short, Columns())
    moved = write(tmp_path / "moved.csv", {"y_true": TRUE[::-1], "y_pred": PRED})
    with pytest.raises(InputError, match="differ in 6 of 7 rows"):
        count_two(before, moved, Columns())


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


# ---------------------------------------------------------------- pandas objects that name the classes
