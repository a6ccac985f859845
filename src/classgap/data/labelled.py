"""Samples with labels that a trained network is to be applied to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from classgap.checks import InputError, class_indices, one_of, shown
from classgap.data.images import ImageFiles
from classgap.data.items import Array, FileOptions, Items, label_indices
from classgap.data.listing import read_listing, rows_of
from classgap.data.own import left_out, open_listing
from classgap.data.python_sets import DatasetItems, as_tensor, dataset_labels
from classgap.data.samples import Split, resized
from classgap.data.sources import load_source, own_listing
from classgap.data.synsets import class_words, is_synset
from classgap.data.texts import Encode, Texts

Part = Literal["train", "val", "test", "all"]
_SHOWN = 5


@dataclass(frozen=True)
class Expected:
    """What a trained network takes.

    Attributes:
        files: How image files are read.
        encode: Tokeniser of a text model.
        standardised: Whether images are whole numbers from 0 to 255, which the network standardises.
    """

    class_names: tuple[str, ...]
    in_shape: tuple[int, ...]
    files: FileOptions
    encode: Encode | None = None
    standardised: bool = True


@dataclass(frozen=True, eq=False)
class Opened:
    """Samples to predict.

    Attributes:
        labels: Positions among the expected classes, if the labels are known.
        notes: What the user should know, e.g. which files were left out.
    """

    split: Split
    labels: Array | None
    notes: tuple[str, ...] = ()


def open_samples(data: Any, labels: Any, part: Part | None, expected: Expected) -> Opened:
    """Samples, and their labels if these are known.

    Args:
        data: A name or path as in ``data.name``, a torch data set, an array or tensor of samples, or a list of texts.
        labels: Class indices or names of samples that come as an array.
        part: Which part of a named set, folder or table; by default the test part where there are parts, otherwise all.
    """
    if part is not None:
        one_of("part", part, get_args(Part))
    x: Tensor | Items
    y: Array | None
    names: Sequence[str] | None
    notes: tuple[str, ...] = ()
    if isinstance(data, (str, Path)):
        if labels is not None:
            raise InputError("labels come with a named data set, folder or file; pass them for arrays only")
        x, y, names, notes = _named(str(data), part, expected)
        notes += _as_positions(names, expected.class_names)
    elif hasattr(data, "__getitem__") and not isinstance(data, (np.ndarray, Tensor, list)):
        y = dataset_labels("given", data)
        items = DatasetItems(data, np.arange(len(data)), tuple(as_tensor(data[0][0]).shape))
        x, names = items, getattr(data, "classes", None)
    else:
        x = _given(data, expected)
        y, names = None if labels is None else np.asarray(labels), None
        if y is not None and y.dtype.kind in "USO" and len(y):
            texts = [label.decode() if isinstance(label, bytes) else str(label) for label in y.tolist()]
            names = sorted(set(texts))
            y = label_indices(texts, names)
    _require_shape(tuple(x.shape[1:]), expected.in_shape)
    _require_type(x, expected)
    split = Split(x, torch.zeros(len(x), dtype=torch.long), expected.files.workers)
    return Opened(split, None if y is None else _codes(y, names, expected.class_names, len(x)), notes)


def _given(data: Any, expected: Expected) -> Tensor | Items:
    if isinstance(data, list) and data and isinstance(data[0], str):
        if expected.encode is None:
            raise InputError(
                "data is a list of texts, but the network was not trained on texts; pass images or vectors"
            )
        return Texts.of(data, expected.encode)
    try:
        found = torch.as_tensor(np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"data must be an array of numbers, or a list of texts, got {shown(data)}") from error
    is_vectors = len(expected.in_shape) == 1 and expected.encode is None
    return found.float() if is_vectors and not found.is_complex() else found


def _named(
    name: str, part: Part | None, expected: Expected
) -> tuple[Tensor | Items, Array, Sequence[str], tuple[str, ...]]:
    path = own_listing(name)
    if path is None:
        return (*_published(name, part, expected), ())
    options = expected.files
    whole = read_listing(path, options.root)
    rows = rows_of(whole, part or ("test" if whole.parts else "all"), options.test_fraction)
    listing = whole.take(rows)
    items, kept = open_listing(listing, options, expected.encode)
    if isinstance(items, Texts):  # their ids are positions in the file, as in a run
        items = Texts.of(whole.names, expected.encode).take(rows)
    if isinstance(items, ImageFiles):
        if len(expected.in_shape) != 3:
            raise InputError(
                f"the network was trained on samples of shape {expected.in_shape}, but {name} holds images"
            )
        _, height, width = expected.in_shape
        shorter = options.resize or options.size or min(height, width)
        items = dataclasses.replace(items, size=(height, width), shorter=shorter)
    elif expected.encode is None:
        raise InputError(f"{name} holds texts, but the network was trained on samples of shape {expected.in_shape}")
    names = listing.class_names
    y = np.array([names.index(listing.labels[row]) for row in kept], dtype=np.int64)
    return items, y, names, left_out(listing, kept)


def _published(name: str, part: Part | None, expected: Expected) -> tuple[Tensor | Items, Array, Sequence[str]]:
    options = expected.files
    if options.size is None and len(expected.in_shape) == 3:
        options = dataclasses.replace(options, size=expected.in_shape[1])  # files need it, arrays may have it already
    source = load_source(name, files=dataclasses.replace(options, partial=True))
    if isinstance(source.x_test, np.ndarray):
        source = resized(source, expected.files)
    if part == "all":
        raise InputError(f"part=all is for folders and tables of your own; {name} has the parts train and test")
    if part == "val":
        if source.x_val is None or source.y_val is None:
            raise InputError(
                f"{name} has no validation part of its own; the one of a run is in its predictions_val.npz"
            )
        x, y = source.x_val, source.y_val
    else:
        x, y = (source.x_train, source.y_train) if part == "train" else (source.x_test, source.y_test)
    samples = torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x
    return samples, y, source.class_names


def _require_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if shape != wanted:
        raise InputError(
            f"the network was trained on samples of shape {wanted}, these have {shape}; images are (channels, height, width), "
            "uint8"
        )


def _require_type(x: Tensor | Items, expected: Expected) -> None:
    """Refuse images that the network would see on another scale than in training."""
    if len(expected.in_shape) != 3 or not len(x):
        return
    whole_numbers = not (x if isinstance(x, Tensor) else x.batch([0])).is_floating_point()
    if expected.standardised and not whole_numbers:
        raise InputError(
            "the network was trained on images of 0 to 255, got floating point numbers; pass images as uint8"
        )
    if not expected.standardised and whole_numbers:
        raise InputError(
            "the network was trained on images of floating point numbers as its data set gave them, got whole numbers; pass "
            "images that are prepared in the same way"
        )


def _codes(y: Array, names: Sequence[str] | None, known: tuple[str, ...], rows: int) -> Array:
    """Labels as positions among the classes that the network knows: by name, or by number where the data have no names."""
    if names is None:
        return class_indices("labels", y, len(known), rows=rows)
    if _are_numbers(names, known):
        positions: Array = np.array([int(name) for name in names], dtype=np.int64)[y]
        return class_indices("labels", positions, len(known), rows=rows)
    if any(
        is_synset(name) for name in names if name not in known
    ):  # a folder of WordNet ids, a network that knows words
        names = class_words(names)[0]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"the network does not know the classes {_some(unknown)}; it was trained on {_some(known)}")
    place = np.array([known.index(name) for name in names], dtype=np.int64)
    codes: Array = place[class_indices("labels", y, len(place), rows=rows)]
    return codes


def _are_numbers(names: Sequence[str], known: tuple[str, ...]) -> bool:
    """Whether the classes of the data are some of 0, 1, 2, … but those of the network have names."""
    return set(names) <= {str(k) for k in range(len(known))} and not set(names) <= set(known)


def _as_positions(names: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    if not _are_numbers(names, known):
        return ()
    meaning = _some([f"{k} as {name}" for k, name in enumerate(known)])
    return (f"the labels are numbers and are taken as positions among the classes of the network: {meaning}",)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
