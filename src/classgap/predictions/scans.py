"""Tables in files and in object stores as lazy polars tables: nothing is read before the columns are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from classgap.checks import InputError
from classgap.predictions.columns import Columns, pick
from classgap.predictions.files import Location, is_address


def scan(
    files: Sequence[Location], kind: str, columns: Columns, storage_options: Mapping[str, str] | None = None
) -> pl.LazyFrame:
    """One lazy table over all ``files``, of which ``kind`` (``"csv"`` or ``"parquet"``) is the format."""
    for file in files:
        if isinstance(file, Path):
            _check_content(file, kind)
    remote: dict[str, object] = {} if storage_options is None else {"storage_options": dict(storage_options)}
    remote["glob"] = any(is_address(file) and "*" in str(file) for file in files)
    if kind == "parquet":
        partitioned = any("=" in part for file in files for part in str(file).split("/")[:-1])
        return pl.scan_parquet(list(files), hive_partitioning=partitioned or None, **remote)  # type: ignore[arg-type]
    separator = _separator(files[0], remote)
    first = pl.scan_csv(files[0], separator=separator, infer_schema=False, **remote)  # type: ignore[arg-type]
    header = first.collect_schema().names()
    _refuse_duplicates(header, files[0])
    labels = [pick("true", columns.true, header), pick("pred", columns.pred, header)]
    labels += [columns.id, columns.path, columns.text, *columns.by]
    # Labels stay text until all distinct labels are known: a column may begin with numbers and contain names later.
    as_text = {name: pl.String() for name in labels if name in header}
    return pl.scan_csv(
        list(files), separator=separator, schema_overrides=as_text, infer_schema_length=10_000, **remote  # type: ignore[arg-type]
    )  # fmt: skip


def _check_content(file: Path, kind: str) -> None:
    with file.open("rb") as handle:
        head = handle.read(4096)
    if (kind == "parquet") != (head[:4] == b"PAR1") or (kind == "csv" and b"\0" in head):
        raise InputError(f"{file} ends in {file.suffix} but is not a {kind.upper()} file; check its content")


def _separator(file: Location, remote: Mapping[str, object]) -> str:
    """The separator (comma, semicolon or tab) that is most frequent in the first line."""
    if isinstance(file, Path):
        with file.open(encoding="utf-8", errors="replace") as text:
            first_line = text.readline()
    else:  # a separator that does not occur makes the whole line one column name
        whole = pl.scan_csv(file, separator="\x01", quote_char=None, infer_schema=False, **remote)  # type: ignore[arg-type]
        first_line = whole.collect_schema().names()[0]
    return max(",;\t", key=first_line.count)


def _refuse_duplicates(header: Sequence[str], file: Location) -> None:
    """Polars adds ``_duplicated_0`` to the second column of a name, and one of the two would be used silently."""
    for name in header:
        original, marker, number = name.rpartition("_duplicated_")
        if marker and number.isdecimal() and original in header:
            raise InputError(f"{file} has two columns named {original!r}; rename or remove one of them")
