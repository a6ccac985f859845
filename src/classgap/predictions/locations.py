"""Where prediction files are: paths and folders on this machine, and addresses in object stores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from classgap.checks import InputError, printable

Paths = Path | str | Sequence[Path | str]
Location = Path | str
"""A file on this machine, or the address (``s3://…``) of a file, a folder or a pattern with ``*`` in an object store."""
_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".safetensors": "safetensors",
}
READABLE = tuple(_FORMATS)
_TABLES = ("csv", "parquet")
# What to do with files of other formats.
_WAYS = {
    (".duckdb", ".ddb", ".db"): "select the columns of a DuckDB file with --sql",
    (".gz", ".bz2", ".xz", ".zst", ".zip"): "unpack it first",
    (".npy", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".h5", ".mat"): (
        "write the arrays to one file with numpy.savez(FILE, y_true=…, scores=…)"
    ),
    (".json", ".jsonl", ".ndjson", ".arrow", ".feather", ".ipc", ".xlsx", ".xls", ".ods", ".orc", ".avro"): (
        "in Python read it with polars or pandas and pass the table to classgap.audit, or save it as CSV or Parquet"
    ),
    (".txt", ".tab", ".dat", ".data"): "if it is a table, rename it to .csv (separated by commas, semicolons or tabs)",
}


@dataclass(frozen=True)
class Files:
    """The files of one data set, and their common format.

    ``partitioned`` says whether names of folders hold columns, as in ``site=A/part-0.parquet`` (Hive partitions).
    """

    files: tuple[Location, ...]
    kind: str
    partitioned: bool

    @property
    def is_table(self) -> bool:
        return self.kind in _TABLES


def is_address(path: Location) -> bool:
    """Whether this is an address such as ``s3://bucket/file.parquet``, not a path on this machine."""
    return isinstance(path, str) and "://" in path


def is_pattern(path: Location) -> bool:
    """Whether this is an address with ``*``. Paths on this machine are always literal."""
    return is_address(path) and "*" in str(path)


def find_files(paths: Paths) -> Files:
    """The files in ``paths``, with folders replaced by their files."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given or any(str(path) in ("", ".") for path in given):
        raise InputError(
            "expected the path of a prediction file, got an empty path or '.' (is a variable not set?); for the current folder, "
            "give its name"
        )
    files: list[Location] = []
    partitioned = False
    for path in given:
        parts = [_folder_pattern(str(path))] if is_address(path) else _files_in(Path(path))
        below = [str(part)[len(str(path)) :] for part in parts]
        partitioned |= any(is_pattern(part) for part in parts) or any("=" in os.path.dirname(part) for part in below)
        files += parts
    _refuse_twice(files)
    kinds = {_format(file) for file in files}
    for file in files if kinds <= set(_TABLES) else ():
        if "\ufffd" in os.fsencode(file).decode(errors="replace"):
            raise InputError(f"the name of the file {printable(str(file))} is not UTF-8; rename the file")
    if len(kinds) != 1:
        raise InputError(
            f"the files of one data set must have the same format, got {' and '.join(sorted(kinds)) or 'no file'}"
        )
    return Files(tuple(files), kinds.pop(), partitioned)


def _refuse_twice(files: Sequence[Location]) -> None:
    """Refuse a file that is given twice, also by a link to it: its samples would count twice."""
    first: dict[object, Location] = {}
    for file in files:
        place = str(file) if is_address(file) else _identity(file)
        if (other := first.get(place)) is not None:
            also = f" ({other} is the same file)" if str(other) != str(file) else ""
            raise InputError(f"{file} is given twice{also}, so its samples would count twice; give it once")
        first[place] = file


def _identity(file: Location) -> object:
    """What two names of a file on this machine have in common, also with a hard link.

    Size and time guard against file systems that number their files badly; without numbers, links are resolved.
    """
    found = os.stat(file)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found.st_ino else os.path.realpath(file)


def _folder_pattern(address: str) -> str:
    """The address; that of a folder becomes a pattern for the Parquet files in it."""
    return address if Path(address).suffix.lower() in _FORMATS else f"{address.rstrip('/')}/**/*.parquet"


def _files_in(path: Path) -> list[Path]:
    """The file itself, or the prediction files in this folder."""
    files = [path]
    if path.is_dir():
        files = sorted(_parts_below(path))
        if not files:
            raise InputError(f"folder {path} contains no prediction file ({', '.join(_FORMATS)})")
    for file in files:
        if not file.exists():
            link = ", but a link to a file that does not exist" if file.is_symlink() else ""
            raise InputError(f"there is no file {file}{link}")
        if file.suffix.lower() in _FORMATS and file.stat().st_size == 0:
            raise InputError(f"{file} is an empty file; write the predictions again")
    return files


def _parts_below(folder: Path) -> Iterator[Path]:
    """The files of the data set in a folder, also in linked ones. A broken link is one: its rows must not be left out silently.

    Hidden folders hold copies and unfinished files, such as ``.ipynb_checkpoints`` and Spark's ``_temporary``.
    """
    seen = set()  # a link may lead to a folder that is read anyway
    for place, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        linked = {name for name in folders if os.path.islink(os.path.join(place, name))}
        folders[:] = sorted((name for name in folders if name[0] not in "._" or "=" in name), key=linked.__contains__)
        yield from (
            Path(place, name) for name in files if Path(name).suffix.lower() in _FORMATS and name[0] not in "._"
        )


def _format(file: Location) -> str:
    """The format of a file by its extension."""
    ending = Path(file).suffix.lower()
    if ending not in _FORMATS:
        hint = next((f"; {way}" for endings, way in _WAYS.items() if ending in endings), "")
        raise InputError(f"{file} has an unknown file extension; classgap reads {', '.join(_FORMATS)}{hint}")
    if is_address(file) and _FORMATS[ending] not in _TABLES:
        raise InputError(f"{file} must be a CSV or Parquet file; copy archives ({ending}) to this machine first")
    return _FORMATS[ending]
