"""Prediction files: CSV, Parquet (also a folder of files), NPZ and safetensors.

A table with only true and predicted labels is counted while it is read, so 100 million rows need no more memory than
their confusion matrix. Scores and features are read into memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.predictions.archives import Arrays, read_npz, read_safetensors
from classgap.predictions.arrays import Source, encode, plain_column
from classgap.predictions.columns import Columns, pick, pick_samples, require_labels
from classgap.predictions.predictions import PER_ROW, Predictions, Progress
from classgap.predictions.side_files import counts_in_order

Paths = Path | str | Sequence[Path | str]
_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".safetensors": "safetensors",
}


def read_predictions(
    paths: Paths,
    columns: Columns | None,
    class_names: Sequence[str] | None,
    train_counts: Any,
    *,
    rows: bool,
    progress: Progress | None,
) -> Predictions:
    """Read one data set from one or more files; see :meth:`Predictions.read`."""
    files, kind = _expand(paths)
    columns = columns or Columns()
    if kind in ("csv", "parquet"):
        found = _read_table(files, kind, columns, class_names, rows, progress)
    else:
        found = _read_archives(files, kind, columns, class_names)
    if found.paths is not None:
        found = replace(found, columns={**found.columns, "path": _located(found.paths, files[0].parent)})
    if train_counts is not None:
        found = replace(found, train_counts=counts_in_order(train_counts, found.classes))
    return found


def _located(paths: NDArray[Any], folder: Path) -> NDArray[Any]:
    """Paths of image files as they can be opened from here; paths that are relative to ``folder`` get its name in front."""
    relative = next((str(path) for path in paths if str(path) and not Path(str(path)).is_absolute()), None)
    if relative is None or Path(relative).exists() or not (folder / relative).exists():
        return paths
    return np.array([str(folder / str(path)) if str(path) else "" for path in paths], dtype=object)


def count_two_tables(
    before: Paths,
    after: Paths,
    columns: Columns,
    *,
    class_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> tuple[Predictions, Predictions, Ints] | None:
    """Confusion counts of two tables of labels, and per class the ``(2, 2)`` table of (correct before, correct after).

    None if the tables hold more than labels, so that their rows must be read.
    """
    sides = [_expand(before), _expand(after)]
    if not {kind for _, kind in sides} <= {"csv", "parquet"}:
        return None
    from classgap.predictions.tables import count_pairs, open_table

    with _readable(sides[0][0][0]):
        tables = [open_table(files, kind, columns) for files, kind in sides]
        if not all(table.countable for table in tables):
            return None
        classes, first, second, pairs = count_pairs(tables[0], tables[1], class_names, progress)
    return Predictions(classes, counted=first), Predictions(classes, counted=second), pairs


def _expand(paths: Paths) -> tuple[list[Path], str]:
    """The files in ``paths``, with folders replaced by their files, and the common format."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given or any(str(path) in ("", ".") for path in given):
        raise InputError(f"expected the path of a prediction file, got {[str(path) for path in given]}")
    files: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            parts = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in _FORMATS and p.name[0] not in "._"]
            if not parts:
                raise InputError(f"folder {path} contains no prediction file ({', '.join(_FORMATS)})")
            files += parts
        elif not path.exists():
            raise InputError(f"there is no file {path}")
        else:
            files.append(path)
    for file in files:
        if file.suffix.lower() not in _FORMATS:
            raise InputError(f"{file} has an unknown file extension; classgap reads {', '.join(_FORMATS)}")
        if file.stat().st_size == 0:
            raise InputError(f"{file} is an empty file; write the predictions again")
    kinds = {_FORMATS[f.suffix.lower()] for f in files}
    if len(kinds) != 1:
        raise InputError(
            f"the files of one data set must have the same format, got {' and '.join(sorted(kinds)) or 'no file'}"
        )
    return files, kinds.pop()


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn an error of the table reader into one sentence."""
    import polars as pl

    try:
        yield
    except pl.exceptions.PolarsError as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"{file} ends in {file.suffix} but cannot be read in this format ({reason})") from None


def _read_table(
    files: list[Path],
    kind: str,
    columns: Columns,
    names: Sequence[str] | None,
    rows: bool,
    progress: Progress | None,
) -> Predictions:
    from classgap.predictions.tables import count_rows, open_table, read_rows

    with _readable(files[0]):
        table = open_table(files, kind, columns)
        if table.countable and not rows:
            classes, confusion, notes = count_rows(table, names, progress)
            return Predictions(classes, counted=confusion, notes=notes)
        arrays, samples, titles = read_rows(table)
    return encode(arrays, Source(titles, "--names"), columns=samples, names=names or table.columns.spelled)


def _read_archives(files: list[Path], kind: str, columns: Columns, names: Sequence[str] | None) -> Predictions:
    read = read_npz if kind == "npz" else read_safetensors
    parts = [_roles(read(file), file, columns) for file in files]
    for file, (part, _, _) in zip(files, parts, strict=True):
        _check_part(part, parts[0][0], file, files[0])
    arrays, samples, titles = parts[0]
    if len(parts) > 1:
        joined = {role: np.concatenate([part[role] for part, _, _ in parts]) for role in PER_ROW if role in arrays}
        arrays = {**arrays, **joined}
        samples = {name: np.concatenate([part[name] for _, part, _ in parts]) for name in samples}
    if names is None and "class_names" in arrays:
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in arrays["class_names"].ravel()]
    return encode(arrays, Source(titles, "--names"), columns=samples, names=names)


def _check_part(part: Arrays, first: Arrays, file: Path, first_file: Path) -> None:
    """The files of one data set must hold the same arrays, of the same width, and equal arrays where these are not per row."""
    if part.keys() != first.keys():
        raise InputError(
            f"{file} and {first_file} hold different arrays; all files of one data set must hold the same arrays"
        )
    for role, array in part.items():
        if role in PER_ROW and array.shape[1:] != first[role].shape[1:]:
            raise InputError(
                f"{role} has rows of shape {array.shape[1:]} in {file} and {first[role].shape[1:]} in {first_file}; "
                "the shapes must be equal"
            )
        if role not in PER_ROW and not np.array_equal(array, first[role]):
            raise InputError(
                f"{role} differs between {file} and {first_file}; it must be equal in all files of one data set"
            )


def _roles(arrays: Arrays, file: Path, columns: Columns) -> tuple[Arrays, Arrays, dict[str, str]]:
    """The arrays of one archive by role, its per-sample columns, and the name of each array in error messages."""
    available = list(arrays)
    wanted = {
        "y_true": pick("true", columns.true, available),
        "y_pred": pick("pred", columns.pred, available),
        "scores": pick("scores", columns.scores, available),
        "features": pick("features", columns.features, available),
    } | {
        role: pick(role, None, available) for role in ("weight", "bias", "margin_norms", "train_counts", "class_names")
    }
    found = {role: arrays[name] for role, name in wanted.items() if name is not None}
    titles = {role: f"array {name!r}" for role, name in wanted.items() if name is not None}
    from_head = "scores" not in found and {"features", "weight"} <= found.keys()
    require_labels("y_true" in found, "y_pred" in found or "scores" in found or from_head, file, available)
    for role in ("y_true", "y_pred"):
        if role in found:
            _check_labels(found[role], titles[role], file)
    samples = {}
    for name, array in pick_samples(columns, available).items():
        _check_labels(arrays[array], f"array {array!r}", file)
        if len(arrays[array]) != len(found["y_true"]):
            raise InputError(
                f"array {array!r} in {file} must have one entry per sample, {len(found['y_true'])}, got {len(arrays[array])}"
            )
        samples[name] = plain_column(arrays[array])
    for role in ("scores", "features", "weight"):
        if role in found and (found[role].ndim != 2 or found[role].dtype.kind not in "fiu"):
            raise InputError(
                f"{titles[role]} in {file} must be a matrix of numbers, "
                f"got shape {found[role].shape} of {found[role].dtype}"
            )
    return found, samples, titles


def _check_labels(labels: NDArray[Any], title: str, file: Path) -> None:
    if labels.ndim == 2 and set(np.unique(labels[:1000]).tolist()) <= {0, 1}:
        several = (labels.sum(axis=1) != 1).any()
        advice = (
            "multi-label data are not supported: audit one label at a time, as a vector of 0 and 1"
            if several
            else "these look like one-hot labels: save their argmax(axis=1)"
        )
        raise InputError(f"{title} in {file} must hold one label per row, got shape {labels.shape}; {advice}")
    if labels.ndim != 1:
        raise InputError(f"{title} in {file} must hold one label per row, got shape {labels.shape}")
    if labels.dtype.kind not in "biufUS":
        raise InputError(f"{title} in {file} must hold numbers or text, got {labels.dtype}")
