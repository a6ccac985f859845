"""Predictions in several files, in folders and in partitions are read as one table, and no file is read twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classgap import Columns, Predictions, compare
from classgap.checks import InputError
from table_files import COUNTS, NAMES, PRED, TRUE, archive, confusion, write


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


def test_parts_must_agree(tmp_path: Path) -> None:
    first = archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED, class_names=np.array(NAMES))
    other = archive(tmp_path / "b.npz", y_true=TRUE, y_pred=PRED, class_names=np.array(NAMES[::-1]))
    with pytest.raises(InputError, match="class_names differs between"):
        Predictions.read([first, other])
