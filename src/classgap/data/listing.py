"""Which samples there are and what they show: folders of classes, tables, list files. No image is opened here."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError
from classgap.data.images import SUFFIXES
from classgap.data.saved_sets import is_saved_set, read_saved_set
from classgap.data.tables import PARTS, read_rows, tables_of_parts

_SHOWN = 3


@dataclass(frozen=True)
class Listing:
    """Samples with labels and the part each belongs to.

    Attributes:
        root: Folder that the names of images are relative to; where the samples come from otherwise.
        names: Names of images, or the texts themselves.
        labels: Class name of each sample.
        parts: ``"train"``, ``"val"`` or ``"test"`` of each sample; empty where there is no division.
        kind: Whether the samples are images or texts.
        order: Classes in the order of their published numbers, where there is one.
        pictures: Images of a Hugging Face data set, in the order of the names.
        notes: What the user should know.
    """

    root: str
    names: list[str]
    labels: list[str]
    parts: list[str] = field(default_factory=list)
    kind: Literal["image", "text"] = "image"
    order: tuple[str, ...] = ()
    pictures: Any = None
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes in alphabetical order, in numerical order where all of them are numbers, unless an order is given."""
        if self.order:
            return self.order
        names = set(self.labels)
        return tuple(sorted(names, key=_by_value) if all(map(_is_number, names)) else sorted(names))

    def take(self, rows: Sequence[int]) -> Listing:
        """These samples, in this order."""
        names, labels, parts = ([column[row] for row in rows] if column else [] for column in self._columns)
        pictures = None if self.pictures is None else self.pictures.select(list(rows))
        return dataclasses.replace(self, names=names, labels=labels, parts=parts, pictures=pictures)

    @property
    def _columns(self) -> tuple[list[str], list[str], list[str]]:
        return self.names, self.labels, self.parts


def read_listing(path: Path, root: str | None = None) -> Listing:
    """The samples that a folder, table or list file names.

    Args:
        path: A folder ``PATH/train/CLASS/…`` with ``test`` or ``val`` beside ``train``, a folder ``PATH/CLASS/…``, a ``.csv``,
            ``.tsv`` or ``.parquet`` table with columns ``path`` (or ``text``), ``label`` and optionally ``split``, a folder with
            such a table for each part (``train.csv``, ``test.csv``), a ``.txt`` or ``.lst`` file with a path and a label per
            line, or a folder that ``datasets.Dataset.save_to_disk`` wrote.
        root: Folder that paths in a table or list file are relative to; by default the folder of that file.
    """
    if path.is_dir():
        tables = {} if (path / "train").is_dir() else tables_of_parts(path)
        if tables:
            return _joined([_table(table, _base(table, root), part) for part, table in tables.items()])
        if root is not None:
            raise InputError(f"data.root={root} is for tables and list files, but {path} is a folder; leave it out")
        if is_saved_set(path):
            saved = read_saved_set(path)
            return Listing(str(path), saved.names, saved.labels, saved.parts, saved.kind, saved.order, saved.pictures)
        return _folder(path)
    return _table(path, _base(path, root))


def _base(table: Path, root: str | None) -> Path:
    return Path(root).expanduser() if root is not None else table.parent


def _joined(listings: Sequence[Listing]) -> Listing:
    first = listings[0]
    if len({listing.kind for listing in listings}) > 1:
        raise InputError(
            f"{first.root}: some of its tables hold paths of images and some hold texts; choose one of them"
        )
    columns = zip(*(listing._columns for listing in listings), strict=True)
    names, labels, parts = ([entry for column in same for entry in column] for same in columns)
    return dataclasses.replace(first, names=names, labels=labels, parts=parts)


# --- folders ----------------------------------------------------------------------------------------------------------


def _folder(path: Path) -> Listing:
    inside = _subfolders(path)
    parts = {name: PARTS[name.lower()] for name in inside if name.lower() in PARTS}
    # Without train, folders named test or val may be classes; they are parts if they are all there is and hold folders.
    only_parts = bool(parts) and len(parts) == len(inside) and all(_subfolders(path / name) for name in parts)
    if "train" not in parts.values() and not only_parts:
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
    empty = [label for label in classes if next(iter(_images_below(path / label, root)), None) is None]
    if empty:  # known before everything is listed, which takes long for a folder that was never meant
        raise InputError(
            f"{path}: {some(empty, 'class folder')} without images ({', '.join(SUFFIXES)}); add images or remove the folder"
        )
    names: list[str] = []
    labels: list[str] = []
    for label in classes:
        found = sorted(_images_below(path / label, root))
        names.extend(found)
        labels.extend([label] * len(found))
    return names, labels


def _images_below(folder: Path, root: Path) -> Iterable[str]:
    """Images in a folder and all folders in it, each folder once, also where links lead to it again."""
    seen: set[tuple[int, int]] = set()
    for place, below, files in os.walk(folder, onerror=_raise, followlinks=True):
        state = os.stat(place)
        if (state.st_dev, state.st_ino) in seen:
            below.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        below[:] = sorted(name for name in below if not name.startswith("."))
        relative = os.path.relpath(place, root)
        for name in files:
            if _is_image(name):
                yield f"{relative}/{name}"


def _raise(error: OSError) -> None:
    """A folder that cannot be read must not be left out."""
    raise error


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


# --- tables and list files --------------------------------------------------------------------------------------------


def _table(path: Path, root: Path, part: str | None = None) -> Listing:
    """A table or list file; where ``part`` is given all of its rows belong to it."""
    rows = read_rows(path)
    if not rows.values:
        raise InputError(f"{path} names no {'texts' if rows.texts else 'images'}")
    if part is not None and rows.parts:
        raise InputError(
            f"{path} is the table of the part {part}, so its column split says it twice; remove the column"
        )
    parts = rows.parts if part is None else [part] * len(rows.values)
    if rows.texts:
        return Listing(str(path), rows.values, rows.labels, parts, "text")
    base = os.path.abspath(root)
    names = [inside(base, name, path, row) for row, name in enumerate(rows.values, 1)]
    require_files(
        base, names, f"{path} names {len(names)} images", "paths are relative to that folder, which data.root changes"
    )
    return Listing(base, names, rows.labels, parts)


def require_files(base: str, names: Sequence[str], what: str, way_out: str) -> None:
    """Refuse a list of images of which some are missing. Folders are listed, which is much faster than to ask for each file."""
    inside: dict[str, set[str]] = {}
    missing = []
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder not in inside:
            try:
                inside[folder] = set(os.listdir(os.path.join(base, folder)))
            except OSError:
                inside[folder] = set()
        if file not in inside[folder]:
            missing.append(name)
    if missing:
        raise InputError(f"{what}, but {base} lacks {some(missing, 'image')}; {way_out}")


def inside(base: str, name: str, path: Path, row: int) -> str:
    """``name`` relative to ``base``; one that leads out of it is an error."""
    place = os.path.normpath(os.path.join(base, name))
    if not place.startswith(base.rstrip(os.sep) + os.sep):
        raise InputError(
            f"{path}: path {name!r} in row {row} leaves the folder {base}; set data.root to a folder that holds all images"
        )
    return os.path.relpath(place, base).replace(os.sep, "/")


# --- parts ------------------------------------------------------------------------------------------------------------


def for_training(listing: Listing) -> Listing:
    """The listing, checked: there are training images of every class, and no image is in two parts.

    A validation part without a test part becomes the test part, as in ImageNet.
    """
    if not listing.parts:
        return listing
    parts = _val_as_test(listing.parts)
    if "train" not in parts:
        raise InputError(f"{listing.root} has no training {listing.kind}s: no row or folder belongs to train")
    of: dict[str, str] = {}
    for name, part in zip(listing.names, parts, strict=True):
        if of.setdefault(name, part) != part and listing.kind == "image":
            raise InputError(f"image {name} is in {of[name]} and in {part}; each image may be in one part only")
    known = {label for label, part in zip(listing.labels, parts, strict=True) if part == "train"}
    unknown = [name for name in listing.class_names if name not in known]
    if unknown:
        raise InputError(
            f"{listing.root}: {some(unknown, 'class')} without training {listing.kind}s; add some, or take the "
            "class out of the other parts"
        )
    return dataclasses.replace(listing, parts=parts)


def _val_as_test(parts: list[str]) -> list[str]:
    return parts if "test" in parts else ["test" if part == "val" else part for part in parts]


def rows_of(listing: Listing, part: str, test_fraction: float) -> list[int]:
    """The positions of the samples of one part, ``"all"`` for all of them."""
    if part == "all":
        return list(range(len(listing.names)))
    parts = _val_as_test(listing.parts) if listing.parts else divide(listing, test_fraction)
    rows = [row for row, found in enumerate(parts) if found == part]
    if not rows:
        raise InputError(
            f"{listing.root} has no {listing.kind}s of the part {part} (it has {', '.join(sorted(set(parts)))})"
        )
    return rows


def divide(listing: Listing, test_fraction: float) -> list[str]:
    """The part of each image, with ``test_fraction`` of every class as test set where the listing has none.

    Which images these are depends on their names alone (those with the smallest hashes), so the division is the same for
    everybody and new images hardly change it. An image or a text that is listed several times is in one part only.
    """
    if "test" in listing.parts:
        return listing.parts
    parts = list(listing.parts) or ["train"] * len(listing.names)
    members: dict[str, list[int]] = {}
    tested: set[str] = set()
    for row, (label, part) in enumerate(zip(listing.labels, parts, strict=True)):
        if part == "train":
            members.setdefault(label, []).append(row)
    for label, rows in members.items():
        wanted = max(1, round(test_fraction * len(rows)))
        chosen = _with_smallest_hashes([listing.names[row] for row in rows], wanted)
        if wanted >= len(rows) or len(chosen) == len({listing.names[row] for row in rows}):
            few = some([listing.names[row] for row in rows], listing.kind)
            if len(rows) == 1:
                advice = "too few for a training and a test set; add some or take the class out"
            else:
                advice = f"and data.test_fraction={test_fraction:g} would put all of them into the test set; lower it"
            raise InputError(f"{listing.root}: class {label} has only {few}, {advice}")
        tested |= chosen
    return [
        "test" if part == "train" and name in tested else part for part, name in zip(parts, listing.names, strict=True)
    ]


def _with_smallest_hashes(names: Sequence[str], wanted: int) -> set[str]:
    """Names that occur ``wanted`` times in all, or a little more often: those of the same name stay together."""
    return set(sorted(names, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())[:wanted])


def names_hash(names: Iterable[str]) -> NDArray[np.uint8]:
    """What changes when any name or their order does."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0")
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) is not None


def _by_value(text: str) -> tuple[Fraction, str]:
    return Fraction(text), text  # 1 and 01 are two classes


def some(items: Sequence[str], what: str) -> str:
    """``3 classes (a, b, c)``."""
    plural = what if len(items) == 1 else {"class": "classes"}.get(what, f"{what}s")
    shown = ", ".join(items[:_SHOWN]) + (", …" if len(items) > _SHOWN else "")
    return f"{len(items)} {plural} ({shown})"
