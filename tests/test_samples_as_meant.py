"""Labels, pixels, parts and ids of samples are what their owner meant, in training and in predicting alike."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import classgap
from classgap.checks import InputError
from classgap.data import load_data
from classgap.data.augment import policies
from classgap.data.images import decode
from classgap.data.items import FileOptions
from classgap.data.labelled import Expected, open_samples
from classgap.data.listing import Listing, divide
from classgap.data.python_sets import as_tensor
from classgap.training import load_run
from image_files import NEEDS_TORCHVISION, write_folder, write_image

pytestmark = NEEDS_TORCHVISION
SHORT = ["epochs=1", "model=mlp-4"]


class Pairs:
    """A data set of vectors with labels in a list, as torchvision has them."""

    def __init__(self, targets: list[int], classes: list[str] | None = None, shift: int = 0) -> None:
        self.targets, self.shift = targets, shift
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(row)), (self.targets[row] + self.shift) % 3


def test_a_test_set_with_other_numbers_for_its_classes() -> None:
    train = Pairs([0, 1, 2] * 4, ["cat", "dog", "eel"])
    assert load_data((train, Pairs([0, 1], ["dog", "eel"])), val_fraction=0).test.y.tolist() == [1, 2]
    assert load_data((train, Pairs([0, 1])), val_fraction=0).test.y.tolist() == [0, 1]
    with pytest.raises(InputError, match="samples of class 'fox', which is none of the training set"):
        load_data((train, Pairs([0, 1], ["dog", "fox"])), val_fraction=0)
    assert load_data((train, Pairs([0, 0], ["dog", "fox"])), val_fraction=0).test.y.tolist() == [1, 1]
    with pytest.raises(InputError, match="two classes are named 'dog'"):
        load_data((Pairs([0, 1, 2] * 4, ["dog", "dog", "eel"]), Pairs([0, 1], ["dog", "eel"])), val_fraction=0)


def test_labels_are_those_that_come_with_the_samples() -> None:
    changed = Pairs([0, 1, 2] * 4, shift=1)
    assert load_data((changed, changed), val_fraction=0).test.y.tolist() == [1, 2, 0] * 4


def test_images_of_16_bits_keep_their_upper_half(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256], [10_000, 40_000, 65_535]], np.uint16)
    wanted = (values >> 8).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "deep.png")
    Image.fromarray(values).save(tmp_path / "deep.tif")
    for name in ("deep.png", "deep.tif"):
        assert np.array_equal(decode(str(tmp_path / name)), np.stack([wanted] * 3))
        assert np.array_equal(as_tensor(Image.open(tmp_path / name)), np.stack([wanted] * 3))
    for dtype in (np.int32, np.float32):
        Image.fromarray(values.astype(dtype)).save(tmp_path / "wide.tif")
        with pytest.raises(InputError, match=r"wide\.tif has pixels of 32 bits"):
            decode(str(tmp_path / "wide.tif"))


def test_arrays_of_a_data_set_have_their_channels_last() -> None:
    assert as_tensor(np.zeros((8, 10, 3), np.uint8)).shape == (3, 8, 10)
    assert as_tensor(torch.zeros(3, 8, 10, dtype=torch.uint8)).shape == (3, 8, 10)
    assert as_tensor(np.arange(3.0)[::-1]).tolist() == [2, 1, 0]


def test_what_is_listed_twice_is_in_one_part(tmp_path: Path) -> None:
    for row in range(20):
        write_image(tmp_path / f"{row}.png", row)
    names = [f"{row}.png" for row in range(20)] * 2
    with open(tmp_path / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", "label"], *([name, "ab"[int(name[0]) % 2]] for name in names)])
    data = load_data(str(tmp_path / "list.csv"), val_fraction=0.2, workers=0)
    assert data.val is not None
    found = [set(part.ids or ()) for part in (data.train, data.val, data.test)]
    assert sum(map(len, found)) == len(set.union(*found)) == 20
    with pytest.raises(InputError, match="class a has only 4 texts"):
        divide(Listing("", ["yes"] * 4 + ["no", "never"], list("aaaabb"), kind="text"), 0.3)


def test_images_on_another_scale_are_refused(tmp_path: Path) -> None:
    classgap.train(settings=[*SHORT, "data.per_class=4"], folder=tmp_path / "whole")
    run, images = load_run(tmp_path / "whole"), np.zeros((2, 1, 8, 8), np.uint8)
    assert np.array_equal(run.scores(images.astype(np.int64)), run.scores(images))
    with pytest.raises(InputError, match="trained on images of 0 to 255, got floating point"):
        run.scores(images / 255)
    with pytest.raises(InputError, match="trained on images of 0 to 255, got floating point"):
        run.predict(TensorDataset(torch.zeros(2, 1, 8, 8), torch.arange(2)))


def test_a_run_on_images_of_floating_point_numbers_can_be_used(tmp_path: Path) -> None:
    pairs = TensorDataset(torch.randn(12, 3, 4, 4), torch.arange(12) % 3)
    result = classgap.train(settings=[*SHORT, "data.val_fraction=0"], folder=tmp_path / "run", data=(pairs, pairs))
    run = load_run(tmp_path / "run")
    np.testing.assert_allclose(run.scores(pairs.tensors[0]), result.test.scores, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="images of floating point numbers as its data set gave them, got whole"):
        run.scores(np.zeros((2, 3, 4, 4), np.uint8))


def test_vectors_of_any_type_and_labels_as_bytes(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 5)), np.arange(30) % 3
    np.savez(tmp_path / "v.npz", x_train=x, y_train=y, x_test=x, y_test=y, class_names=["a", "b", "c"])
    classgap.train(settings=[*SHORT, f"data={tmp_path / 'v.npz'}"], folder=tmp_path / "run")
    run = load_run(tmp_path / "run")
    for given in (x, x.astype(np.float16), x.round().astype(int), x[::-1]):
        np.testing.assert_allclose(run.scores(given), run.scores(given.astype(np.float32)), rtol=1e-6)
    names = np.array(["a", "b", "c"])[y]
    for labels in (names.astype("S"), names.astype(object)):
        assert run.predict(x, labels).y_true.tolist() == y.tolist()
    with pytest.raises(InputError, match="data must be an array of numbers"):
        run.scores(np.array([None] * 5))


def test_features_are_read_as_the_run_read_its_images(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", {"": 10}, size=(20, 20))
    settings = [*SHORT, f"data={root}", "data.size=8", "data.interpolation=bicubic", "data.test_fraction=0.3"]
    result = classgap.train(settings=settings, folder=tmp_path / "run")
    classgap.features(tmp_path / "run", str(root), tmp_path / "f.safetensors")
    found = load_data(str(tmp_path / "f.safetensors"), val_fraction=0)
    np.testing.assert_allclose(found.test.x, result.test.features, rtol=1e-4, atol=1e-5)


def test_ids_of_texts_are_positions_in_the_file(tmp_path: Path) -> None:
    rows = [[f"text {row}", "ab"[row // 2 % 2], "test" if row % 3 == 0 else "train"] for row in range(12)]
    with open(tmp_path / "texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "label", "split"], *rows])
    expected = Expected(("a", "b"), (1,), FileOptions(), lambda texts: torch.tensor([[len(text)] for text in texts]))
    opened = open_samples(str(tmp_path / "texts.csv"), None, None, expected)
    assert opened.split.ids == ["0", "3", "6", "9"]


def test_a_folder_of_test_images_only(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"test": 2})
    expected = Expected(("ant", "bee", "cat"), (3, 12, 12), FileOptions())
    assert open_samples(str(root), None, None, expected).labels.tolist() == [0, 0, 1, 1, 2, 2]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="has no training images"):
        load_data(str(root), workers=0)


def test_some_positions_among_the_classes_of_a_network(tmp_path: Path) -> None:
    for row in range(2):
        write_image(tmp_path / f"{row}.png", row)
    (tmp_path / "list.txt").write_text("0.png 0\n1.png 2\n")
    expected = Expected(("cat", "dog", "eel"), (3, 12, 12), FileOptions())
    assert open_samples(str(tmp_path / "list.txt"), None, None, expected).labels.tolist() == [0, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        (["2.0", "10.0", "1.0"], ("1.0", "2.0", "10.0")),
        (["9", "-1", "10"], ("-1", "9", "10")),
        (["2", "1", "01"], ("01", "1", "2")),
        (["10", "x", "2"], ("10", "2", "x")),
    ],
)
def test_classes_that_are_numbers_are_in_their_order(labels: list[str], ordered: tuple[str, ...]) -> None:
    assert Listing("", ["a", "b", "c"], labels).class_names == ordered


@pytest.mark.parametrize(
    ("shape", "found"),
    [((4, 2, 6, 8), (2, 6, 8)), ((4, 6, 8, 2), (2, 6, 8)), ((4, 3, 6, 8), (3, 6, 8)), ((4, 6, 6, 6), None)],
)
def test_channels_of_arrays(tmp_path: Path, shape: tuple[int, ...], found: tuple[int, ...] | None) -> None:
    x, y = np.zeros(shape, np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    if found is None:
        with pytest.raises(InputError, match=r"C = 1, 3 or 4 channels, got \(4, 6, 6, 6\)"):
            load_data(str(tmp_path / "a.npz"), val_fraction=0)
    else:
        assert load_data(str(tmp_path / "a.npz"), val_fraction=0).in_shape == found


@pytest.mark.parametrize(
    ("options", "message"),
    [({"size": 6, "resize": 3}, "must not be less than"), ({"resize": 3}, r"needs data\.size")],
)
def test_sizes_of_arrays_follow_the_rules_of_files(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_data("digits", **options)
    pairs = TensorDataset(torch.zeros(4, 3, 8, 8), torch.arange(4) % 2)
    with pytest.raises(InputError, match="resize images in the transform"):
        load_data((pairs, pairs), val_fraction=0, **options)


def test_augmentations_that_cannot_change_these_images() -> None:
    for name, channels in (("color_jitter", 4), ("autoaugment", 4), ("simclr", 0), ("cutout", 0)):
        with pytest.raises(InputError, match=f"augmentation {name} needs images"):
            policies((name,), (0.5,) * channels)
    assert len(policies(("crop", "flip"), ())) == 2


def test_saved_rows_without_text_or_image(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["a", None], "label": ["x", "y"]}).save_to_disk(tmp_path / "texts")
    with pytest.raises(InputError, match="column text is empty in row 1"):
        load_data(str(tmp_path / "texts"))
    image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    columns = {"image": [image, image, image, None] * 2, "label": list("aaabbbba")}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "images")
    with pytest.raises(InputError, match=r"row 3 of .* has no image"):
        load_data(str(tmp_path / "images"), size=4, val_fraction=0, workers=0)
    kept = load_data(str(tmp_path / "images"), size=4, val_fraction=0, workers=0, skip_corrupt=True)
    assert len(kept.train) + len(kept.test) == 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["schedule=step", "schedule.milestones=4,2"], "ascending epochs, got 4,2"),
        (["method.ignore_index=0"], "method.ignore_index cannot be set"),
    ],
)
def test_settings_with_no_meaning_are_refused(settings: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        classgap.train(settings=[*SHORT, *settings], folder=tmp_path / "run")


def test_class_weights_do_not_depend_on_the_pieces_of_a_batch(tmp_path: Path) -> None:
    weights = "[" + ",".join(str(10.0 if k == 3 else 0.0 if k == 4 else 1.0) for k in range(10)) + "]"
    settings = [*SHORT, "epochs=2", "data.per_class=8", "batch=40", f"method.weight={weights}"]
    whole, pieces = (
        classgap.train(settings=[*settings, f"optim.accumulate={count}"], folder=tmp_path / str(count)).test.scores
        for count in (1, 4)
    )
    np.testing.assert_allclose(whole, pieces, rtol=1e-3, atol=1e-4)


def test_features_that_do_not_fit_into_half_precision(tmp_path: Path) -> None:
    from classgap.training.extracting import _rounded

    assert _rounded(torch.tensor([1.5]), "float16").dtype is torch.float16
    with pytest.raises(InputError, match=r"features of up to 1e\+05 do not fit into float16; use float32"):
        _rounded(torch.tensor([1e5]), "float16")
