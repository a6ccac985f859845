"""Tables of any engine (polars, pandas, Arrow, DuckDB, PySpark, Dask …) through narwhals: columns by role, rows as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, MissingValues, label_vector
from classgap.predictions.arrays import Source, encode, plain_column
from classgap.predictions.columns import Columns, Found, find_columns
from classgap.predictions.matching import missing_ids
from classgap.predictions.predictions import DESCRIBING, Predictions


@dataclass(frozen=True, eq=False)
class Table:
    """A table, in memory or not read yet, and its columns by role.

    Attributes:
        data: The table as a narwhals ``DataFrame`` (rows in memory) or ``LazyFrame`` (rows in files or in an engine).
        columns: Its columns by role.
        names_option: How the user gives class names, for messages.
    """

    data: Any
    columns: Found
    names_option: str = "class_names"

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in memory, so that nothing is saved by counting them elsewhere."""
        return isinstance(self.data, nw.DataFrame)

    @property
    def labels_only(self) -> bool:
        """Whether rows can be counted: labels and slices are all that the table holds of a sample."""
        found = self.columns
        return found.pred is not None and not (found.scores or found.features or found.samples.keys() & set(DESCRIBING))

    @property
    def comparable(self) -> bool:
        """Whether labels of two such tables can be compared by the engine: it need not compute them from scores."""
        found = self.columns
        return found.pred is not None and not found.scores and found.count is None and found.samples.keys() <= {"id"}

    @property
    def engine(self) -> str:
        """Name of the engine that holds the rows."""
        return str(self.data.implementation.value)


def is_frame(value: Any) -> bool:
    """Whether ``value`` is a table of an engine that narwhals knows."""
    return isinstance(nw.from_native(value, pass_through=True), (nw.DataFrame, nw.LazyFrame))


def open_table(
    frame: Any, columns: Columns | None, place: str = "the table", names_option: str = "class_names"
) -> Table:
    """Find the columns of a table; no row is read. ``place`` is the name of the table in error messages."""
    data = nw.from_native(frame, pass_through=True)
    if not isinstance(data, (nw.DataFrame, nw.LazyFrame)):
        raise InputError(
            "frame must be a table of polars, pandas, Arrow, DuckDB, PySpark, Dask or another engine that narwhals knows, "
            f"got {type(frame).__name__}"
        )
    found = find_columns(data.collect_schema().names(), columns or Columns(), place)
    return Table(data, found, names_option)


def collect(data: Any) -> Any:
    """The rows of a narwhals table in memory."""
    if isinstance(data, nw.DataFrame):
        return data
    return data.collect(engine="streaming") if data.implementation.is_polars() else data.collect()


def encode_rows(table: Table, class_names: Sequence[str] | None, train_counts: Any) -> Predictions:
    """Predictions with all rows of a table."""
    found = table.columns
    single = {role: name for role, name in (("y_true", found.true), ("y_pred", found.pred)) if name}
    wide = {"scores": found.scores, "features": found.features}
    wanted = dict.fromkeys(
        (*single.values(), *found.samples.values(), *(name for names in wide.values() for name in names))
    )
    rows = collect(table.data.select(*wanted))
    arrays = {role: label_values(rows[name], name) for role, name in single.items()}
    refuse_repeated_header(found, arrays["y_true"], arrays.get("y_pred"))
    names = found.spelled if class_names is None else class_names
    if found.spelled is not None and names is not None and set(found.spelled) == set(names):
        wide["scores"] = in_order_of(names, found, list(arrays.values()))
    arrays |= {role: score_matrix(rows, columns) for role, columns in wide.items() if columns}
    samples = {name: sample_values(rows[column], name) for name, column in found.samples.items()}
    titles = {role: f"column {name!r}" for role, name in single.items()}
    titles |= {role: f"column {columns[0]!r}" for role, columns in wide.items() if len(columns) == 1}
    source = Source(titles, table.names_option, found.numbered, found.named_by_numbers)
    return encode(arrays, source, columns=samples, names=names, train_counts=train_counts)


def in_order_of(names: Sequence[str], found: Found, columns: Sequence[NDArray[Any]]) -> list[str]:
    """The score columns, whose suffixes are class names, in the order of the names that were given."""
    assert found.spelled is not None
    for labels in columns if list(names) != found.spelled else ():
        numbers = set(map(str, np.unique(labels))) - set(names)
        if numbers:
            raise InputError(
                f"the class names and the score columns {found.scores[0]!r} … are in different order, so the label "
                f"{min(numbers)!r} can mean two classes; give the names in the order of the columns, or leave them out"
            )
    return [found.scores[found.spelled.index(name)] for name in names]


def floats_of_decimals(column: Any) -> Any:
    """The column, with numbers of a fixed number of decimals, which databases store, as floats."""
    return column.cast(nw.Float64) if column.dtype == nw.Decimal else column


def label_values(column: Any, name: str, counts: NDArray[np.int64] | None = None) -> NDArray[Any]:
    """Labels as numbers or text, for any stored type.

    Args:
        counts: Number of rows behind each entry, for the message about labels that are missing.
    """
    if column.null_count():
        missing = column.null_count() if counts is None else int(counts[column.is_null().to_numpy()].sum())
        rows = "1 row" if missing == 1 else f"{missing:,} rows"
        raise MissingValues(f"column {name!r} has {rows} without a label; remove these rows or add labels", [name])
    column = floats_of_decimals(column)
    if column.dtype.is_nested():
        raise InputError(f"column {name!r} must hold one label per row, got {column.dtype}")
    values: NDArray[Any] = column.to_numpy()
    if values.dtype.kind != "O":
        return values if values.dtype.kind in "iufb" else values.astype(str)
    if any(isinstance(value, (bytes, list, dict, tuple, np.ndarray)) for value in values):
        return label_vector(f"column {name!r}", values)
    return values.astype(str)


def refuse_repeated_header(found: Found, y_true: NDArray[Any], y_pred: NDArray[Any] | None) -> None:
    """Refuse a row whose labels are the names of their columns: of CSV files that were joined with their headers."""
    if y_pred is None or {y_true.dtype.kind, y_pred.dtype.kind} != {"U"}:
        return
    if ((y_true == found.true) & (y_pred == found.pred)).any():
        raise InputError(
            f"a row of the table is its header again ({found.true}, {found.pred}), so that its files may have been joined with "
            "their headers; remove this row, or give the files one by one"
        )


def sample_values(values: Any, name: str) -> NDArray[Any]:
    """A per-sample column; only sample ids must have a value in every row."""
    gone = values.is_null()
    if name == "id":
        missing = int((gone | values.is_nan() if values.dtype.is_float() else gone).sum())
        if missing:
            raise missing_ids(values.name, missing)
    if gone.any():  # engines write a missing value as None, nan or NA
        empty = gone.to_list()
        texts = [None if gone else value for value, gone in zip(values.to_list(), empty, strict=True)]
        return plain_column(np.array(texts, dtype=object), f"column {values.name!r}")
    return plain_column(values.to_numpy(), f"column {values.name!r}")


def score_matrix(rows: Any, names: Sequence[str]) -> NDArray[Any]:
    """Columns of numbers, or one column of lists, as a matrix."""
    if any(rows[name].null_count() for name in names):
        raise MissingValues(f"columns {names[0]!r} … must have a number in every row, but some cells are empty", names)
    first = rows[names[0]]
    if len(names) == 1 and not first.dtype.is_numeric():
        if first.dtype not in (nw.List, nw.Array, nw.Object):
            raise InputError(f"column {names[0]!r} must hold numbers or lists of numbers, got {first.dtype}")
        return _stacked(first)
    for name in names:
        if not rows[name].dtype.is_numeric():
            raise InputError(f"column {name!r} must hold numbers or lists of numbers, got {rows[name].dtype}")
    return np.column_stack([floats_of_decimals(rows[name]).to_numpy() for name in names])


def _stacked(lists: Any) -> NDArray[Any]:
    """A column of lists of equal lengths as a matrix."""
    values: NDArray[Any] = lists.to_numpy()
    if values.ndim == 2:
        return values
    widths = {len(row) for row in values}
    if len(widths) != 1:
        raise InputError(
            f"the lists in column {lists.name!r} must have equal lengths, got {min(widths)} to {max(widths)} entries"
        )
    return np.stack([np.asarray(row) for row in values])
