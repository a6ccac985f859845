"""A user's own data by path: folders, tables, list files, archives, torch data sets; and what is said about bad ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from classgap.checks import InputError
from classgap.data import Split, load_data, load_source
from classgap.data.python_sets import dataset_labels
from image_files import NEEDS_TORCHVISION, truncate, write_folder, write_image

pytestmark = NEEDS_TORCHVISION


def _names(split: Split | None) -> list[str]:
    assert split is not None
    assert split.ids is not None
    return split.ids


def test_a_folder_with_parts_is_what_torchvision_reads(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.v2 import functional as F

    root = write_folder(tmp_path / "photos")
    data = load_data(str(root), val_fraction=0, workers=0)
    for part, split in (("train", data.train), ("test", data.test)):
        theirs = ImageFolder(str(root / part))
        assert data.class_names == tuple(theirs.classes)
        assert split.y.tolist() == theirs.targets
        assert torch.equal(torch.as_tensor(split.x), torch.stack([F.pil_to_tensor(image) for image, _ in theirs]))
        assert _names(split) == [str(Path(path).relative_to(root)) for path, _ in theirs.samples]
    assert (data.in_shape, data.augment) == ((3, 12, 12), ())
    assert data.mean == (0.485, 0.456, 0.406)


def test_size_is_resize_and_centre_crop_as_in_torchvision(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    root = write_folder(tmp_path, {"train": 2, "val": 1}, size=(31, 20), suffix=".jpg")
    with pytest.raises(InputError, match=r"data\.resize=8 must not be less than data\.size=10"):
        load_data(str(root), size=10, resize=8, val_fraction=0, workers=0)
    for resize in (None, 16):
        data = load_data(str(root), size=10, resize=resize, val_fraction=0, workers=0)
        same = v2.Compose([v2.PILToTensor(), v2.Resize(resize or 10, antialias=True), v2.CenterCrop(10)])
        theirs = [image for image, _ in ImageFolder(str(root / "val"), same)]
        assert torch.equal(torch.as_tensor(data.test.x), torch.stack(theirs))  # val without test is the test set


def test_a_validation_part_of_its_own(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": 6, "val": 2, "test": 3})
    data = load_data(str(root), workers=0)
    assert [len(split or ()) for split in (data.train, data.val, data.test)] == [18, 6, 9]
    assert {name.partition("/")[0] for name in _names(data.val)} == {"val"}


def test_one_level_is_divided_by_name_and_stays_so(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", {"": 20})
    first = load_data(str(root), workers=0)
    assert torch.bincount(first.test.y).tolist() == [4, 4, 4]
    assert load_data(str(root), seed=3, workers=0).test.ids == first.test.ids  # the test set depends on the names alone
    everyone = [*_names(first.train), *_names(first.val), *_names(first.test)]
    assert len(everyone) == len(set(everyone)) == 60
    for i in range(5):
        write_image(root / "ant" / f"new{i}.png", i)
    moved = set(_names(load_data(str(root), workers=0).test)) ^ set(_names(first.test))
    assert len(moved) <= 3  # of 65: some of the new ones, or what they displaced
    half = load_data(str(root), test_fraction=0.5, workers=0)
    assert (len(half.test), half.notes) == (32, ())
    with pytest.raises(InputError, match=r"data\.test_fraction=0\.999 would put all of them into the test set"):
        load_data(str(root), test_fraction=0.999, workers=0)


def test_folders_that_links_lead_to_again_are_read_once(tmp_path: Path) -> None:
    """A link to its own folder gave every image forty times."""
    root = write_folder(tmp_path / "a", {"": 6})
    before = load_data(str(root), workers=0)
    (root / "ant" / "again").symlink_to(root / "ant")
    (root / "bee" / "up").symlink_to(root / "bee", target_is_directory=True)
    (tmp_path / "more").mkdir()
    write_image(tmp_path / "more" / "new.png", 3)
    (root / "ant" / "more").symlink_to(tmp_path / "more")
    after = load_data(str(root), workers=0)
    assert (
        len(after.train) + len(after.val) + len(after.test)
        == len(before.train) + len(before.val) + len(before.test) + 1
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", {"": 6})
    (root / "ant" / "closed").mkdir()
    (root / "ant" / "closed").chmod(0)
    with pytest.raises(PermissionError):
        load_data(str(root), workers=0)
    (root / "ant" / "closed").chmod(0o700)


def test_tables_and_lists_name_the_same_set(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    rows = [
        (str(path.relative_to(root)), path.parent.name, path.parts[-3]) for path in sorted(root.rglob("*.png"), key=str)
    ]
    frame = pl.DataFrame(rows, schema=["path", "label", "split"], orient="row")
    frame.write_csv(root / "list.csv")
    frame.rename({"path": "file"}).write_parquet(tmp_path / "list.parquet")
    frame.write_csv(root / "list.tsv", separator="\t")
    folder = load_data(str(root), workers=0)
    for name, settings in (("photos/list.csv", {}), ("photos/list.tsv", {}), ("list.parquet", {"root": str(root)})):
        data = load_data(str(tmp_path / name), workers=0, **settings)
        assert (data.class_names, data.train.ids, data.test.ids) == (
            folder.class_names,
            folder.train.ids,
            folder.test.ids,
        )
        assert torch.equal(torch.as_tensor(data.train.x), torch.as_tensor(folder.train.x))
        assert data.split_hash == folder.split_hash or name.endswith("list.csv") is False
    frame.select("path", "label").write_csv(root / "no_split.csv")
    assert len(load_data(str(root / "no_split.csv"), workers=0).test) == round(0.2 * 17) * 3
    (root / "list.txt").write_text(
        "".join(f"{path} {['ant', 'bee', 'cat'].index(label) * 5}\n" for path, label, _ in rows)
    )
    data = load_data(str(root / "list.txt"), workers=0)
    assert data.class_names == ("0", "5", "10")  # numbers in their order


def test_an_archive_needs_no_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.zeros((8, 4, 4, 3), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.chdir(tmp_path)
    for name in ("d.npz", "npz:d.npz", str(tmp_path / "d.npz")):
        assert load_source(name).x_train.shape == (8, 3, 4, 4)
    assert load_data("d.npz", size=6).in_shape == (3, 6, 6)
    np.savez(tmp_path / "v.npz", x_train=x[:, 0, :, 0], y_train=y, x_test=x[:, 0, :, 0], y_test=y)
    with pytest.raises(InputError, match="holds vectors"):
        load_data("v.npz", size=6)


class Noise(torch.utils.data.Dataset[Any]):
    """Samples with a random transform."""

    def __init__(self, count: int, sample: str = "float") -> None:
        self.count, self.sample = count, sample

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Any, int]:
        kinds = {
            "float": torch.rand(3, 8, 8) + np.random.rand(),  # noqa: NPY002
            "uint8": torch.randint(256, (3, 8, 8), dtype=torch.uint8),
            "vector": torch.randn(5),
            "ragged": torch.zeros(3, 8, 8 + row),
        }
        return kinds[self.sample], row % 2


def test_torch_data_sets(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    root = write_folder(tmp_path)
    pair = tuple(ImageFolder(str(root / part)) for part in ("train", "test"))
    data, files = load_data(pair, workers=0), load_data(str(root), workers=0)
    assert data.class_names == files.class_names
    (mine,), (theirs,) = (list(split.test.read([torch.arange(15)])) for split in (data, files))
    assert torch.equal(mine, theirs)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    for sample, shape in (("float", (3, 8, 8)), ("uint8", (3, 8, 8)), ("vector", (5,))):
        noise = load_data((Noise(20, sample), Noise(6, sample)))
        assert noise.in_shape == shape
        one, two = (noise.train.x.batch([3, 5], [7, 8]) for _ in range(2))  # type: ignore[union-attr]
        assert torch.equal(one, two)
        assert not torch.equal(one, noise.train.x.batch([3, 5], [8, 8]))  # type: ignore[union-attr]
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == numpy_state  # noqa: NPY002
    with pytest.raises(InputError, match="resize them to one shape"):
        next(load_data((Noise(4, "ragged"), Noise(4))).train.read([torch.arange(2)]))
    with pytest.raises(InputError, match="torch Dataset with a length"):
        load_data((iter([]), Noise(4)))
    with pytest.raises(InputError, match="must be a name, a path, or a pair"):
        load_data(Noise(4))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"pass them: train"):
        load_data("dataset:Noise")


class Given(torch.utils.data.Dataset[Any]):
    """The same sample and label four times."""

    def __init__(self, *sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Any:
        return self.sample


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((torch.zeros(3), 0.5), "labels of the train data set must be class indices from 0, got 0.5"),  # was cut to 0
        ((torch.zeros(3), "cat"), "labels of the train data set must be class indices from 0, got 'cat'"),
        ((torch.zeros(3), torch.zeros(2)), "must be class indices from 0, got tensor"),
        ((torch.zeros(3), -1), "must be class indices from 0, got -1"),
        ((torch.zeros(3),), r"the train data set must give pairs \(sample, label\), got tuple"),
        (("a text", 0), "must be PIL images, image tensors or vectors, got 'a text'"),
    ],
)
def test_torch_data_sets_of_something_else(sample: tuple[Any, ...], message: str) -> None:
    for label in (1, np.int64(1), torch.tensor(1), torch.tensor([1])):
        assert dataset_labels("train", Given(torch.zeros(3), label)).tolist() == [1] * 4
    with pytest.raises(InputError, match=message):
        load_data((Given(*sample), Given(torch.zeros(3), 0)))


# --- bad input --------------------------------------------------------------------------------------------------------


def _empty_class(root: Path) -> None:
    (root / "train" / "dog").mkdir()


def _only_tested(root: Path) -> None:
    shutil.move(root / "train" / "bee", root / "train" / "wasp")


def _mixed_sizes(root: Path) -> None:
    write_image(root / "train" / "ant" / "00.png", 0, (40, 30))


def _flat(root: Path) -> None:
    shutil.rmtree(root / "train")
    write_image(root / "train" / "a.png", 0)


def _twice(root: Path) -> None:
    write_image(root / "training" / "ant" / "a.png", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_empty_class, r"1 class folder \(dog\) without images"),
        (_only_tested, r"1 class \(bee\) without training images"),
        (_mixed_sizes, r"data\.size is needed: .*12×12, 40×30|data\.size is needed: .*40×30, 12×12"),
        (_flat, "one folder of images per class; it has no folders, and 1 images"),
        (_twice, r"several folders for one part \(train, training\)"),
    ],
)
def test_faulty_folders(tmp_path: Path, change: Any, message: str) -> None:
    root = write_folder(tmp_path / "photos")
    change(root)
    with pytest.raises(InputError, match=message):
        load_data(str(root), workers=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n../other.png,a\n", r"path '../other.png' in row 1 leaves the folder"),
        ("path,label\n/etc/passwd,a\n", "leaves the folder"),
        ("path,label\nant/00.png,a\nant/99.png,b\nant/98.png,b\n", r"lacks 2 images \(ant/99.png, ant/98.png\)"),
        ("path,label\nant/00.png,\n", "column label is empty in row 1"),
        ("picture,label\nant/00.png,a\n", "needs the columns path .* and label, .* it has picture, label"),
        ("path,label,split\nant/00.png,a,trian\n", "split must be train, val or test, got 'trian' in row 1"),
        ("path,label,split\nant/00.png,a,train\nant/00.png,a,test\n", "is in train and in test"),
        ("path,label,split\nant/00.png,a,test\n", "no training images"),
        ("path,label\nant/00.png,a\nant/01.png,a\n", "single class"),
        ("path,label\nant/00.png,a\nbee/00.png,b\nbee/01.png,b\n", r"class a has only 1 image \(ant/00.png\)"),
        ("path,label\n", "names no images"),
        ("text,label\nyes,a\nno,b\ntext,label\nyes,a\n", r"a row is the header again \(text, label\)"),
        ("path,label\na,b,c,d\n", "cannot be read as a table"),
    ],
)
def test_faulty_tables(tmp_path: Path, text: str, message: str) -> None:
    root = write_folder(tmp_path / "photos", {"": 3})
    (root / "list.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load_data(str(root / "list.csv"), workers=0)


def test_faulty_lists_and_paths(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", {"": 3})
    (root / "list.txt").write_text("ant/00.png 0\n\nant/01.png\n")
    with pytest.raises(InputError, match="line 3 must hold a path and a label"):
        load_data(str(root / "list.txt"), workers=0)
    (root / "list.doc").write_text("")
    with pytest.raises(InputError, match="this file is none of them"):
        load_data(str(root / "list.doc"), workers=0)
    with pytest.raises(InputError, match="there is no file or folder"):
        load_data(str(root / "absent"), workers=0)
    with pytest.raises(InputError, match="leave it out"):
        load_data(str(root), root=".", workers=0)
    with pytest.raises(InputError, match=r"data\.resize=9 needs data\.size"):
        load_data(str(root), resize=9, workers=0)
    with pytest.raises(InputError, match="must come first"):
        load_data(str(root), augment=("flip", "resized_crop"), workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_named_and_skipped_only_on_request(tmp_path: Path, workers: int) -> None:
    root = write_folder(tmp_path, {"train": 8, "test": 3}, suffix=".jpg", size=(20, 20))
    truncate(root / "train" / "bee" / "03.jpg")
    (root / "test" / "cat" / "01.jpg").write_text("no image")

    def read_all(memory: int) -> None:
        data = load_data(str(root), size=20, val_fraction=0, workers=workers, memory=memory)
        list(data.train.read([torch.arange(24)]))

    for memory in (0, 1000):
        with pytest.raises(InputError, match=r"03\.jpg cannot be decoded.*skip_corrupt=true") as caught:
            read_all(memory)
        assert "Traceback" not in str(caught.value)
    data = load_data(str(root), skip_corrupt=True, val_fraction=0, workers=workers)
    assert (len(data.train), len(data.test)) == (23, 8)
    assert data.notes == ("2 of 33 images cannot be decoded and are left out: test/cat/01.jpg, train/bee/03.jpg",)
    (root / "train" / "bee" / "04.jpg").unlink()
    with pytest.raises(InputError, match=r"04\.jpg is missing"):
        data.train.origin.batch([11])  # type: ignore[union-attr]


def test_a_class_whose_training_images_are_all_corrupt_is_named(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": 3, "test": 2}, suffix=".jpg", size=(20, 20))
    for path in (root / "train" / "bee").iterdir():
        path.write_text("no image")
    with pytest.raises(InputError, match="none of the training images of class bee can be decoded"):
        load_data(str(root), skip_corrupt=True, val_fraction=0, workers=0)


def test_a_late_image_of_another_size(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": 50, "test": 2})
    write_image(root / "train" / "ant" / "07.png", 0, (13, 12))  # not among those whose headers are looked at
    with pytest.raises(InputError, match=r"07\.png has 13×12 pixels, but the first ones have 12×12.*data\.size=224"):
        load_data(str(root), workers=0)
