"""Tables in memory (pandas, polars, Arrow) become :class:`Predictions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError
from classgap.predictions.arrays import Source, encode, plain_column
from classgap.predictions.columns import Columns, find_columns
from classgap.predictions.predictions import Predictions


def is_frame(value: Any) -> bool:
    """Whether ``value`` is a table that :func:`encode_frame` can read."""
    import narwhals.stable.v1 as nw
    from narwhals.dependencies import is_into_dataframe

    del nw
    return bool(is_into_dataframe(value))


def encode_frame(
    frame: Any, columns: Columns | None, class_names: Sequence[str] | None, train_counts: Any
) -> Predictions:
    """Predictions from a table in memory."""
    import narwhals.stable.v1 as nw

    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError:
        raise InputError(
            f"frame must be a pandas, polars or Arrow table in memory, got {type(frame).__name__}; collect a lazy table first"
        ) from None
    found = find_columns(table.columns, columns or Columns(), "the table")
    arrays: dict[str, NDArray[Any]] = {}
    titles = {}
    for role, name in (("y_true", found.true), ("y_pred", found.pred)):
        if name is not None:
            column = table[name]
            if column.null_count():
                raise InputError(f"column {name!r} has {column.null_count()} rows without a value; fill or remove them")
            values = column.to_numpy()
            arrays[role] = values if values.dtype.kind in "iufb" else values.astype(str)
            titles[role] = f"column {name!r}"
    for role, names in (("scores", found.scores), ("features", found.features)):
        if names:
            arrays[role] = _matrix(table, names)
    samples = {name: _sample_column(table[title], name, title) for name, title in found.samples.items()}
    given = class_names if class_names is not None else found.spelled
    return encode(arrays, Source(titles, "class_names"), columns=samples, names=given, train_counts=train_counts)


def _sample_column(values: Any, name: str, title: str) -> NDArray[Any]:
    """A per-sample column; only sample ids must have a value in every row."""
    missing = values.null_count()
    if name == "id" and missing:
        raise InputError(f"column {title!r} has {missing} rows without a value; fill or remove them")
    return plain_column(np.array(values.to_list(), dtype=object) if missing else values.to_numpy())


def _matrix(table: Any, names: Sequence[str]) -> NDArray[Any]:
    parts = [table[name].to_numpy() for name in names]
    if len(parts) == 1 and parts[0].dtype.kind == "O":  # one column of lists
        widths = {len(row) for row in parts[0]}
        if len(widths) != 1:
            raise InputError(
                f"the lists in column {names[0]!r} must have equal lengths, got {min(widths)} to {max(widths)} entries"
            )
        return np.stack([np.asarray(row) for row in parts[0]])
    for name, part in zip(names, parts, strict=True):
        if part.dtype.kind not in "iuf":
            raise InputError(f"column {name!r} must hold numbers or lists of numbers, got {part.dtype}")
    return np.column_stack(parts) if parts[0].ndim == 1 else parts[0]
