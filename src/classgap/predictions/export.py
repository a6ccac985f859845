"""Write tables and archives that people and classgap read again."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from classgap.writing import replacing, write

# A spreadsheet takes a cell that begins with one of these characters for a formula, and runs it.
_FORMULA = r"^[=+\-@\t\r]"
_NUMBER = r"^[-+]?[\d.]+([eE][-+]?\d+)?$"


def write_table(columns: Any, path: Path) -> None:
    """Write columns, or a polars table, as CSV or Parquet, by the ending of ``path``.

    In CSV, text that a spreadsheet would run as a formula gets an apostrophe in front;
    classgap removes it when it reads labels.
    """
    import polars as pl

    frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(columns)
    if path.suffix.lower() == ".parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        write(path, buffer.getvalue())
    else:
        texts = [name for name, kind in frame.schema.items() if kind == pl.String]
        write(path, frame.with_columns(_no_formulas(name) for name in texts).write_csv())


def _no_formulas(name: str) -> Any:
    import polars as pl

    column = pl.col(name)
    risky = column.str.contains(_FORMULA) & ~column.str.contains(_NUMBER)
    return pl.when(risky).then("'" + column).otherwise(column).alias(name)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed NPZ archive."""
    with replacing(path) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, **arrays)
