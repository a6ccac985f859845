"""Small stand-ins for the published sets: scikit-learn's digits in the same folders, annotation files and formats.

What runs on a stand-in runs on the real set. Its accuracies mean nothing; load it with ``data.partial=true``.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from classgap.checks import InputError, did_you_mean
from classgap.data.items import Array
from classgap.data.splits import profile_counts

_SIZE = 48  # pixels of an image in a file
_COUNTS = {"train": 20, "val": 5, "test": 6}
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_FORMAT = 2  # of the stand-ins; a change writes them anew


@dataclass(frozen=True)
class _Image:
    pixels: Array
    label: int
    number: int


Parts = dict[str, list[_Image]]


def stand_in(name: str, root: Path | None = None) -> Path:
    """The folder of all data sets in which the stand-in for ``name`` is; it is written if it is not there.

    Args:
        name: Of ``classgap data list``.
        root: Where to write it; by default a folder in that of the real data sets.
    """
    from classgap.data.sources import data_root

    if name not in WRITERS:
        raise InputError(did_you_mean(name, WRITERS, what="stand-in"))
    folder = (data_root() / "stand_ins" if root is None else root) / f"{name}-{_FORMAT}"
    if not folder.exists():
        place = folder.with_name(f".{folder.name}.writing")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        WRITERS[name](place, _parts())
        try:
            place.replace(folder)
        except OSError:  # another process was faster
            shutil.rmtree(place, ignore_errors=True)
    return folder


def _parts() -> Parts:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    parts: Parts = {part: [] for part in _COUNTS}
    for label in range(10):
        rows = iter(np.flatnonzero(bunch.target == label))
        for part, count in _COUNTS.items():
            parts[part] += [_Image(images[row], label, int(row)) for row, _ in zip(rows, range(count), strict=False)]
    return parts


def _tail(parts: Parts) -> Parts:
    """The training part as a long tail whose frequent classes are not the first ones."""
    counts = profile_counts(10, _COUNTS["train"], "exponential", 10)[[3, 0, 5, 1, 9, 2, 7, 4, 6, 8]]
    train = [image for label in range(10) for image in _of(parts["train"], label)[: counts[label]]]
    return {**parts, "train": train}


def _of(images: Sequence[_Image], label: int) -> list[_Image]:
    return [image for image in images if image.label == label]


def _jpeg(path: Path, image: _Image) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(image.pixels).convert("RGB")
    picture.resize((_SIZE + 8 * (image.number % 2), _SIZE)).save(path, quality=90)


def _text(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


# --- arrays -----------------------------------------------------------------------------------------------------------


def _idx(folder: str) -> Callable[[Path, Parts], None]:
    def write(root: Path, parts: Parts) -> None:
        (root / folder).mkdir(parents=True)
        for part, prefix in (("train", "train"), ("test", "t10k")):
            pixels = np.stack([np.pad(np.kron(i.pixels, np.ones((3, 3), np.uint8)), 2) for i in parts[part]])
            arrays = {"images-idx3": pixels, "labels-idx1": np.array([i.label for i in parts[part]], np.uint8)}
            for kind, array in arrays.items():
                head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
                (root / folder / f"{prefix}-{kind}-ubyte").write_bytes(head + array.tobytes())

    return write


def _cifar_batch(images: Sequence[_Image]) -> tuple[Array, list[int]]:
    colours = [np.repeat(np.kron(image.pixels, np.ones((4, 4), np.uint8))[None], 3, axis=0) for image in images]
    return np.stack(colours).reshape(len(images), -1), [image.label for image in images]


def _pickle(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def _cifar10(root: Path, parts: Parts) -> None:
    folder = root / "cifar-10-batches-py"
    batches = {f"data_batch_{i + 1}": parts["train"][i::5] for i in range(5)} | {"test_batch": parts["test"]}
    for file, images in batches.items():
        data, labels = _cifar_batch(images)
        _pickle(folder / file, {"data": data, "labels": labels})
    _pickle(folder / "batches.meta", {"label_names": _WORDS})


def _cifar100(root: Path, parts: Parts) -> None:
    folder = root / "cifar-100-python"
    for part in ("train", "test"):
        data, labels = _cifar_batch(parts[part])
        _pickle(folder / part, {"data": data, "fine_labels": labels, "coarse_labels": [0] * len(labels)})
    _pickle(folder / "meta", {"fine_label_names": _WORDS, "coarse_label_names": ["digit"]})


# --- image files ------------------------------------------------------------------------------------------------------


_SYNSETS = [
    "n01440764",
    "n01443537",
    "n01484850",
    "n01491361",
    "n01494475",
    "n01496331",
    "n01498041",
    "n01514668",
    "n01514859",
]
_SYNSETS += ["n02012849"]  # a crane, of which ImageNet has two kinds


def _wnid(label: int) -> str:
    return _SYNSETS[label]


def _imagenet_name(part: str, image: _Image) -> str:
    file = f"ILSVRC2012_val_{image.number:08d}" if part == "test" else f"{_wnid(image.label)}_{image.number}"
    return f"{'val' if part == 'test' else 'train'}/{_wnid(image.label)}/{file}.JPEG"


def _imagenet(root: Path, parts: Parts) -> None:
    for part in ("train", "test"):
        for image in parts[part]:
            _jpeg(root / "imagenet" / _imagenet_name(part, image), image)


def _imagenet_lt(root: Path, parts: Parts) -> None:
    for part, images in _tail(parts).items():
        for image in images:
            _jpeg(root / "imagenet" / _imagenet_name(part, image), image)
        lines = [f"{_imagenet_name(part, image)} {image.label}" for image in images]
        _text(root / "imagenet_lt" / f"ImageNet_LT_{part}.txt", lines)


def _places_name(part: str, image: _Image) -> str:
    if part == "test":
        return f"val_256/Places365_val_{image.number:08d}.jpg"
    place = f"{_WORDS[image.label]}/{'indoor' if image.label % 2 else 'outdoor'}"
    return f"data_256/{place[0]}/{place}/{image.number:08d}.jpg"


def _places365(root: Path, parts: Parts) -> None:
    base = root / "places365"
    for part, file in (("train", "places365_train_standard.txt"), ("test", "places365_val.txt")):
        for image in parts[part]:
            _jpeg(base / _places_name(part, image), image)
        start = "/" if part == "train" else ""
        names = [start + _places_name(part, image).partition("/")[2] for image in parts[part]]
        _text(base / file, [f"{name} {i.label}" for name, i in zip(names, parts[part], strict=True)])
    places = [_places_name("train", _of(parts["train"], label)[0]).split("/")[1:-1] for label in range(10)]
    _text(base / "categories_places365.txt", [f"/{'/'.join(place)} {k}" for k, place in enumerate(places)])


def _places_lt(root: Path, parts: Parts) -> None:
    for part, images in _tail(parts).items():
        for image in images:
            _jpeg(root / "places365" / _places_name(part, image), image)
        _text(root / "places_lt" / f"Places_LT_{part}.txt", [f"{_places_name(part, i)} {i.label}" for i in images])


def _inat18(root: Path, parts: Parts) -> None:
    for part, file in (("train", "iNaturalist18_train.txt"), ("test", "iNaturalist18_val.txt")):
        images = _tail(parts)[part]
        names = [f"train_val2018/{'Aves' if i.label < 5 else 'Fungi'}/{i.label}/{i.number:032x}.jpg" for i in images]
        for name, image in zip(names, images, strict=True):
            _jpeg(root / "inat18" / name, image)
        _text(root / "inat18" / file, [f"{name} {i.label}" for name, i in zip(names, images, strict=True)])


def _stanford_cars(root: Path, parts: Parts) -> None:
    from scipy.io import savemat

    base = root / "stanford_cars"
    for part, folder, file in (
        ("train", "cars_train", "devkit/cars_train_annos.mat"),
        ("test", "cars_test", "cars_test_annos_withlabels.mat"),
    ):
        rows = [(image.label + 1, f"{image.number:05d}.jpg") for image in parts[part]]
        for image in parts[part]:
            _jpeg(base / folder / f"{image.number:05d}.jpg", image)
        (base / file).parent.mkdir(parents=True, exist_ok=True)
        savemat(base / file, {"annotations": np.array(rows, dtype=[("class", "O"), ("fname", "O")])})
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(_WORDS, dtype=object)})


def _oxford_pets(root: Path, parts: Parts) -> None:
    base = root / "oxford-iiit-pet"
    for part, file in (("train", "trainval.txt"), ("test", "test.txt")):
        names = [f"digit_{_WORDS[image.label]}_{image.number}" for image in parts[part]]
        for name, image in zip(names, parts[part], strict=True):
            _jpeg(base / "images" / f"{name}.jpg", image)
        lines = [f"{name} {image.label + 1} 1 1" for name, image in zip(names, parts[part], strict=True)]
        _text(base / "annotations" / file, lines)


def _flowers102(root: Path, parts: Parts) -> None:
    from scipy.io import savemat

    base = root / "flowers-102"
    images = [image for part in _COUNTS for image in parts[part]]
    for number, image in enumerate(images, 1):
        _jpeg(base / "jpg" / f"image_{number:05d}.jpg", image)
    savemat(base / "imagelabels.mat", {"labels": np.array([[image.label + 1 for image in images]])})
    ends = np.cumsum([0, *(len(parts[part]) for part in _COUNTS)])
    spans = {key: np.arange(ends[i], ends[i + 1])[None] + 1 for i, key in enumerate(("trnid", "valid", "tstid"))}
    savemat(base / "setid.mat", spans)


def _food101(root: Path, parts: Parts) -> None:
    base = root / "food-101"
    (base / "meta").mkdir(parents=True)
    for part in ("train", "test"):
        listed: dict[str, list[str]] = {word: [] for word in _WORDS}
        for image in parts[part]:
            name = f"{_WORDS[image.label]}/{image.number}"
            listed[_WORDS[image.label]].append(name)
            _jpeg(base / "images" / f"{name}.jpg", image)
        (base / "meta" / f"{part}.json").write_text(json.dumps(listed))


def _fgvc_aircraft(root: Path, parts: Parts) -> None:
    base = root / "fgvc-aircraft-2013b" / "data"
    _text(base / "variants.txt", [f"Model {word}" for word in _WORDS])
    for part, images in parts.items():
        for image in images:
            _jpeg(base / "images" / f"{image.number:07d}.jpg", image)
        lines = [f"{image.number:07d} Model {_WORDS[image.label]}" for image in images]
        _text(base / f"images_variant_{part}.txt", lines)


WRITERS: dict[str, Callable[[Path, Parts], None]] = {
    "mnist": _idx("MNIST/raw"),
    "fashion_mnist": _idx("FashionMNIST/raw"),
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "cifar10_lt": _cifar10,
    "cifar100_lt": _cifar100,
    "imagenet": _imagenet,
    "imagenet_lt": _imagenet_lt,
    "inat18": _inat18,
    "places365": _places365,
    "places_lt": _places_lt,
    "stanford_cars": _stanford_cars,
    "oxford_pets": _oxford_pets,
    "flowers102": _flowers102,
    "food101": _food101,
    "fgvc_aircraft": _fgvc_aircraft,
}
