"""Data sets by name (``classgap data list``) or by the path of a folder, table or archive."""

from __future__ import annotations

import os
from pathlib import Path

from classgap.checks import InputError, did_you_mean
from classgap.data.array_sets import npz_source
from classgap.data.catalogue import SOURCES
from classgap.data.features import feature_source
from classgap.data.items import FileOptions, Source
from classgap.data.own import own_source
from classgap.data.tables import LISTS, TABLES
from classgap.data.texts import Encode

FEATURES = ".safetensors"


def data_root() -> Path:
    """Folder of downloaded data sets: ``$CLASSGAP_DATA``, or a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    return Path(os.environ.get("CLASSGAP_DATA", Path(cache) / "classgap"))


def load_source(name: str, *, files: FileOptions | None = None, encode: Encode | None = None) -> Source:
    """The data set called ``name``. Nothing is downloaded: that is what ``classgap data prepare`` is for.

    Args:
        name: A name of ``classgap data list``, or the path of your own data: a folder of images (``PATH/train/CLASS/…`` beside
            ``PATH/test`` or ``PATH/val``, or ``PATH/CLASS/…``), a ``.csv``, ``.tsv`` or ``.parquet`` table with columns ``path``
            (of images) or ``text``, ``label`` and optionally ``split``, a folder with such a table for each part
            (``train.csv``, ``test.csv``), a ``.txt`` or ``.lst`` file with a path and a label per line, a folder that
            ``datasets.Dataset.save_to_disk`` wrote, an ``.npz`` archive, or a ``.safetensors`` file of ``classgap features``.
        files: How images in files are read.
        encode: Turns texts into a tensor; the tokeniser of a text model.
    Example:
        >>> source = load_source("digits")
        >>> source.x_train.shape, source.x_test.shape
        ((797, 1, 8, 8), (1000, 1, 8, 8))
    """
    options = files or FileOptions()
    kind, _, path = name.partition(":")
    if kind == "npz" and path:
        return npz_source(name, _own_path(path))
    if kind == "dataset":
        raise InputError(
            f"data={name} stands for torch data sets given in Python; pass them: train(…, data=(train, test))"
        )
    if name in SOURCES:
        return SOURCES[name].load(
            name, data_root() if options.root is None else Path(options.root).expanduser(), options
        )
    if not _is_path(name):
        raise InputError(did_you_mean(name, [*SOURCES, "PATH of a folder, table or .npz file"], what="data set"))
    place = own_listing(name)
    if place is not None:
        return own_source(name, place, options, encode)
    place = _own_path(name)
    return feature_source(name, place) if place.suffix.lower() == FEATURES else npz_source(name, place)


def own_listing(name: str) -> Path | None:
    """The folder, table or list of samples that ``name`` is the path of; ``None`` for a known name and for an archive."""
    if not name.strip():
        raise InputError("data must be the name or path of a data set, got an empty text (is a variable not set?)")
    if name in SOURCES or name.startswith(("npz:", "dataset:")) or not _is_path(name):
        return None
    place = _own_path(name)
    if place.is_file() and place.suffix.lower() in (".npz", FEATURES):
        return None
    if place.is_file() and place.suffix.lower() not in (*TABLES, *LISTS):
        raise InputError(
            f"data={name} must be a folder of images, a {', '.join(TABLES)} table, a {', '.join(LISTS)} list of images, an "
            f".npz archive or a {FEATURES} file of classgap features; this file is none of them"
        )
    return place


def _is_path(name: str) -> bool:
    known = Path(name).suffix.lower() in (".npz", FEATURES, *TABLES, *LISTS)
    return known or "/" in name or os.sep in name or any(place.exists() for place in _places(name))


def _places(name: str) -> tuple[Path, Path]:
    """A relative path is looked for in the current folder, then among the data sets."""
    path = Path(name).expanduser()
    return path, data_root() / path


def _own_path(name: str) -> Path:
    found = next((place for place in _places(name) if place.exists()), None)
    if found is None:
        raise InputError(
            f"there is no file or folder {name}; a relative path is looked for in {Path.cwd()} and in {data_root()}, which "
            "CLASSGAP_DATA changes"
        )
    return found
