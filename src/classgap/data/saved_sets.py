"""Hugging Face data sets in a folder, as ``save_to_disk`` of the library ``datasets`` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgap.checks import InputError
from classgap.data.tables import PARTS

_LABELS = ("label", "labels", "fine_label", "category", "target", "class")
_TEXTS = ("text", "sentence", "content")


@dataclass(frozen=True)
class SavedSet:
    """What such a folder holds; see :class:`~classgap.data.listing.Listing`."""

    names: list[str]
    labels: list[str]
    parts: list[str]
    kind: Literal["image", "text"]
    order: tuple[str, ...]
    pictures: Any


def is_saved_set(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def read_saved_set(folder: Path) -> SavedSet:
    """Texts or images of a saved data set; images stay in its files until they are needed."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{folder} is a data set of the library datasets, which is not installed: pip install datasets"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever Arrow says about a damaged or missing file
        raise InputError(
            f"{folder} cannot be read as a saved data set ({' '.join(str(error).split())[:200]}); save it again"
        ) from error
    sets = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"": loaded}
    if len(sets) > 1 and (unknown := [name for name in sets if name.lower() not in PARTS]):
        raise InputError(f"{folder}: the parts must be train, val (or validation) and test, got {', '.join(unknown)}")
    first = next(iter(sets.values()))
    value, kind = _value_column(folder, first, datasets)
    label = _column(folder, first, _LABELS, "labels")
    names: list[str] = []
    labels: list[str] = []
    parts: list[str] = []
    for part, dataset in sets.items():
        values = list(dataset[value]) if kind == "text" else [f"{part or 'row'}/{row}" for row in range(len(dataset))]
        if (row := next((row for row, text in enumerate(values) if not (text and text.strip())), None)) is not None:
            raise InputError(f"{folder}: column {value} is empty in row {row}; fill it in or drop the row")
        names += values
        labels += _label_names(folder, dataset, label)
        parts += [PARTS[part.lower()]] * len(dataset) if len(sets) > 1 else []
    pictures = None
    if kind == "image":
        joined = datasets.concatenate_datasets([d.select_columns([value]) for d in sets.values()])
        pictures = joined.cast_column(value, datasets.Image(decode=False))
        pictures = pictures if value == "image" else pictures.rename_column(value, "image")
    order = tuple(first.features[label].names) if hasattr(first.features[label], "names") else ()
    return SavedSet(names, labels, parts, kind, order, pictures)


def _value_column(folder: Path, dataset: Any, datasets: Any) -> tuple[str, Literal["image", "text"]]:
    images = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
    if len(images) == 1:
        return images[0], "image"
    if len(images) > 1:
        raise InputError(f"{folder} has several columns of images ({', '.join(images)}); save it with one of them")
    return _column(folder, dataset, _TEXTS, "images or texts"), "text"


def _column(folder: Path, dataset: Any, known: tuple[str, ...], what: str) -> str:
    found = next((name for name in known if name in dataset.column_names), None)
    if found is None:
        raise InputError(
            f"{folder} has no column of {what}; wanted is one called {' or '.join(known)}, it has "
            f"{', '.join(dataset.column_names)}"
        )
    return found


def _label_names(folder: Path, dataset: Any, column: str) -> list[str]:
    feature, values = dataset.features[column], dataset[column]
    named = getattr(feature, "names", None)
    for row, value in enumerate(values):
        if value is None or (named is not None and not 0 <= value < len(named)):
            raise InputError(f"{folder}: column {column} holds {value} in row {row}, which is no class; drop such rows")
    return [named[value] if named is not None else str(value) for value in values]
