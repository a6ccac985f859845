"""Texts with labels, and folders that the library datasets wrote, as data of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from classgap.checks import InputError
from classgap.data import Expected, FileOptions, Texts, load_data, load_source, open_samples
from image_files import NEEDS_TORCHVISION, truncate

ROWS = [(f"{word} number {i}, please", word) for i in range(10) for word in ("card", "loan")]


def encode(texts: list[str]) -> torch.Tensor:
    """Token numbers and mask of length 6: a tokeniser as simple as can be."""
    rows = torch.zeros(len(texts), 2, 6, dtype=torch.long)
    for row, text in enumerate(texts):
        tokens = [len(word) for word in text.split()][:6]
        rows[row, 0, : len(tokens)] = torch.tensor(tokens)
        rows[row, 1, : len(tokens)] = 1
    return rows


def _csv(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text,category\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
    return path


def test_texts_of_a_table_reach_the_network_encoded(tmp_path: Path) -> None:
    table = _csv(tmp_path / "questions.csv", ROWS)
    data = load_data(str(table), encode=encode, val_fraction=0.2)
    assert data.class_names == ("card", "loan")
    assert data.in_shape == (2, 6)
    assert [len(split or ()) for split in (data.train, data.val, data.test)] == [12, 4, 4]
    texts = data.train.origin
    assert isinstance(texts, Texts)
    assert torch.equal(torch.as_tensor(data.train.x), encode(texts.strings))
    assert [text.split()[0] for text in texts.strings] == [data.class_names[k] for k in data.train.y]
    everyone = [*texts.ids, *(data.val.ids or ()), *(data.test.ids or ())] if data.val else []
    assert sorted(map(int, everyone)) == list(range(20))


def test_a_table_for_each_part(tmp_path: Path) -> None:
    _csv(tmp_path / "train.csv", ROWS[:14])
    _csv(tmp_path / "test.csv", ROWS[14:])
    source = load_source(str(tmp_path))
    assert (len(source.y_train), len(source.y_test), source.content) == (14, 6, "texts")
    assert source.x_test.strings[0] == ROWS[14][0]  # type: ignore[union-attr]
    _csv(tmp_path / "training.csv", ROWS)
    with pytest.raises(InputError, match=r"several tables for one part \(train.csv, training.csv\)"):
        load_source(str(tmp_path))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_name_of_a_table_is_no_pattern(tmp_path: Path, ending: str) -> None:
    """The other file was read, without a word."""
    for name, rows in (("a[1]", ROWS), ("a1", ROWS[:4])):
        table = _csv(tmp_path / f"{name}.csv", rows)
        pl.read_csv(table, glob=False).write_parquet(tmp_path / f"{name}.parquet")
    assert len(load_data(f"{tmp_path}/a[1].{ending}", encode=encode, val_fraction=0.2).train) == 12


def test_predicting_on_texts(tmp_path: Path) -> None:
    table = _csv(tmp_path / "questions.csv", ROWS)
    expected = Expected(("card", "loan"), (2, 6), FileOptions(), encode)
    named = open_samples(str(table), None, "all", expected)
    assert named.labels is not None
    assert named.labels.tolist() == [0, 1] * 10
    given = open_samples([text for text, _ in ROWS], [label for _, label in ROWS], None, expected)
    for found in (named, given):
        (x,) = found.split.read([torch.arange(20)])
        assert torch.equal(x, encode([text for text, _ in ROWS]))
    images = Expected(("card", "loan"), (3, 8, 8), FileOptions())
    with pytest.raises(InputError, match="holds texts, but the network was trained on samples of shape"):
        open_samples(str(table), None, None, images)
    with pytest.raises(InputError, match="list of texts, but the network was not trained on texts"):
        open_samples(["a"], None, None, images)


def test_texts_without_a_text_model_and_a_wrong_tokeniser_are_refused(tmp_path: Path) -> None:
    table = str(_csv(tmp_path / "questions.csv", ROWS))
    with pytest.raises(InputError, match="holds texts, but the model takes images or vectors; choose a text model"):
        load_data(table)
    with pytest.raises(InputError, match=r"data.augment=flip needs images, but .* holds texts"):
        load_data(table, augment=["flip"])
    with pytest.raises(InputError, match="one row for each of 1 texts, got a tensor of shape"):
        load_data(table, encode=lambda texts: torch.zeros(3, 4))
    empty = _csv(tmp_path / "empty.csv", [("", "card"), *ROWS])
    with pytest.raises(InputError, match="column text is empty in row 1"):
        load_source(str(empty))


def test_banking77(shared_data: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").symlink_to(shared_data / f"banking77_{part}.csv")
    data = load_data(str(tmp_path), encode=encode)
    assert (data.num_classes, len(data.test)) == (77, 3080)
    assert data.val is not None
    assert len(data.train) + len(data.val) == 10003


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Any:
    """A saved data set of images with a training and a test part; the order of its classes is not alphabetical."""
    datasets = pytest.importorskip("datasets", reason="needs the library datasets")
    rng = np.random.default_rng(0)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ant", "cow"])}
    )

    def part(count: int) -> Any:
        images = [rng.integers(0, 255, (10, 12, 3), dtype=np.uint8) for _ in range(3 * count)]
        rows = {"image": images, "label": [k % 3 for k in range(3 * count)]}
        return datasets.Dataset.from_dict(rows, features=features)

    saved = datasets.DatasetDict({"train": part(6), "test": part(2)})
    saved.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved", saved


@NEEDS_TORCHVISION
def test_a_saved_data_set_of_images(pictures: Any) -> None:
    from torchvision.transforms.v2 import functional as F

    folder, saved = pictures
    for memory in (1000, 0):
        data = load_data(str(folder), val_fraction=0, workers=0, memory=memory)
        assert data.class_names == ("zebra", "ant", "cow")
        assert data.train.y.tolist() == saved["train"]["label"]
        (x,) = data.test.read([torch.arange(6)])
        assert torch.equal(x, torch.stack([F.pil_to_tensor(row["image"]) for row in saved["test"]]))
        assert data.test.ids == [f"test/{row}" for row in range(6)]
    assert load_data(str(folder), size=8, val_fraction=0, workers=2, memory=0).in_shape == (3, 8, 8)


@NEEDS_TORCHVISION
def test_a_single_saved_set_is_divided_and_a_damaged_one_named(pictures: Any, tmp_path: Path) -> None:
    folder, saved = pictures
    saved["train"].save_to_disk(str(tmp_path / "one"))
    data = load_data(str(tmp_path / "one"), val_fraction=0, workers=0)
    assert torch.bincount(data.test.y).tolist() == [1, 1, 1]
    saved["train"].remove_columns("label").save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(InputError, match=r"has no column of labels; wanted is one called label or .*, it has image"):
        load_source(str(tmp_path / "bare"))
    truncate(next((folder / "train").glob("*.arrow")))
    with pytest.raises(InputError, match=r"cannot be read as a saved data set \(.*\); save it again"):
        load_source(str(folder))


def test_a_saved_data_set_of_texts(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the library datasets")
    texts, labels = zip(*ROWS, strict=True)
    datasets.Dataset.from_dict({"text": texts, "label": labels}).save_to_disk(str(tmp_path / "saved"))
    data = load_data(str(tmp_path / "saved"), encode=encode, val_fraction=0)
    assert (data.class_names, data.in_shape, len(data.test)) == (("card", "loan"), (2, 6), 4)
