"""Tables on disk, read with polars: find the columns, count labels while streaming, or read all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.predictions.arrays import plain_column
from classgap.predictions.columns import Columns, Found, find_columns, pick
from classgap.predictions.confusion import Confusion, ConfusionCounter
from classgap.predictions.labels import LabelCoder, resolve_classes
from classgap.predictions.predictions import Progress

BATCH_ROWS = 2_000_000


@dataclass(frozen=True, eq=False)
class Table:
    """A table that has not been read yet, and its columns by role."""

    data: pl.LazyFrame
    columns: Found

    @property
    def countable(self) -> bool:
        """Whether the table holds only labels, so that rows can be counted while they are read."""
        found = self.columns
        return found.pred is not None and not (found.scores or found.features or found.samples)

    @property
    def labels(self) -> tuple[str, str]:
        """Names of the columns of true and predicted labels."""
        return self.columns.true, str(self.columns.pred)


def open_table(files: Sequence[Path], kind: str, columns: Columns) -> Table:
    """Find the columns of a table in one or more files."""
    data = _scan(files, kind, columns)
    return Table(data, find_columns(data.collect_schema().names(), columns, str(files[0])))


def _scan(files: Sequence[Path], kind: str, columns: Columns) -> pl.LazyFrame:
    for file in files:
        with file.open("rb") as handle:
            head = handle.read(4096)
        if (kind == "parquet") != (head[:4] == b"PAR1") or (kind == "csv" and b"\0" in head):
            raise InputError(f"{file} ends in {file.suffix} but is not a {kind.upper()} file; check its content")
    if kind == "parquet":
        return pl.scan_parquet(list(files), glob=False)
    with files[0].open(encoding="utf-8", errors="replace") as text:
        first_line = text.readline()
    separator = max(",;\t", key=first_line.count)
    header = pl.scan_csv(files[0], separator=separator, infer_schema=False, glob=False).collect_schema().names()
    _refuse_duplicates(header, files[0])
    labels = [pick("true", columns.true, header), pick("pred", columns.pred, header)]
    labels += [columns.id, columns.path, columns.text, *columns.by]
    # Labels stay text until all distinct labels are known: a column may begin with numbers and contain names later.
    as_text = {name: pl.String() for name in labels if name in header}
    return pl.scan_csv(
        list(files), separator=separator, schema_overrides=as_text, infer_schema_length=10_000, glob=False
    )


def _refuse_duplicates(header: Sequence[str], file: Path) -> None:
    """Polars adds ``_duplicated_0`` to the second column of a name, and one of the two would be used silently."""
    for name in header:
        original, marker, number = name.rpartition("_duplicated_")
        if marker and number.isdecimal() and original in header:
            raise InputError(f"{file} has two columns named {original!r}; rename or remove one of them")


# ---------------------------------------------------------------- counting


def count_rows(
    table: Table, names: Sequence[str] | None, progress: Progress | None
) -> tuple[tuple[str, ...], Confusion, tuple[str, ...]]:
    """Class names, confusion counts and notes of a countable table."""
    labels = table.data.select(_label(table, name) for name in table.labels)
    labels, classes, coders, notes = _coded(labels, names)
    counter = ConfusionCounter(len(classes))
    for true, pred in _walk(labels, coders, _height(labels), progress):
        counter.add(true, pred)
    return classes, counter.result(), notes


def count_pairs(
    before: Table, after: Table, names: Sequence[str] | None, progress: Progress | None
) -> tuple[tuple[str, ...], Confusion, Confusion, Ints]:
    """Class names, both confusions and, per class, the 2×2 table of (correct before, correct after), matched by row."""
    sides = {"before": before, "after": after}
    parts = [
        table.data.select(_label(table, name).alias(f"{name} ({side})") for name in table.labels)
        for side, table in sides.items()
    ]
    heights = [_height(part) for part in parts]
    if heights[0] != heights[1]:
        raise InputError(
            f"before has {heights[0]:,} rows but after has {heights[1]:,}; both must hold the same samples"
        )
    labels, classes, coders, _ = _coded(pl.concat(parts, how="horizontal"), names)
    counters = ConfusionCounter(len(classes)), ConfusionCounter(len(classes))
    tables = np.zeros(4 * len(classes), dtype=np.int64)
    different = 0
    for true, pred_before, true_after, pred_after in _walk(labels, coders, heights[0], progress):
        different += int((true != true_after).sum())
        counters[0].add(true, pred_before)
        counters[1].add(true, pred_after)
        cell = 4 * true + 2 * (pred_before == true) + (pred_after == true)
        tables += np.bincount(cell, minlength=len(tables))
    if different:
        raise InputError(
            f"the true labels of before and after differ in {different:,} of {heights[0]:,} rows; "
            "if the rows are in different order, name the column of sample ids with --id"
        )
    return classes, counters[0].result(), counters[1].result(), tables.reshape(-1, 2, 2)


def _label(table: Table, name: str) -> pl.Expr:
    """The label column as integers, floats or strings, for any stored type."""
    dtype, column = table.data.collect_schema()[name], pl.col(name)
    if dtype == pl.Boolean or dtype.is_integer():
        return column.cast(pl.Int64)
    return column if dtype.is_float() or dtype == pl.String else column.cast(pl.String)


def _coded(
    labels: pl.LazyFrame, names: Sequence[str] | None
) -> tuple[pl.LazyFrame, tuple[str, ...], list[LabelCoder], tuple[str, ...]]:
    """Classes and coders of all columns. Polars replaces text by its position among the distinct labels."""
    columns = labels.collect_schema().names()
    distinct = [(name, _distinct(labels, name)) for name in columns]
    raw = [(f"column {name!r}", values.to_numpy()) for name, values in distinct]
    classes, coders, notes = resolve_classes(raw, names=names, option="--names")
    for i, (name, values) in enumerate(distinct):
        if values.dtype == pl.String:
            labels = labels.with_columns(pl.col(name).cast(pl.Enum(values)).to_physical())
            coders[i] = LabelCoder(np.arange(values.len()), coders[i].codes)
    return labels, classes, coders, notes


def _distinct(labels: pl.LazyFrame, name: str) -> pl.Series:
    values: pl.Series = labels.select(pl.col(name).unique()).collect(engine="streaming").to_series().sort()
    if values.null_count():
        raise InputError(f"column {name!r} has rows without a label; remove these rows or add labels")
    if values.len() == 0:
        raise InputError("the prediction file must have at least one row, got none")
    return values


def _height(labels: pl.LazyFrame) -> int:
    return int(labels.select(pl.len()).collect(engine="streaming").item())


def _walk(
    labels: pl.LazyFrame, coders: list[LabelCoder], total: int, progress: Progress | None
) -> Iterator[tuple[Ints, ...]]:
    """Class indices of every column, batch by batch."""
    done = 0
    for batch in labels.collect_batches(chunk_size=BATCH_ROWS, maintain_order=len(coders) > 2):
        yield tuple(coder(batch[name].to_numpy()) for coder, name in zip(coders, batch.columns, strict=True))
        done += batch.height
        if progress is not None:
            progress(done, total)


# ---------------------------------------------------------------- reading rows


def read_rows(table: Table) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays by role (scores and features as matrices), per-sample columns, and the titles of the label columns."""
    found = table.columns
    single = {role: name for role, name in (("y_true", found.true), ("y_pred", found.pred)) if name}
    wide = {"scores": found.scores, "features": found.features}
    wanted = [_label(table, name).alias(role) for role, name in single.items()]
    wanted += [_label(table, column).alias(f"column {name}") for name, column in found.samples.items()]
    rows = table.data.select(*wanted, *(name for names in wide.values() for name in names)).collect()
    arrays: dict[str, NDArray[Any]] = {}
    for role, name in single.items():
        if rows[role].null_count():
            raise InputError(f"column {name!r} has {rows[role].null_count()} rows without a value; fill or remove them")
        values = rows[role].to_numpy()
        arrays[role] = values if values.dtype.kind in "iuf" else values.astype(str)
    arrays |= {role: _matrix(rows, names) for role, names in wide.items() if names}
    columns = {name: _sample_column(rows[f"column {name}"], name, title) for name, title in found.samples.items()}
    return arrays, columns, {role: f"column {name!r}" for role, name in single.items()}


def _sample_column(values: pl.Series, name: str, title: str) -> NDArray[Any]:
    """A per-sample column; only sample ids must have a value in every row."""
    if name == "id" and values.null_count():
        raise InputError(f"column {title!r} has {values.null_count()} rows without a value; fill or remove them")
    if values.null_count() and values.dtype != pl.String:
        values = values.cast(pl.String)
    return plain_column(values.to_numpy())


def _matrix(rows: pl.DataFrame, names: Sequence[str]) -> NDArray[Any]:
    if any(rows[name].null_count() for name in names):
        raise InputError(f"columns {names[0]!r} … must have a number in every row, but some cells are empty")
    dtypes: Mapping[str, pl.DataType] = {name: rows[name].dtype for name in names}
    if len(names) == 1 and isinstance(dtypes[names[0]], pl.List):
        widths = rows[names[0]].list.len()
        if widths.n_unique() != 1:
            raise InputError(
                f"the lists in column {names[0]!r} must have equal lengths, got {widths.min()!r} to {widths.max()!r} entries"
            )
        return rows[names[0]].list.to_array(int(widths[0])).to_numpy()
    if len(names) == 1 and isinstance(dtypes[names[0]], pl.Array):
        return rows[names[0]].to_numpy()
    for name, dtype in dtypes.items():
        if not dtype.is_numeric():
            raise InputError(f"column {name!r} must hold numbers or lists of numbers, got {dtype}")
    return rows.select(names).to_numpy()
