"""Prediction files: CSV and Parquet (also folders, and addresses in object stores), NPZ and safetensors.

A table with only true and predicted labels is counted while it is read, so 100 million rows need no more memory than
their confusion matrix. Scores and features are read into memory, or by ``audit`` in batches if they are too large for it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Ints
from classgap.checks import InputError, MissingValues
from classgap.predictions.archives import Arrays, read_archive
from classgap.predictions.arrays import Source, encode, plain_column
from classgap.predictions.binary import single_score_column
from classgap.predictions.columns import (
    Columns,
    pick,
    pick_labels,
    pick_samples,
    refuse_true_labels,
    require_labels,
    without_named,
)
from classgap.predictions.labels import names_of
from classgap.predictions.locations import Files, Location, Paths, find_files, is_address
from classgap.predictions.matching import present_ids
from classgap.predictions.predictions import PER_ROW, Predictions
from classgap.predictions.stores import unreadable

if TYPE_CHECKING:
    from classgap.predictions.tables import Table

# How polars reports a cell of a CSV file that is no number.
_CELL = re.compile(
    r"could not parse `(?P<text>.*)` as dtype `(?P<type>bool|[fiu])\d*` at column '(?P<column>.*)' \(column"
)

# What a cell contains that should be a number, and how to write it.
_NO_NUMBER = {
    "[": "a CSV file cannot hold lists: write one column per class, or a Parquet or NPZ file",
    "%": "write 0.25 instead of 25%",
    ",": "write numbers with a decimal point, or separate the columns by semicolons or tabs",
}


def read_predictions(
    paths: Paths,
    columns: Columns | None,
    class_names: Sequence[str] | None,
    train_counts: Any,
    *,
    rows: bool,
    batches: bool | None = False,
) -> Predictions:
    """Read one data set from one or more files; see :meth:`Predictions.read`."""
    source, columns = find_files(paths), columns or Columns()
    if source.is_table:
        from classgap.predictions.counting import from_table

        with readable(source.files[0], source.files):
            place, table = source.files[0], _open(source, columns)
            found = from_table(table, class_names, train_counts, rows=rows, batches=batches, place=place)
    else:
        found = _read_archives([Path(file) for file in source.files], columns, class_names, train_counts)
    if found.paths is not None:
        found = replace(found, columns={**found.columns, "path": located(found.paths, Path(source.files[0]).parent)})
    return found


def located(paths: NDArray[Any], folder: Path) -> NDArray[Any]:
    """Paths of image files as they can be opened from here; paths that are relative to ``folder`` get its name in front."""
    relative = next((str(path) for path in paths if str(path) and not Path(str(path)).is_absolute()), None)
    if relative is None or os.path.exists(relative) or not os.path.exists(folder / relative):
        return paths
    return np.array([str(folder / str(path)) if str(path) else "" for path in paths], dtype=object)


def count_two(
    before: Any, after: Any, columns: Columns, *, class_names: Sequence[str] | None = None
) -> tuple[Predictions, Predictions, Ints] | None:
    """Confusion counts of two tables (files or frames), and per class the ``(2, 2)`` table of (correct before, correct after).

    None if rows must be read: the predictions are scores or arrays, are in memory already, or are in different engines or
    connections.
    """
    from classgap.predictions.counting import count_both
    from classgap.predictions.tables import is_frame, open_table

    tables: list[Table] = []
    files: list[Location] = []
    for side in (before, after):
        if is_frame(side):
            tables.append(open_table(side, columns))
            continue
        source = find_files(side)
        if not source.is_table:
            return None
        files += source.files
        with readable(source.files[0], source.files):
            tables.append(_open(source, columns))
    one, other = tables
    if one.in_memory or other.in_memory or one.engine != other.engine or not (one.comparable and other.comparable):
        return None
    with readable(before if isinstance(before, (str, Path)) else "the table", files):
        try:
            return count_both(one, other, class_names)
        except Exception as error:
            if "different connections" in str(error):  # DuckDB joins only the tables of one connection
                return None
            raise


def _open(source: Files, columns: Columns) -> Table:
    """The table in these files; only its header is read."""
    from classgap.predictions.scans import scan
    from classgap.predictions.tables import open_table

    return open_table(scan(source, columns), columns, str(source.files[0]), "--names")


@contextlib.contextmanager
def readable(file: Location, files: Sequence[Location] = ()) -> Iterator[None]:
    """Turn an error of the table reader into one sentence; in CSV files among ``files``, it names the line."""
    import polars as pl
    from narwhals.exceptions import NarwhalsError

    from classgap.predictions.csv_files import first_line_without

    try:
        yield
    except pl.exceptions.PanicException:  # not an Exception: the reader itself failed on damaged bytes
        raise InputError(f"{file} is damaged and cannot be read; write the file again") from None
    except MissingValues as error:
        raise InputError(f"{error}{first_line_without(error.columns, _csv(files))}") from None
    except InputError:
        raise
    except (pl.exceptions.PolarsError, NarwhalsError, OSError) as error:
        if isinstance(file, str) and is_address(file):
            raise unreadable(file, error) from None
        if isinstance(error, OSError):
            raise  # a file on this machine: the command line has a sentence for these
        raise InputError(_sentence(str(error).split("\n", 1)[0], file, _csv(files))) from None
    except Exception as error:
        if isinstance(file, str) and is_address(
            file
        ):  # the libraries that look for credentials have errors of their own
            raise unreadable(file, error) from None
        raise


def _csv(files: Sequence[Location]) -> list[Location]:
    return [file for file in files if Path(file).suffix.lower() in (".csv", ".tsv")]


def _sentence(reason: str, file: Location, csv_files: Sequence[Location]) -> str:
    """What polars says about a file that it cannot read, in one sentence."""
    from classgap.predictions.csv_files import sentence_about

    if (cell := _CELL.match(reason)) is not None:
        wanted = {"f": "numbers", "bool": "only true and false"}.get(cell["type"], "whole numbers")
        text = cell["text"]
        advice = next((f"; {way}" for sign, way in _NO_NUMBER.items() if sign in text), "")
        return f"column {cell['column']!r} of {file} must hold {wanted}, got {text!r}{advice}"
    if reason.startswith("schema"):
        return f"the files of one data set must have the same columns in the same order as {file} ({reason})"
    ending = Path(file).suffix
    return sentence_about(reason, csv_files) or f"{file} ends in {ending} but cannot be read in this format ({reason})"


def _read_archives(files: list[Path], columns: Columns, names: Sequence[str] | None, train_counts: Any) -> Predictions:
    parts = [_roles(read_archive(file), file, columns) for file in files]
    for file, (part, _, _) in zip(files, parts, strict=True):
        _check_part(part, parts[0][0], file, files[0])
    arrays, samples, titles = parts[0]
    if len(parts) > 1:
        joined = {role: np.concatenate([part[role] for part, _, _ in parts]) for role in PER_ROW if role in arrays}
        arrays = {**arrays, **joined}
        samples = {name: np.concatenate([part[name] for _, part, _ in parts]) for name in samples}
    if names is None and "class_names" in arrays:
        names = names_of(arrays["class_names"], f"{titles['class_names']} in {files[0]}")
    return encode(arrays, Source(titles, "--names"), columns=samples, names=names, train_counts=train_counts)


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
        if role not in PER_ROW and not (array is first[role] or np.array_equal(array, first[role])):
            raise InputError(
                f"{role} differs between {file} and {first_file}; it must be equal in all files of one data set"
            )


def _roles(arrays: Arrays, file: Path, columns: Columns) -> tuple[Arrays, Arrays, dict[str, str]]:
    """The arrays of one archive by role, its per-sample columns, and the name of each array in error messages."""
    available = list(arrays)
    free = without_named(available, columns)
    true, pred = pick_labels(columns, available)
    wanted = {
        "y_true": true,
        "y_pred": pred,
        "scores": pick("scores", columns.scores, free),
        "features": pick("features", columns.features, free),
    }
    wanted |= {
        role: pick(role, None, free) for role in ("weight", "bias", "margin_norms", "train_counts", "class_names")
    }
    if wanted["scores"] is None and wanted["y_pred"] is None:
        wanted["scores"] = single_score_column(free)
    found = {role: arrays[name] for role, name in wanted.items() if name is not None}
    if "scores" in found and found["scores"].ndim == 1:
        found["scores"] = found["scores"][:, None]
    titles = {role: f"array {name!r}" for role, name in wanted.items() if name is not None}
    from_head = "scores" not in found and {"features", "weight"} <= found.keys()
    require_labels("y_true" in found, "y_pred" in found or "scores" in found or from_head, file, available)
    refuse_true_labels(
        [str(wanted["y_true"])], pred=[wanted["y_pred"]], scores=[wanted["scores"]], features=[wanted["features"]]
    )
    for role in ("y_true", "y_pred"):
        if role in found:
            _check_labels(found[role], titles[role], file)
    samples = {}
    for name, array in pick_samples(columns, available).items():
        values = arrays[array]
        _check_labels(values, f"array {array!r}", file)
        if len(values) != len(found["y_true"]):
            raise InputError(
                f"array {array!r} in {file} must have one entry per sample, {len(found['y_true'])}, got {len(values)}"
            )
        values = present_ids(values, f"array {array!r} in {file}") if name == "id" else values
        samples[name] = plain_column(values, f"array {array!r}")
    for role in ("scores", "features", "weight"):
        if role in found and (found[role].ndim != 2 or found[role].dtype.kind not in "fiu"):
            raise InputError(
                f"{titles[role]} in {file} must be a matrix of numbers, "
                f"got shape {found[role].shape} of {found[role].dtype}"
            )
    for role in ("bias", "margin_norms", "train_counts"):
        if role in found and (found[role].ndim != 1 or found[role].dtype.kind not in "fiu"):
            raise InputError(
                f"{titles[role]} in {file} must hold one number per class, "
                f"got shape {found[role].shape} of {found[role].dtype}"
            )
    return found, samples, titles


def _check_labels(labels: NDArray[Any], title: str, file: Path) -> None:
    if labels.ndim == 2 and labels.shape[1] > 1 and set(np.unique(labels[:1000]).tolist()) <= {0, 1}:
        several = (labels.sum(axis=1) != 1).any()
        advice = (
            "these look like multi-label data: add --multi-label, or use classgap.audit_labels in Python"
            if several
            else "these look like one-hot labels: save their argmax(axis=1)"
        )
        raise InputError(f"{title} in {file} must hold one label per row, got shape {labels.shape}; {advice}")
    if labels.ndim != 1:
        advice = ""
        if labels.ndim == 2:
            scores = "if these are scores, name the array with --scores"
            advice = "; save its column [:, 0]" if labels.shape[1] == 1 else f"; {scores}"
        raise InputError(f"{title} in {file} must hold one label per row, got shape {labels.shape}{advice}")
    if labels.dtype.kind not in "biufUS":
        raise InputError(f"{title} in {file} must hold numbers or text, got {labels.dtype}")
