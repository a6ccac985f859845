"""Files from the network: resumed where they were interrupted, verified, and unpacked so that half a folder is never seen."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgap.checks import InputError

Tell = Callable[[str, int, int | None], None]
"""``tell(file name, bytes that are there, bytes of the whole file if known)``."""
_BLOCK = 1 << 20
_TIMEOUT = 30


@dataclass(frozen=True)
class Remote:
    """A file to download.

    Attributes:
        folder: Where it belongs, relative to the folder of all data sets.
        digest: ``md5:…`` or ``git:…`` (the name of the file's content in a Git repository); empty where none is published.
        unpack: Whether it is an archive whose content is wanted in ``folder``.
    """

    url: str
    folder: str
    digest: str = ""
    unpack: bool = False

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def path(self, root: Path) -> Path:
        return root / self.folder / self.name


class DownloadError(InputError):
    """A file did not arrive."""


def download(remote: Remote, root: Path, tell: Tell | None = None) -> Path:
    """Fetch a file unless it is there already, and verify it.

    What has arrived is in ``NAME.part`` until the file is whole and verified; the next call continues it. A file that is there
    but does not have the published digest is an error that names it.
    """
    path = remote.path(root)
    tell = tell or _silent
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _as_sentences(remote, root):
            _fetch(remote, part, tell)
        if not _has_digest(part, remote.digest):
            part.unlink()
            raise InputError(f"{remote.url} is not the published file (its {remote.digest} differs); try again later")
        part.replace(path)
    elif not _has_digest(path, remote.digest):
        raise InputError(f"{path} is damaged or another version (its {remote.digest} differs); remove it and try again")
    return path


@contextlib.contextmanager
def _as_sentences(remote: Remote, root: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(
            f"{remote.url} cannot be downloaded ({str(reason) or type(reason).__name__}); run the command again to continue, or "
            f"put the file at {remote.path(root)} yourself"
        ) from error


def _fetch(remote: Remote, part: Path, tell: Tell) -> None:
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url, headers={"User-Agent": "classgap"})
    if there:
        request.add_header("Range", f"bytes={there}-")
    try:
        answer = urllib.request.build_opener().open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not there:  # 416: nothing is left to send
            raise
        error.close()
        return
    with answer:
        if answer.status != 206:  # the server sends the file from its beginning
            there = 0
        left = answer.headers.get("Content-Length")
        whole = None if left is None else there + int(left)
        with part.open("ab" if there else "wb") as file:
            while block := answer.read(_BLOCK):
                file.write(block)
                there += len(block)
                tell(remote.name, there, whole)
    if whole is not None and there < whole:
        raise OSError(f"the connection ended after {there} of {whole} bytes")


def _has_digest(path: Path, digest: str) -> bool:
    kind, _, wanted = digest.partition(":")
    if not wanted:
        return True
    found: Any = hashlib.new("sha1" if kind == "git" else kind, usedforsecurity=False)
    if kind == "git":
        found.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return bool(found.hexdigest() == wanted)


def unpack(archive: Path, folder: Path) -> None:
    """The content of an archive, moved into ``folder`` when all of it is there; what is there already is replaced."""
    place = folder / f".unpacking-{archive.name}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(place)
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(place, filter="data")
        for entry in sorted(place.iterdir()):
            _move(entry, folder / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be unpacked ({error}); check the space on the disk, or remove the file to download it again"
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _move(entry: Path, target: Path) -> None:
    """Move into place; a folder that is there already gets what is new."""
    if entry.is_dir() and target.is_dir():
        for inner in entry.iterdir():
            _move(inner, target / inner.name)
    else:
        os.replace(entry, target)


def _silent(name: str, there: int, whole: int | None) -> None:
    """Nobody asked for progress."""
