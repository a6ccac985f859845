"""Which images there are and what they show: folders of classes, tables and list files. No image is opened here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError
from classgap.data.images import SUFFIXES

TABLES = (".csv", ".tsv", ".parquet")
LISTS = (".txt", ".lst")
_PARTS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}
_COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "image", "image_path"),
    "label": ("label", "class", "target", "category", "class_name"),
    "split": ("split", "part", "subset", "set"),
}
_SHOWN = 3


@dataclass(frozen=True)
class Listing:
    """Images with labels and the part each belongs to.

    Attributes:
        root: Folder that the names are relative to.
        labels: Class name of each image.
        parts: ``"train"``, ``"val"`` or ``"test"`` of each image; empty where there is no division.
    """

    root: str
    names: list[str]
    labels: list[str]
    parts: list[str] = field(default_factory=list)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes in alphabetical order, in numerical order where all of them are numbers."""
        names = set(self.labels)
        return tuple(sorted(names, key=int) if all(map(_is_number, names)) else sorted(names))


def read_listing(path: Path, root: str | None = None) -> Listing:
    """The images that a folder, table or list file names.

    Args:
        path: A folder ``PATH/train/CLASS/…`` with ``test`` or ``val`` beside ``train``, a folder ``PATH/CLASS/…``, a ``.csv``,
            ``.tsv`` or ``.parquet`` table with columns ``path``, ``label`` and optionally ``split``, or a ``.txt`` or ``.lst``
            file with a path and a label per line.
        root: Folder that paths in a table or list file are relative to; by default the folder of that file.
    """
    if path.is_dir():
        if root is not None:
            raise InputError(f"data.root={root} is for tables and list files, but {path} is a folder; leave it out")
        return _folder(path)
    return _table(path, Path(root).expanduser() if root is not None else path.parent)


# --- folders ----------------------------------------------------------------------------------------------------------


def _folder(path: Path) -> Listing:
    inside = _subfolders(path)
    parts = {name: _PARTS[name.lower()] for name in inside if name.lower() in _PARTS}
    if "train" not in parts.values():
        names, labels = _classes(path, path)
        return Listing(str(path), names, labels)
    twice = [part for part in set(parts.values()) if list(parts.values()).count(part) > 1]
    if twice:
        same = ", ".join(name for name, part in parts.items() if part in twice)
        raise InputError(f"{path} holds several folders for one part ({same}); rename or move one of them")
    listing = Listing(str(path), [], [], [])
    for name, part in parts.items():
        names, labels = _classes(path / name, path)
        listing.names.extend(names)
        listing.labels.extend(labels)
        listing.parts.extend([part] * len(names))
    return listing


def _subfolders(path: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))


def _classes(path: Path, root: Path) -> tuple[list[str], list[str]]:
    """Images of all classes of a folder, relative to ``root``, and their classes."""
    classes = _subfolders(path)
    if not classes:
        images = sum(_is_image(entry.name) for entry in os.scandir(path))
        raise InputError(
            f"{path} must hold one folder of images per class; it has no folders, and {images} images directly inside. "
            "Make a folder for each class, or write a table of path,label"
        )
    names: list[str] = []
    labels: list[str] = []
    empty: list[str] = []
    for label in classes:
        found = sorted(_images_below(path / label, root))
        names.extend(found)
        labels.extend([label] * len(found))
        if not found:
            empty.append(label)
    if empty:
        raise InputError(
            f"{path}: {_some(empty, 'class folder')} without images ({', '.join(SUFFIXES)}); add images or remove the folder"
        )
    return names, labels


def _images_below(folder: Path, root: Path) -> Iterable[str]:
    for place, below, files in os.walk(folder, followlinks=True):
        below[:] = sorted(name for name in below if not name.startswith("."))
        relative = os.path.relpath(place, root)
        for name in files:
            if _is_image(name):
                yield f"{relative}/{name}"


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


# --- tables and list files --------------------------------------------------------------------------------------------


def _table(path: Path, root: Path) -> Listing:
    paths, labels, parts = _read_list(path) if path.suffix.lower() in LISTS else _read_table(path)
    if not paths:
        raise InputError(f"{path} names no images")
    base = os.path.abspath(root)
    names = [_inside(base, name, path, row) for row, name in enumerate(paths, 1)]
    missing = [name for name in names if not os.path.isfile(os.path.join(base, name))]
    if missing:
        raise InputError(
            f"{path} names {len(names)} images, but {base} lacks {_some(missing, 'image')}; paths are relative to that folder, "
            "which data.root changes"
        )
    return Listing(base, names, labels, parts)


def _read_table(path: Path) -> tuple[list[str], list[str], list[str]]:
    import polars as pl

    try:
        if path.suffix.lower() == ".parquet":
            frame = pl.read_parquet(path)
        else:
            frame = pl.read_csv(path, separator="\t" if path.suffix.lower() == ".tsv" else ",", infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from error
    columns = {role: _column(role, frame.columns, path) for role in _COLUMNS}
    if columns["path"] is None or columns["label"] is None:
        raise InputError(
            f"{path} needs the columns path and label, and optionally split (train, val or test); it has "
            f"{', '.join(frame.columns) or 'none'}"
        )
    texts: dict[str, list[str]] = {"split": []}
    for role, column in columns.items():
        if column is None:
            continue
        values = frame[column].to_list()
        empty = [row for row, value in enumerate(values, 1) if value is None or str(value).strip() == ""]
        if empty:
            raise InputError(f"{path}: column {column} is empty in row {empty[0]}; fill it in or drop the row")
        texts[role] = [str(value).strip() for value in values]
    return texts["path"], texts["label"], [_part(part, path, row) for row, part in enumerate(texts["split"], 1)]


def _column(role: str, columns: Sequence[str], path: Path) -> str | None:
    found = [column for column in columns if column.strip().lower() in _COLUMNS[role]]
    exact = [column for column in found if column.strip().lower() == role]
    if len(found) > 1 and not exact:
        raise InputError(f"{path}: columns {' and '.join(found)} could both be the {role}; call one of them {role}")
    return next(iter((*exact, *found)), None)


def _part(text: str, path: Path, row: int) -> str:
    if text.lower() not in _PARTS:
        raise InputError(f"{path}: split must be train, val or test, got {text!r} in row {row}")
    return _PARTS[text.lower()]


def _read_list(path: Path) -> tuple[list[str], list[str], list[str]]:
    """A path and a label per line, with a space, tab or comma between; the label is the last word."""
    paths, labels = [], []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of images ({error})") from error
    for row, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = re.fullmatch(r"\s*(\S.*?)\s*[\s,]\s*([^\s,]+)\s*", line)
        if words is None:
            raise InputError(f"{path}: line {row} must hold a path and a label, e.g. 'cats/1.jpg 0', got {line[:80]!r}")
        paths.append(words[1])
        labels.append(words[2])
    return paths, labels, []


def _inside(base: str, name: str, path: Path, row: int) -> str:
    """``name`` relative to ``base``; one that leads out of it is an error."""
    place = os.path.normpath(os.path.join(base, name))
    if not place.startswith(base.rstrip(os.sep) + os.sep):
        raise InputError(
            f"{path}: path {name!r} in row {row} leaves the folder {base}; set data.root to a folder that holds all images"
        )
    return os.path.relpath(place, base)


# --- parts ------------------------------------------------------------------------------------------------------------


def for_training(listing: Listing) -> Listing:
    """The listing, checked: there are training images of every class, and no image is in two parts.

    A validation part without a test part becomes the test part, as in ImageNet.
    """
    if not listing.parts:
        return listing
    parts = _val_as_test(listing.parts)
    if "train" not in parts:
        raise InputError(f"{listing.root} has no training images: no row or folder belongs to train")
    of: dict[str, str] = {}
    for name, part in zip(listing.names, parts, strict=True):
        if of.setdefault(name, part) != part:
            raise InputError(f"image {name} is in {of[name]} and in {part}; each image may be in one part only")
    known = {label for label, part in zip(listing.labels, parts, strict=True) if part == "train"}
    unknown = sorted(set(listing.labels) - known)
    if unknown:
        raise InputError(
            f"{listing.root}: {_some(unknown, 'class')} without training images; add some, or take the class out of the other "
            "parts"
        )
    return Listing(listing.root, listing.names, listing.labels, parts)


def _val_as_test(parts: list[str]) -> list[str]:
    return parts if "test" in parts else ["test" if part == "val" else part for part in parts]


def only(listing: Listing, part: str, test_fraction: float) -> Listing:
    """The images of one part, ``"all"`` for all of them."""
    if part == "all":
        return listing
    parts = _val_as_test(listing.parts) if listing.parts else divide(listing, test_fraction)
    rows = [row for row, found in enumerate(parts) if found == part]
    if not rows:
        raise InputError(f"{listing.root} has no images of the part {part} (it has {', '.join(sorted(set(parts)))})")
    return Listing(listing.root, [listing.names[row] for row in rows], [listing.labels[row] for row in rows])


def divide(listing: Listing, test_fraction: float) -> list[str]:
    """The part of each image, with ``test_fraction`` of every class as test set where the listing has none.

    Which images these are depends on their names alone (those with the smallest hashes), so the division is the same for
    everybody and new images hardly change it.
    """
    if "test" in listing.parts:
        return listing.parts
    parts = list(listing.parts) or ["train"] * len(listing.names)
    members: dict[str, list[int]] = {}
    for row, (label, part) in enumerate(zip(listing.labels, parts, strict=True)):
        if part == "train":
            members.setdefault(label, []).append(row)
    for label, rows in members.items():
        wanted = max(1, round(test_fraction * len(rows)))
        if wanted >= len(rows):
            raise InputError(
                f"{listing.root}: class {label} has only {_some([listing.names[row] for row in rows], 'image')}, too few for a "
                "training and a test set; add images or take the class out"
            )
        rows.sort(key=lambda row: hashlib.sha256(os.fsencode(listing.names[row])).digest())
        for row in rows[:wanted]:
            parts[row] = "test"
    return parts


def names_hash(names: Iterable[str]) -> NDArray[np.uint8]:
    """What changes when any name or their order does."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0")
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _some(items: Sequence[str], what: str) -> str:
    """``3 classes (a, b, c)``."""
    plural = what if len(items) == 1 else {"class": "classes"}.get(what, f"{what}s")
    shown = ", ".join(items[:_SHOWN]) + (", …" if len(items) > _SHOWN else "")
    return f"{len(items)} {plural} ({shown})"
