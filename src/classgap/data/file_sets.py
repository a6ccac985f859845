"""Published sets of image files, in the folders and annotation files they are published in (those that torchvision reads)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from classgap.checks import InputError
from classgap.data.listing import Listing, read_listing, require_files
from classgap.data.synsets import class_words
from classgap.data.tables import read_rows

Part = tuple[str, list[str], list[int]]
"""``train``, ``val`` or ``test``; names of images; their labels."""


def stanford_cars(root: Path) -> Listing:
    """Stanford Cars: 196 makes, models and years."""
    base = root / "stanford_cars"
    classes = [str(name) for name in _matlab(base / "devkit" / "cars_meta.mat", "class_names")]
    parts: list[Part] = []
    for part, folder, file in (
        ("train", "cars_train", "devkit/cars_train_annos.mat"),
        ("test", "cars_test", "cars_test_annos_withlabels.mat"),
    ):
        rows = _matlab(base / file, "annotations")
        names = [f"{folder}/{row['fname']}" for row in rows]
        parts.append((part, names, [int(row["class"]) - 1 for row in rows]))
    return _listing(base, parts, classes)


def oxford_pets(root: Path) -> Listing:
    """Oxford-IIIT Pet: 37 breeds of cats and dogs."""
    base = root / "oxford-iiit-pet"
    parts: list[Part] = []
    names_of: dict[int, str] = {}
    for part, file in (("train", "trainval.txt"), ("test", "test.txt")):
        path = base / "annotations" / file
        lines = [line.split() for line in _lines(path)]
        if bad := next(
            (row for row, words in enumerate(lines, 1) if len(words) != 4 or not words[1].isdecimal()), None
        ):
            raise InputError(f"{path}: line {bad} must be an image, its class and two more numbers")
        labels = [int(words[1]) - 1 for words in lines]
        names_of |= {label: words[0].rpartition("_")[0] for words, label in zip(lines, labels, strict=True)}
        parts.append((part, [f"images/{words[0]}.jpg" for words in lines], labels))
    classes = [names_of[k].replace("_", " ").title() for k in sorted(names_of)]
    return _listing(base, parts, classes)


def flowers102(root: Path) -> Listing:
    """Flowers-102, with its validation part."""
    from torchvision.datasets import Flowers102

    base = root / "flowers-102"
    labels = [int(label) - 1 for label in _matlab(base / "imagelabels.mat", "labels")]
    parts: list[Part] = []
    for part, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        numbers = [int(number) for number in _matlab(base / "setid.mat", key)]
        if numbers and max(numbers) > len(labels):
            raise InputError(f"{base}: setid.mat has image {max(numbers)}, imagelabels.mat only {len(labels)} labels")
        names = [f"jpg/image_{number:05d}.jpg" for number in numbers]
        parts.append((part, names, [labels[number - 1] for number in numbers]))
    return _listing(base, parts, Flowers102.classes[: 1 + max(labels)])


def food101(root: Path) -> Listing:
    """Food-101."""
    base = root / "food-101"
    parts: list[Part] = []
    classes: list[str] = []
    for part in ("train", "test"):
        found = _json(base / "meta" / f"{part}.json")
        classes = classes or sorted(found)
        if unknown := sorted(set(found) - set(classes)):
            raise InputError(f"{base}: class {unknown[0]} is in {part}.json, but not in train.json")
        pairs = [(f"images/{name}.jpg", classes.index(label)) for label in sorted(found) for name in found[label]]
        parts.append((part, [name for name, _ in pairs], [label for _, label in pairs]))
    return _listing(base, parts, classes)


def fgvc_aircraft(root: Path) -> Listing:
    """FGVC-Aircraft: 100 variants, with its validation part."""
    base = root / "fgvc-aircraft-2013b" / "data"
    classes = _lines(base / "variants.txt")
    parts: list[Part] = []
    for part in ("train", "val", "test"):
        path = base / f"images_variant_{part}.txt"
        pairs = [line.partition(" ") for line in _lines(path)]
        if unknown := next((label for _, _, label in pairs if label not in classes), None):
            raise InputError(f"{path} names the class {unknown!r}, which variants.txt does not have")
        parts.append((part, [f"images/{name}.jpg" for name, _, _ in pairs], [classes.index(c) for _, _, c in pairs]))
    return _listing(base, parts, classes)


def imagenet(root: Path) -> Listing:
    """ImageNet-1k: ``imagenet/train/WNID/…`` and ``imagenet/val/WNID/…``; the validation images are the test set."""
    listing = read_listing(root / "imagenet")
    ids = listing.class_names
    words, notes = class_words(ids, root / "imagenet")
    of = dict(zip(ids, words, strict=True))
    return dataclasses.replace(listing, labels=[of[label] for label in listing.labels], order=words, notes=notes)


# --- sets that come with list files -----------------------------------------------------------------------------------


def places365(root: Path) -> Listing:
    """Places365-Standard with small images (256 × 256); the validation images are the test set."""
    base = root / "places365"
    pairs = [line.rpartition(" ") for line in _lines(base / "categories_places365.txt")]
    classes = [name.strip("/").partition("/")[2] for name, _, _ in pairs]
    train = read_rows(base / "places365_train_standard.txt")
    test = read_rows(base / "places365_val.txt")
    folder = next((f for f in ("data_256_standard", "data_256") if (base / f).is_dir()), "data_256_standard")
    parts: list[Part] = [
        ("train", [f"{folder}{name}" for name in train.values], _numbers(base, train.labels)),
        ("test", [f"val_256/{name}" for name in test.values], _numbers(base, test.labels)),
    ]
    return _listing(base, parts, classes)


def inat18(root: Path) -> Listing:
    """iNaturalist 2018, from the published lists or from the annotations; the validation images are the test set."""
    base = root / "inat18"
    parts: list[Part] = []
    for part, lists, coco in (
        ("train", "iNaturalist18_train.txt", "train2018.json"),
        ("test", "iNaturalist18_val.txt", "val2018.json"),
    ):
        if (base / lists).is_file():
            rows = read_rows(base / lists)
            parts.append((part, rows.values, _numbers(base, rows.labels)))
        else:
            parts.append((part, *_coco(base / coco)))
    classes = [str(k) for k in range(1 + max(label for _, _, labels in parts for label in labels))]
    return _listing(base, parts, classes)


def imagenet_lt(root: Path) -> Listing:
    """ImageNet-LT: the lists in ``imagenet_lt/``, the images in ``imagenet/``."""
    parts = _lists(root / "imagenet_lt", "ImageNet_LT")
    folders: dict[int, str] = {}
    for name, label in zip(parts[0][1], parts[0][2], strict=True):
        folders.setdefault(label, name.split("/")[-2])

    def layouts(name: str, label: int) -> list[str]:
        """Test images lie in one folder, or in one per class."""
        folder, _, file = name.rpartition("/")
        flat = "/".join(word for word in folder.split("/") if word != folders.get(label)) + f"/{file}"
        return [name, flat, f"{folder}/{folders.get(label)}/{file}"]

    ids = [folders.get(k, str(k)) for k in range(1 + max(map(max, (labels for _, _, labels in parts))))]
    words, notes = class_words(ids, root / "imagenet")
    listing = _listing(root / "imagenet", [_as_on_disk(root / "imagenet", part, layouts) for part in parts], words)
    return dataclasses.replace(listing, notes=notes)


def places_lt(root: Path) -> Listing:
    """Places-LT: the lists in ``places_lt/``, the images in ``places365/``."""
    parts = _lists(root / "places_lt", "Places_LT")
    names_of = {
        label: _place(name) for _, names, labels in parts[:1] for name, label in zip(names, labels, strict=True)
    }

    def layouts(name: str, label: int) -> list[str]:
        """``data_256/a/airfield/…`` or ``train/airfield/…``; ``val_256/…`` or ``val/airfield/…``."""
        file, place = name.rpartition("/")[2], names_of.get(label, "")
        if file.startswith("Places365_val"):
            return [name, f"val_256/{file}", f"val/{place.replace('/', '-')}/{file}"]
        nested = f"{place[:1]}/{place}/{file}"
        return [name, f"data_256_standard/{nested}", f"data_256/{nested}", f"train/{place.replace('/', '-')}/{file}"]

    classes = [names_of.get(k, str(k)) for k in range(1 + max(map(max, (labels for _, _, labels in parts))))]
    return _listing(root / "places365", [_as_on_disk(root / "places365", part, layouts) for part in parts], classes)


def _place(name: str) -> str:
    """``bakery/shop`` out of ``data_256/b/bakery/shop/1.jpg`` or ``train/bakery-shop/1.jpg``."""
    words = name.split("/")[1:-1]
    return "/".join(words[1:]) if len(words) > 1 and len(words[0]) == 1 else "/".join(words).replace("-", "/")


def _lists(folder: Path, prefix: str) -> list[Part]:
    parts: list[Part] = []
    for part in ("train", "val", "test"):
        rows = read_rows(folder / f"{prefix}_{part}.txt")
        if not rows.values:
            raise InputError(f"{folder / f'{prefix}_{part}.txt'} is empty; restore it, or run `classgap data prepare`")
        parts.append((part, rows.values, _numbers(folder, rows.labels)))
    return parts


def _as_on_disk(base: Path, part: Part, layouts: Callable[[str, int], list[str]]) -> Part:
    """The images under the names they have here: the layout is that of the first image that is found."""
    which, names, labels = part
    tried = ((row, i) for row in range(min(100, len(names))) for i in range(len(layouts(names[row], labels[row]))))
    found = next((i for row, i in tried if (base / layouts(names[row], labels[row])[i]).is_file()), 0)
    return which, [layouts(name, label)[found] for name, label in zip(names, labels, strict=True)], labels


# --- shared -----------------------------------------------------------------------------------------------------------


def _listing(base: Path, parts: Sequence[Part], classes: Sequence[str]) -> Listing:
    names = [name for _, some, _ in parts for name in some]
    labels = [label for _, _, some in parts for label in some]
    if labels and not 0 <= min(labels) <= max(labels) < len(classes):
        raise InputError(f"{base}: labels go from {min(labels)} to {max(labels)}, but there are {len(classes)} classes")
    if leaving := next((name for name in names if name.startswith("/") or ".." in name.split("/")), None):
        raise InputError(f"{base}: the path {leaving!r} leaves this folder")
    require_files(str(base), names, f"the lists of {base.name} name {len(names)} images", "restore them")
    where = [part for part, some, _ in parts for _ in some]
    return Listing(str(base), names, [classes[label] for label in labels], where, order=tuple(classes))


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it, or prepare the data set again") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it, or prepare the data set again") from error


def _coco(path: Path) -> tuple[list[str], list[int]]:
    found = _json(path)
    try:
        label_of = {row["image_id"]: int(row["category_id"]) for row in found["annotations"]}
        return [row["file_name"] for row in found["images"]], [label_of[row["id"]] for row in found["images"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} must hold images and annotations with category_id ({error!r})") from error


def _matlab(path: Path, key: str) -> Any:
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)[key]
    except Exception as error:  # a damaged file raises whatever its bytes happen to mean
        raise InputError(f"{path} cannot be read ({error}); restore it, or prepare the data set again") from error


def _numbers(base: Path, labels: Sequence[str]) -> list[int]:
    try:
        return [int(label) for label in labels]
    except ValueError as error:
        raise InputError(f"{base}: labels in its lists must be class numbers from 0 ({error})") from error
