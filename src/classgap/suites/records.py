"""Files of JSON lines: a plain file that grows by appending, and beside it a compressed archive of older lines."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from classgap.checks import InputError
from classgap.writing import write


def archive_of(path: Path) -> Path:
    """The archive that belongs to a file of JSON lines.

    Example:
        >>> archive_of(Path("suite.jsonl")).name
        'suite.jsonl.xz'
    """
    return path.with_name(f"{path.name}.xz")


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of the archive of ``path``, then of ``path`` itself; a file that does not exist holds none."""
    return [record for _, record in placed_records(path)]


def placed_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same, each with the file and line where it was found, for error messages."""
    archive = archive_of(path)
    if archive.exists():
        try:
            text = lzma.decompress(archive.read_bytes()).decode()
        except (lzma.LZMAError, UnicodeDecodeError) as error:
            raise InputError(f"{archive} cannot be read ({error}); restore the file") from error
        yield from _parsed(archive, text)
    if path.exists():
        try:
            yield from _parsed(path, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not a file of results ({error}); restore the file") from error


def _parsed(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = text.removesuffix("\n").split("\n")  # other ends of lines, such as U+2028, may be in a text
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # cut off by a crash; its job is not marked as done anywhere else
                continue
            raise InputError(f"{path}, line {number}, cannot be read ({error}); restore the file") from error
        if record is not None and not isinstance(record, dict):
            raise InputError(f"{path}, line {number}, must be a JSON object, got {line[:60]!r}; restore the file")
        if record is not None:
            yield f"{path}, line {number},", record


def write_archive(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace the archive of ``path`` by one that holds these records, and remove ``path``, which they are taken from."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    archive = archive_of(path)
    # at once: a crash leaves the old archive or the new one, and records twice at worst
    write(archive, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    path.unlink(missing_ok=True)
