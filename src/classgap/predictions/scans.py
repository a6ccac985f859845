"""Tables in files and in object stores as lazy polars tables: nothing is read before the columns are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl

from classgap.checks import InputError
from classgap.predictions.binary import single_score_column
from classgap.predictions.columns import Columns, find_columns, pick, pick_labels, pick_wide, without_named
from classgap.predictions.csv_files import check_content, scan_csv
from classgap.predictions.locations import Files, Location, is_pattern
from classgap.predictions.stores import store_options

Types = dict[str, pl.DataType]


def scan(source: Files, columns: Columns) -> pl.LazyFrame:
    """One lazy table over all files."""
    table = _scan(source, lambda header: _types(header, columns))
    if not (source.kind == "parquet" and source.partitioned):
        return table
    schema = table.collect_schema()
    count = find_columns(schema.names(), columns, str(source.files[0])).count
    if count is None or schema[count] != pl.String():
        return table
    return table.with_columns(pl.col(count).cast(pl.Int64, strict=False))  # partitions are text, e.g. n=5


def scan_numbers(source: Files, columns: Columns, numbers: Callable[[Sequence[str]], Sequence[str]]) -> pl.LazyFrame:
    """One lazy table over all files, in which sample ids are text: 7 and 007 are two of them.

    Args:
        numbers: Which of the columns of a CSV file hold decimal numbers, even if the first thousands are whole, or booleans.
    """

    def ids(header: Sequence[str]) -> Types:
        name = columns.id and pick("id", columns.id, header)
        return {name: pl.String()} if name else {}

    table = _scan(source, ids)
    if source.kind == "parquet":
        return table
    schema = table.collect_schema()
    decimals = [name for name in numbers(schema.names()) if schema[name] != pl.Boolean()]
    return _scan(source, lambda header: dict.fromkeys(decimals, pl.Float64()) | ids(header))


def _types(header: Sequence[str], columns: Columns) -> Types:
    """Types of the columns of a CSV file that the first thousands of rows do not tell."""
    true, pred = pick_labels(columns, header)
    ids = columns.id and pick("id", columns.id, header)
    texts = [name for name in (true, pred, ids, columns.path, columns.text, *columns.by) if name is not None]
    # Labels stay text until all distinct labels are known: a column may begin with numbers and contain names later.
    types: Types = {name: pl.String() for name in texts if name in header}
    # Likewise, the first thousands of scores or weights may be whole numbers and later ones not.
    rest = without_named(header, columns)
    scores, features = (pick_wide(role, getattr(columns, role), rest)[0] for role in ("scores", "features"))
    if pred is None and not scores:
        scores = [name for name in [single_score_column(rest)] if name]
    numbers = [*scores, *features, *([columns.sample_weight] if columns.sample_weight else [])]
    return types | {name: pl.Float64() for name in numbers if name in header and name not in types}


def _scan(source: Files, types: Callable[[Sequence[str]], Types]) -> pl.LazyFrame:
    files, patterns = _checked(source)
    if source.kind == "parquet":
        return _scan_parquet(source, files, patterns)
    return scan_csv(files, types, patterns=patterns)


def _checked(source: Files) -> tuple[Any, bool]:
    """The files after a check of their content, and whether they are patterns."""
    for file in source.files:
        if isinstance(file, Path):
            _check_parquet(file) if source.kind == "parquet" else check_content(file)
    return list(source.files), any(is_pattern(file) for file in source.files)


def _scan_parquet(source: Files, files: Any, patterns: bool) -> pl.LazyFrame:
    options: dict[str, Any] = {"glob": patterns, **store_options(files[0])}
    if not source.partitioned:
        return pl.scan_parquet(files, **options)
    folders = {name for file in files for name in _partitions(file)}
    if any(_partitions(file) != _partitions(files[0]) for file in files) and not patterns:
        runs = [(names, list(run)) for names, run in groupby(files, _partitions)]
        return pl.concat([_scan_partitions(run, names, options) for names, run in runs], how="diagonal")
    if patterns:  # the names of the folders are not known here
        both = [pl.scan_parquet(files, hive_partitioning=hive, **options).collect_schema() for hive in (True, False)]
        folders |= both[0].keys() - both[1].keys()
    return _scan_partitions(files, folders, options)


def _scan_partitions(files: Any, folders: Collection[str], options: Mapping[str, Any]) -> pl.LazyFrame:
    if not folders:
        return pl.scan_parquet(files, hive_partitioning=False, **options)
    # Without types, 01 and 1 would become the same number.
    return pl.scan_parquet(files, hive_partitioning=True, hive_schema=dict.fromkeys(folders, pl.String()), **options)


def _partitions(file: Location) -> list[str]:
    """The columns that the folders of a file name, as in ``site=A/``."""
    return sorted({folder.partition("=")[0] for folder in re.split(r"[/\\]", str(file))[:-1] if "=" in folder})


def _check_parquet(file: Path) -> None:
    with file.open("rb") as handle:
        if handle.read(4) != b"PAR1":
            raise InputError(f"{file} ends in {file.suffix} but is not a PARQUET file; check its content")
