"""Prediction files: CSV and Parquet (also folders, and addresses in object stores), NPZ and safetensors.

A table with only true and predicted labels is counted while it is read, so 100 million rows need no more memory than
their confusion matrix. Scores and features are read into memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Ints
from classgap.checks import InputError, printable
from classgap.predictions.archives import Arrays, read_npz, read_safetensors
from classgap.predictions.arrays import Source, encode, plain_column
from classgap.predictions.columns import Columns, pick, pick_samples, require_labels
from classgap.predictions.predictions import PER_ROW, Predictions
from classgap.predictions.side_files import counts_in_order

if TYPE_CHECKING:
    from classgap.predictions.tables import Table

Paths = Path | str | Sequence[Path | str]
Location = Path | str
"""A file on this machine, or the address (``s3://…``) of a file, a folder or a pattern with ``*`` in an object store."""
_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".safetensors": "safetensors",
}


def is_address(path: Location) -> bool:
    """Whether this is an address such as ``s3://bucket/file.parquet``, not a path on this machine."""
    return isinstance(path, str) and "://" in path


def read_predictions(
    paths: Paths,
    columns: Columns | None,
    class_names: Sequence[str] | None,
    train_counts: Any,
    *,
    rows: bool,
    storage_options: Mapping[str, str] | None,
) -> Predictions:
    """Read one data set from one or more files; see :meth:`Predictions.read`."""
    files, kind = _expand(paths)
    columns = columns or Columns()
    if kind in ("csv", "parquet"):
        from classgap.predictions.counting import from_table

        with _readable(files[0]):
            return from_table(_open(files, kind, columns, storage_options), class_names, train_counts, rows=rows)
    found = _read_archives([Path(file) for file in files], kind, columns, class_names)
    if train_counts is not None:
        found = replace(found, train_counts=counts_in_order(train_counts, found.classes))
    return found


def count_two(
    before: Any, after: Any, columns: Columns, *, class_names: Sequence[str] | None = None
) -> tuple[Predictions, Predictions, Ints] | None:
    """Confusion counts of two tables (files or frames), and per class the ``(2, 2)`` table of (correct before, correct after).

    None if rows must be read: the predictions are scores or arrays, are in memory already, or are in different engines.
    """
    from classgap.predictions.counting import count_both
    from classgap.predictions.tables import is_frame, open_table

    tables: list[Table] = []
    for side in (before, after):
        if is_frame(side):
            tables.append(open_table(side, columns))
            continue
        files, kind = _expand(side)
        if kind not in ("csv", "parquet"):
            return None
        with _readable(files[0]):
            tables.append(_open(files, kind, columns, None))
    one, other = tables
    if one.in_memory or other.in_memory or one.engine != other.engine or not (one.comparable and other.comparable):
        return None
    with _readable(before if isinstance(before, (str, Path)) else "the table"):
        return count_both(one, other, class_names)


def _open(files: Sequence[Location], kind: str, columns: Columns, storage_options: Mapping[str, str] | None) -> Table:
    """The table in these files; only its header is read."""
    from classgap.predictions.scans import scan
    from classgap.predictions.tables import open_table

    return open_table(scan(files, kind, columns, storage_options), columns, str(files[0]), "--names")


def _expand(paths: Paths) -> tuple[list[Location], str]:
    """The files in ``paths``, with folders on this machine replaced by their files, and the common format."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given or any(str(path) in ("", ".") for path in given):
        raise InputError(f"expected the path of a prediction file, got {[str(path) for path in given]}")
    files: list[Location] = []
    for path in given:
        files += [str(path)] if is_address(path) else _files_in(Path(path))
    kinds = {_format(file) for file in files}
    for file in files if kinds <= {"csv", "parquet"} else ():
        if "\ufffd" in os.fsencode(file).decode(errors="replace"):
            raise InputError(f"the name of the file {printable(str(file))} is not UTF-8; rename the file")
    if len(kinds) != 1:
        raise InputError(
            f"the files of one data set must have the same format, got {' and '.join(sorted(kinds)) or 'no file'}"
        )
    return files, kinds.pop()


def _files_in(path: Path) -> list[Path]:
    """The file itself, or the prediction files in this folder."""
    if not path.exists():
        raise InputError(f"there is no file {path}")
    files = [path]
    if path.is_dir():
        files = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in _FORMATS and p.name[0] not in "._"]
        if not files:
            raise InputError(f"folder {path} contains no prediction file ({', '.join(_FORMATS)})")
    for file in files:
        if file.suffix.lower() in _FORMATS and file.stat().st_size == 0:
            raise InputError(f"{file} is an empty file; write the predictions again")
    return files


def _format(file: Location) -> str:
    """The format of a file by its extension; an address without one is a folder of Parquet files."""
    ending = Path(file).suffix.lower()
    if is_address(file):
        if ending not in _FORMATS:
            return "parquet"
        if _FORMATS[ending] not in ("csv", "parquet"):
            raise InputError(f"{file} must be a CSV or Parquet file; copy archives ({ending}) to this machine first")
    if ending not in _FORMATS:
        raise InputError(f"{file} has an unknown file extension; classgap reads {', '.join(_FORMATS)}")
    return _FORMATS[ending]


@contextlib.contextmanager
def _readable(file: Location) -> Iterator[None]:
    """Turn an error of the table reader into one sentence."""
    import polars as pl
    from narwhals.exceptions import NarwhalsError

    try:
        yield
    except (pl.exceptions.PolarsError, NarwhalsError, OSError) as error:
        if isinstance(error, OSError) and not is_address(file):
            raise  # a file on this machine: the command line has a sentence for these
        reason = str(error).split("\n", 1)[0]
        if is_address(file):
            raise InputError(f"{file} cannot be read ({reason}); check the address and your credentials") from None
        raise InputError(f"{file} ends in {Path(file).suffix} but cannot be read in this format ({reason})") from None


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
