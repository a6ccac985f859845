"""CSV files as spreadsheets and scripts write them: separator, decimal comma, blank lines at the end, and where a fault is."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from classgap.checks import InputError
from classgap.predictions.locations import Location
from classgap.predictions.stores import store_options

_QUOTED = re.compile(r'"[^"]*("|$)')
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")
_SAMPLE_ROWS = 1000
_BLOCK = 1 << 16


def scan_csv(
    files: Any, types: Callable[[Sequence[str]], Mapping[str, pl.DataType]], *, patterns: bool = False
) -> pl.LazyFrame:
    """One lazy table over all files. ``types`` gives the types of the columns that the first rows do not tell."""
    separator, stored = _header(files, patterns)
    overrides = {stored[name]: kind for name, kind in types(list(stored)).items()}
    options: dict[str, Any] = {"separator": separator, "glob": patterns, **store_options(files[0])}
    numbers = [name for name, kind in overrides.items() if kind == pl.Float64()]
    table = pl.scan_csv(
        files,
        schema_overrides=overrides,
        infer_schema_length=10_000,
        decimal_comma=_has_decimal_commas(files[0], numbers, options),
        **options,
    )
    table = _without_blank_end(table, files, options)
    renamed = {name: shown for shown, name in stored.items() if name != shown}
    return table.rename(renamed) if renamed else table


def read_small_csv(path: Path) -> pl.DataFrame:
    """A small CSV file, all columns as text."""
    check_content(path)
    return scan_csv([path], lambda header: dict.fromkeys(header, pl.String())).collect()


def check_content(file: Path) -> None:
    """Refuse a file that is no text in UTF-8 with the usual ends of lines, as far as its beginning shows."""
    with file.open("rb") as handle:
        head = handle.read(4096)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{file} is encoded in UTF-16; {_SAVE_AS_UTF8}")
    if head[:2] == b"\x1f\x8b":
        raise InputError(f"{file} is compressed with gzip; unpack it first (gunzip)")
    if b"\0" in head or head[:4] == b"PAR1":
        raise InputError(f"{file} ends in {file.suffix} but is not a CSV file; check its content")
    if b"\r" in head and b"\n" not in head:
        raise InputError(f"the lines of {file} end with CR only; save the file with line ends LF or CR LF")


_SAVE_AS_UTF8 = "save it in UTF-8 (in Excel: Save As, CSV UTF-8)"


# ---------------------------------------------------------------- header, decimal comma, end


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
    if header and re.fullmatch(r"sep=.?", header[0], re.IGNORECASE):
        raise InputError(f"the first line of {files[0]} names the separator for Excel ({header[0]}…); remove this line")
    _refuse_duplicates(header, files[0])
    return separator, {name.replace('""', '"'): name for name in header}


def _separator(file: Location, pattern: bool = False) -> str:
    """The separator (comma, semicolon or tab) that is most frequent in the first line, outside of quotes."""
    if isinstance(file, Path):
        with file.open(encoding="utf-8", errors="replace") as text:
            first_line = next((line for line in text if line.strip()), "")
    else:  # a separator that does not occur makes the whole line one column name
        whole = pl.scan_csv(
            file, separator="\x01", quote_char=None, infer_schema=False, glob=pattern, **store_options(file)
        )
        first_line = whole.collect_schema().names()[0]
    return max(",;\t", key=_QUOTED.sub("", first_line).count)


def _refuse_duplicates(header: Sequence[str], file: Location) -> None:
    """Polars adds ``_duplicated_0`` to the second column of a name, and one of the two would be used silently."""
    for name in header:
        original, marker, number = name.rpartition("_duplicated_")
        if marker and number.isdecimal() and original in header:
            raise InputError(f"{file} has two columns named {original!r}; rename or remove one of them")


def _has_decimal_commas(file: Location, numbers: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Whether the first numbers in these columns are written as 0,5."""
    if not numbers or options["separator"] == ",":
        return False
    first = pl.scan_csv(file, infer_schema=False, n_rows=_SAMPLE_ROWS, **options).select(numbers).collect()
    cells = {cell for name in numbers for cell in first[name].to_list() if cell}
    return any(map(_DECIMAL_COMMA.fullmatch, cells)) and not any("." in cell for cell in cells)


def _without_blank_end(table: pl.LazyFrame, files: Any, options: Mapping[str, Any]) -> pl.LazyFrame:
    """The table without the rows that blank lines at the end of its files are; a blank line elsewhere stays a row."""
    at_end = sum(_blank_lines_at_end(file, options["separator"]) for file in files if isinstance(file, Path))
    if not at_end:
        return table
    blank = pl.all_horizontal(pl.all().cast(pl.String).str.strip_chars().fill_null("") == "")
    texts = pl.scan_csv(files, infer_schema=False, **options)
    found = texts.select(blank.sum()).collect(engine="streaming").item()
    return table.filter(~blank) if found == at_end else table


def _blank_lines_at_end(file: Path, separator: str) -> int:
    """How many lines at the end of a file hold nothing but spaces and separators."""
    nothing = f" \t\r\n{separator}".encode()
    end = b""
    with file.open("rb") as handle:
        size = handle.seek(0, 2)
        while size and not end.strip(nothing):
            start = max(0, size - _BLOCK)
            handle.seek(start)
            end, size = handle.read(size - start) + end, start
    blank = end[len(end.rstrip(nothing)) :]
    return len(blank.split(b"\n")[1:]) - blank.endswith(b"\n")


# ---------------------------------------------------------------- where a fault is


def sentence_about(reason: str, files: Sequence[Location]) -> str | None:
    """What polars found wrong with these CSV files in one sentence; None for what it says well itself, and without files."""
    if files and "invalid utf-8" in reason.lower():
        return f"{files[0]} is not encoded in UTF-8; {_SAVE_AS_UTF8}"
    if "more fields than defined" in reason:
        for file, separator in _local(files):
            rows = _records(file, separator)
            wanted = len(next(rows, (0, []))[1])
            for line, cells in rows:
                if len(cells) > wanted:
                    return (
                        f"line {line} of {file} has {len(cells)} fields, but the header names {wanted} columns; put texts that "
                        "contain the separator in quotes, and give every column a name"
                    )
    return None


def first_line_without(columns: Sequence[str], files: Sequence[Location]) -> str:
    """Where a CSV file has the first row without a value in one of these columns, to be added to a sentence."""
    for file, separator in _local(files):
        rows = _records(file, separator)
        header = next(rows, (0, []))[1]
        places = [header.index(name) for name in columns if name in header]
        for line, cells in rows:
            if any(place >= len(cells) or not cells[place].strip() for place in places):
                return f" (the first is line {line} of {file})"
    return ""


def _local(files: Sequence[Location]) -> Iterator[tuple[Path, str]]:
    """The CSV files on this machine and their separators."""
    return ((file, _separator(file)) for file in files if isinstance(file, Path))


def _records(file: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line and the cells of every row, from the header on."""
    csv.field_size_limit(_LONGEST_CELL)
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        rows, line, begun = csv.reader(text, delimiter=separator), 1, False
        for cells in rows:
            begun = begun or bool(cells)
            if begun:
                yield line, cells
            line = rows.line_num + 1


_LONGEST_CELL = 1 << 30
