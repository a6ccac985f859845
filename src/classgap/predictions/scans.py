"""Tables in files and in object stores as lazy polars tables: nothing is read before the columns are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from classgap.checks import InputError
from classgap.predictions.columns import Columns, pick, pick_wide, without_described
from classgap.predictions.locations import Files, Location, is_pattern
from classgap.predictions.stores import store_options


def scan(source: Files, columns: Columns) -> pl.LazyFrame:
    """One lazy table over all files."""
    files, patterns = _checked(source)
    if source.kind == "parquet":
        return _scan_parquet(source, files, patterns)
    separator, stored = _header(files, patterns)
    header = list(stored)
    labels = [pick("true", columns.true, header), pick("pred", columns.pred, header)]
    labels += [columns.id and pick("id", columns.id, header), columns.path, columns.text, *columns.by]
    # Labels stay text until all distinct labels are known: a column may begin with numbers and contain names later.
    types: dict[str, pl.DataType] = {name: pl.String() for name in labels if name in header}
    # Likewise, the first thousands of scores may be whole numbers and later ones not.
    for role, wanted in (("scores", columns.scores), ("features", columns.features)):
        wide, _ = pick_wide(role, wanted, without_described(header, columns))
        types |= {name: pl.Float64() for name in wide if len(wide) > 1 and name not in types}
    return _scan_csv(files, separator, stored, types, patterns)


def scan_as_stored(
    source: Files, floats: Callable[[Sequence[str]], Sequence[str]], sample_id: str | None = None
) -> pl.LazyFrame:
    """One lazy table over all files, every column with the type that its values suggest.

    Args:
        sample_id: The column of sample ids, which are text: 7 and 007 are two ids.
        floats: Which of the columns of a CSV file hold decimal numbers, even if the first thousands are whole.
    """
    files, patterns = _checked(source)
    if source.kind == "parquet":
        return _scan_parquet(source, files, patterns)
    separator, stored = _header(files, patterns)
    header = list(stored)
    types: dict[str, pl.DataType] = dict.fromkeys(floats(header), pl.Float64())
    if sample_id is not None and (name := pick("id", sample_id, header)) is not None:
        types[name] = pl.String()
    return _scan_csv(files, separator, stored, types, patterns)


def _checked(source: Files) -> tuple[Any, bool]:
    """The files after a check of their content, and whether they are patterns."""
    for file in source.files:
        if isinstance(file, Path):
            _check_content(file, source.kind)
    return list(source.files), any(is_pattern(file) for file in source.files)


def _scan_parquet(source: Files, files: Any, patterns: bool) -> pl.LazyFrame:
    options: dict[str, Any] = {"glob": patterns, **store_options(files[0])}
    if not source.partitioned:
        return pl.scan_parquet(files, **options)
    folders = {name for file in files for name, is_column, _ in _partitions(file) if is_column}
    if patterns:  # the names of the folders are not known here
        both = [pl.scan_parquet(files, hive_partitioning=hive, **options).collect_schema() for hive in (True, False)]
        folders |= both[0].keys() - both[1].keys()
    # Without types, 01 and 1 would become the same number.
    return pl.scan_parquet(files, hive_partitioning=True, hive_schema=dict.fromkeys(folders, pl.String()), **options)


def _partitions(file: Location) -> list[tuple[str, str, str]]:
    """The names of the folders of a file, parted at ``=``."""
    return [folder.partition("=") for folder in re.split(r"[/\\]", str(file))[:-1]]


def _scan_csv(files: Any, separator: str, stored: dict[str, str], types: Any, patterns: bool) -> pl.LazyFrame:
    overrides, options = {stored[name]: kind for name, kind in types.items()}, store_options(files[0])
    table = pl.scan_csv(
        files, separator=separator, schema_overrides=overrides, infer_schema_length=10_000, glob=patterns, **options
    )
    renamed = {name: shown for shown, name in stored.items() if name != shown}
    return table.rename(renamed) if renamed else table


def _header(files: Any, patterns: bool) -> tuple[str, dict[str, str]]:
    """Separator and column names of a CSV file, and how polars calls these columns.

    A CSV file holds a quotation mark in a name twice, and polars does not reduce it to one in the header.
    """
    separator = _separator(files[0], patterns)
    header = (
        pl.scan_csv(files[0], separator=separator, infer_schema=False, glob=patterns, **store_options(files[0]))
        .collect_schema()
        .names()
    )
    _refuse_duplicates(header, files[0])
    return separator, {name.replace('""', '"'): name for name in header}


def _check_content(file: Path, kind: str) -> None:
    with file.open("rb") as handle:
        head = handle.read(4096)
    if (kind == "parquet") != (head[:4] == b"PAR1") or (kind == "csv" and b"\0" in head):
        raise InputError(f"{file} ends in {file.suffix} but is not a {kind.upper()} file; check its content")


def _separator(file: Location, pattern: bool) -> str:
    """The separator (comma, semicolon or tab) that is most frequent in the first line."""
    if isinstance(file, Path):
        with file.open(encoding="utf-8", errors="replace") as text:
            first_line = text.readline()
    else:  # a separator that does not occur makes the whole line one column name
        whole = pl.scan_csv(
            file, separator="\x01", quote_char=None, infer_schema=False, glob=pattern, **store_options(file)
        )
        first_line = whole.collect_schema().names()[0]
    return max(",;\t", key=first_line.count)


def _refuse_duplicates(header: Sequence[str], file: Location) -> None:
    """Polars adds ``_duplicated_0`` to the second column of a name, and one of the two would be used silently."""
    for name in header:
        original, marker, number = name.rpartition("_duplicated_")
        if marker and number.isdecimal() and original in header:
            raise InputError(f"{file} has two columns named {original!r}; rename or remove one of them")
