"""Tables and list files of samples: the columns path or text, label, and optionally split. Nothing they name is opened here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from classgap.checks import InputError

TABLES = (".csv", ".tsv", ".parquet")
LISTS = (".txt", ".lst")
PARTS = {
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
    "text": ("text", "sentence", "content"),
    "label": ("label", "class", "target", "category", "class_name"),
    "split": ("split", "part", "subset", "set"),
}


@dataclass(frozen=True)
class Rows:
    """The rows of a table.

    Attributes:
        values: Paths of images, or texts.
        texts: Whether they are texts.
        parts: ``"train"``, ``"val"`` or ``"test"`` of each row; empty where there is no division.
    """

    values: list[str]
    labels: list[str]
    parts: list[str]
    texts: bool = False


def read_rows(path: Path) -> Rows:
    """What a table or list file names."""
    if path.suffix.lower() in LISTS:
        return _read_list(path)
    return _read_table(path)


def tables_of_parts(folder: Path) -> dict[str, Path]:
    """Tables called ``train``, ``val`` or ``test`` directly inside a folder, by part; none unless there is one for training."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in TABLES and path.stem.lower() in PARTS and path.is_file():
            part = PARTS[path.stem.lower()]
            if part in found:
                raise InputError(f"{folder} holds several tables for one part ({found[part].name}, {path.name})")
            found[part] = path
    return found if "train" in found else {}


def _read_table(path: Path) -> Rows:
    import polars as pl

    from classgap.predictions.csv_files import read_small_csv

    try:
        frame = pl.read_parquet(path, glob=False) if path.suffix.lower() == ".parquet" else read_small_csv(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from error
    columns = {role: _column(role, frame.columns, path) for role in _COLUMNS}
    value = "path" if columns["path"] is not None else "text"
    if columns[value] is None or columns["label"] is None:
        raise InputError(
            f"{path} needs the columns path (of images) or text, and label, and optionally split (train, val or test); it has "
            f"{', '.join(frame.columns) or 'none'}"
        )
    texts: dict[str, list[str]] = {"split": []}
    for role in (value, "label", "split"):
        if (column := columns[role]) is None:
            continue
        if isinstance(frame.schema[column], (pl.Binary, pl.Struct, pl.List, pl.Array)):
            raise InputError(
                f"{path}: column {column} holds {frame.schema[column]}, wanted are texts or paths of image files; a table with "
                "the images inside can be opened with Hugging Face's datasets and saved with save_to_disk"
            )
        values = frame[column].to_list()
        empty = [row for row, entry in enumerate(values, 1) if entry is None or str(entry).strip() == ""]
        if empty:
            raise InputError(f"{path}: column {column} is empty in row {empty[0]}; fill it in or drop the row")
        texts[role] = [str(entry).strip() for entry in values]
    header = str(columns[value]), str(columns["label"])
    if header in zip(texts[value], texts["label"], strict=True):
        raise InputError(
            f"{path}: a row is the header again ({', '.join(header)}), so that the file may have been joined from several ones "
            "with their headers; remove this row"
        )
    parts = [_part(part, path, row) for row, part in enumerate(texts["split"], 1)]
    return Rows(texts[value], texts["label"], parts, texts=value == "text")


def _column(role: str, columns: Sequence[str], path: Path) -> str | None:
    found = [column for column in columns if column.strip().lower() in _COLUMNS[role]]
    exact = [column for column in found if column.strip().lower() == role]
    if len(found) > 1 and not exact:
        raise InputError(f"{path}: columns {' and '.join(found)} could both be the {role}; call one of them {role}")
    return next(iter((*exact, *found)), None)


def _part(text: str, path: Path, row: int) -> str:
    if text.lower() not in PARTS:
        raise InputError(f"{path}: split must be train, val or test, got {text!r} in row {row}")
    return PARTS[text.lower()]


def _read_list(path: Path) -> Rows:
    """A path and a label per line, with a space, tab or comma between; the label is the last word."""
    paths, labels = [], []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of images ({error})") from error
    for row, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = _LINE.fullmatch(line)
        if words is None:
            raise InputError(f"{path}: line {row} must hold a path and a label, e.g. 'cats/1.jpg 0', got {line[:80]!r}")
        paths.append(words[1])
        labels.append(words[2])
    return Rows(paths, labels, [])


_LINE = re.compile(r"\s*(\S.*?)\s*[\s,]\s*([^\s,]+)\s*")
