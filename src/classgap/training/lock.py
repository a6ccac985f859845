"""One process at a time trains in a folder."""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from classgap.checks import InputError
from classgap.writing import remove_leftovers

_WAIT_SECONDS = 10.0

LOCK = ".lock"


def lock_folder(folder: Path, *, wait: float = _WAIT_SECONDS) -> BaseFileLock:
    """Lock the folder of a run until the lock is released, or the process ends in whatever way.

    The same process may lock a folder again. Workers that decode images share the lock of their run; if that is killed they end
    some seconds later, which is why this waits. What a killed run left half-written is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(folder / LOCK, is_singleton=True, thread_local=False)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise InputError(
            f"another process is training in {folder}; wait until it has ended, or choose another folder with --out"
        ) from None
    if lock.lock_counter == 1:
        remove_leftovers(folder)
    return lock


def release_unused(lock: BaseFileLock, folder: Path) -> None:
    """Release the lock of a run that could not start; a folder that holds nothing else is removed."""
    lock.release()
    if not lock.is_locked and [entry.name for entry in folder.iterdir()] in ([], [LOCK]):
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()
