"""Predictions from a query on a DuckDB file. DuckDB groups the rows; only counts leave it, unless the query selects scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classgap.checks import InputError
from classgap.predictions.columns import Columns
from classgap.predictions.locations import READABLE
from classgap.predictions.predictions import Predictions


def read_query(
    files: Sequence[str],
    columns: Columns,
    *,
    sql: str,
    class_names: Sequence[str] | None = None,
    train_counts: Any = None,
) -> Predictions:
    """Predictions from the rows that ``sql`` selects in a DuckDB file, which is opened for reading only."""
    if len(files) != 1:
        raise InputError(f"--sql needs one DuckDB file, got {len(files)} files")
    database = Path(files[0])
    try:
        import duckdb
    except ImportError:
        raise InputError("a query needs DuckDB; install it with: pip install duckdb") from None
    from classgap.predictions.counting import from_table
    from classgap.predictions.tables import open_table

    if not database.is_file():
        raise InputError(f"there is no file {database}")
    try:
        with duckdb.connect(str(database), read_only=True) as connection:
            rows = connection.sql(sql)
            if rows is None:
                raise InputError(f"the query must select rows, got {sql!r}")
            table = open_table(rows, columns, "the query", "--names")
            return from_table(table, class_names, train_counts, rows=False)
    except duckdb.Error as error:
        reason = " ".join(str(error).split())
        if database.suffix.lower() in READABLE:
            raise InputError(f"--sql is for DuckDB files, got {database}; leave --sql out") from None
        raise InputError(f"the query on {database} failed ({reason})") from None
