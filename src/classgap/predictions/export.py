"""Write tables and archives that people and classgap read again."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from classgap.predictions.spelling import FORMULA_STARTS
from classgap.writing import replacing, write

_FORMULA = f"^{FORMULA_STARTS}"
_NUMBER = r"^[-+]?[\d.]+([eE][-+]?\d+)?$"


def write_table(columns: Any, path: Path) -> None:
    """Write columns, or a polars table, as CSV or Parquet, by the ending of ``path``."""
    if path.suffix.lower() == ".parquet":
        buffer = io.BytesIO()
        _frame(columns).write_parquet(buffer)
        write(path, buffer.getvalue())
    else:
        write(path, csv_text(columns))


def csv_text(columns: Any) -> str:
    """Columns, or a polars table, as CSV. Text that a spreadsheet would run as a formula gets an apostrophe in front;
    classgap removes it when it reads labels.
    """
    import polars as pl

    frame = _frame(columns)
    texts = [name for name, kind in frame.schema.items() if kind == pl.String]
    safe = frame.with_columns(_no_formulas(name) for name in texts)
    renamed = safe.rename({name: f"'{name}" for name in frame.columns if re.match(_FORMULA, name)})
    return str(renamed.write_csv())


def _frame(columns: Any) -> Any:
    import polars as pl

    return columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(columns)


def _no_formulas(name: str) -> Any:
    import polars as pl

    column = pl.col(name)
    risky = column.str.contains(_FORMULA) & ~column.str.contains(_NUMBER)
    return pl.when(risky).then("'" + column).otherwise(column).alias(name)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed NPZ archive."""
    with replacing(path) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, **arrays)
