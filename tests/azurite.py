"""Azurite, Microsoft's emulator of Azure Blob Storage, as a server on this machine; requests are signed with its public key."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import io
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from waiting import SECONDS

# The account and the key that every copy of Azurite has; they are published in its documentation.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "data"


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[tuple[str, Callable[[str, pl.DataFrame], None]]]:
    """The address of a running server with one container, and a function that writes a table as a blob."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob on the PATH (npm install azurite), an emulator of Azure Blob Storage")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [program, "--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", str(port),
               "--location", str(folder)]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until_it_answers(endpoint)

        def put(key: str, frame: pl.DataFrame) -> None:
            body = io.BytesIO()
            if key.endswith(".parquet"):
                frame.write_parquet(body)
            else:
                frame.write_csv(body)
            _put(endpoint, f"/{CONTAINER}/{key}", "", body.getvalue(), {"x-ms-blob-type": "BlockBlob"})

        yield endpoint, put
    finally:
        server.terminate()
        server.wait()


def _until_it_answers(endpoint: str) -> None:
    """Wait for the server, which takes a while on a busy machine, and create the container."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return _put(endpoint, f"/{CONTAINER}", "restype=container", b"", {})
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _put(endpoint: str, path: str, query: str, body: bytes, headers: dict[str, str]) -> None:
    """A PUT request with a shared key."""
    now = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06", **headers}
    kind = "application/octet-stream" if body else ""
    named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    resource = f"/{ACCOUNT}/{ACCOUNT}{path}" + (f"\n{query.replace('=', ':')}" if query else "")
    text = f"PUT\n\n\n{len(body) or ''}\n\n{kind}\n\n\n\n\n\n\n{named}{resource}"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    if body:
        headers["Content-Type"] = kind
    address = f"{endpoint}/{ACCOUNT}{path}" + (f"?{query}" if query else "")
    urllib.request.urlopen(urllib.request.Request(address, data=body or None, method="PUT", headers=headers)).close()
