"""The only module that writes files: a file or a set of files is written completely, or the earlier one stays.

A file is written beside its target, flushed to the disk and then renamed, so a full disk, a crash or a power cut never leaves
half a file. An operating-system error keeps its type (:class:`OSError`) and names the target, not the temporary file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from classgap.checks import InputError

_TEMPORARY = ".classgap-"


def write(path: str | Path, content: str | bytes) -> Path:
    """Write a whole file; text as UTF-8, with an escape sequence for half a surrogate pair, e.g. of an odd file name."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path with the same ending beside ``path``; the file written there takes the place of ``path`` at the end.

    If the block raises an error, ``path`` stays as it was. A device or pipe is written directly.
    """
    target = Path(os.path.realpath(path))  # a link stays a link to the new content
    with naming(path):
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("ab"):  # raises the usual error for a folder
                pass
            yield target
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(4)}{target.suffix[-16:]}")
        try:
            yield temporary
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            replace_file(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def replace_file(temporary: Path, target: Path) -> None:
    """Put a finished file in place of ``target`` such that a crash or power cut leaves the old or the new one, never a mix."""
    _flush(temporary)
    os.replace(temporary, target)
    _flush(target.parent)


@contextlib.contextmanager
def replacing_entries(folder: str | Path, names: Sequence[str]) -> Iterator[Path]:
    """A temporary folder whose files and folders at the end take the place of the entries ``names`` of ``folder``.

    Entries of an earlier result that the new one lacks are removed; other files in ``folder`` are kept. If the block or the
    exchange raises an error, the earlier result stays. If the process is killed during the exchange, ``folder`` holds a part of
    one of the two results, never a mix of both; the last of ``names`` is there only if all of its result is.
    """
    target = Path(folder)
    check_folder(target)
    with naming(folder):
        target.mkdir(parents=True, exist_ok=True)
        stage = target / f"{_TEMPORARY}{secrets.token_hex(4)}"
        new, old = stage / "new", stage / "old"
        try:
            new.mkdir(parents=True)
            old.mkdir()
            yield new
            unknown = {entry.name for entry in new.iterdir()} - set(names)
            assert not unknown, f"not declared as written: {unknown}"
            _exchange(target, new, old, names)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            for empty in (old, stage):
                with contextlib.suppress(OSError):  # an earlier file that could not be put back stays there
                    empty.rmdir()
            raise
        try:
            _flush(target)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def _exchange(target: Path, new: Path, old: Path, names: Sequence[str]) -> None:
    for path in new.rglob("*"):
        _flush(path)
    # First all old ones out, so that results never mix.
    moves = [(target / name, old / name) for name in reversed(names) if os.path.lexists(target / name)]
    moves += [(new / name, target / name) for name in names if os.path.lexists(new / name)]
    try:
        for before, after in moves:
            os.rename(before, after)
    except BaseException:
        # Also a signal, which may come before a call or after its work is done: the files tell which of the two.
        for before, after in reversed(moves):
            if os.path.lexists(after) and not os.path.lexists(before):
                os.rename(after, before)
        raise


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that cannot be written, before any work is done for it."""
    place = Path(folder)
    with naming(place):
        while not os.path.lexists(place) and place.parent != place:
            place = place.parent
        if not place.is_dir():
            raise InputError(f"{folder} must be a folder for the output, but {place} is a file; choose another folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise InputError(f"{folder} cannot be written: {place} is read-only; choose another folder")


def append_line(path: str | Path, line: str) -> None:
    """Add a line to a file and flush it to the disk."""
    with naming(path), open(path, "ab") as handle:
        handle.write(line.encode("utf-8") + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def mark_once(folder: Path, mark: str) -> bool:
    """Whether this process is the first to set ``mark`` in ``folder``; :func:`remove_leftovers` removes it."""
    try:
        os.close(os.open(folder / f"{_TEMPORARY}{mark}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:  # a full disk, say: rather twice than never
        return True
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed have left in ``folder`` and below, where nobody else may be writing."""
    for path in folder.rglob(f"{_TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let operating-system errors name ``path`` instead of a temporary file, or of nothing at all."""
    try:
        yield
    except OSError as error:
        if error.filename is None or _TEMPORARY in str(error.filename):
            error.filename, error.filename2 = str(path), None
        raise


def _flush(path: Path) -> None:
    """Flush a file or folder to the disk; some file systems do not support this for folders."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
