"""Call the command line inside the test process: starting Python and importing polars takes a second for every call."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import typer.main

from classgap import cli

# Typer builds the commands of all verbs in every call, which takes longer than most calls.
_built = functools.cache(typer.main.get_command)


def built_once() -> contextlib.AbstractContextManager[object]:
    """Calls of the command line in one process share its commands."""
    return patch.object(typer.main, "get_command", _built)


@dataclass(frozen=True)
class Done:
    """How a call ended. ``code`` is 0, 1 (a gate failed) or 2 (one sentence); any traceback is raised as an exception."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one sentence of a call that was refused."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert self.code == 2, (self.code, self.out, self.err)
        assert len(lines) == 1 or lines[0].startswith("Usage:"), self.err
        return self.err


def call(*arguments: str | Path, folder: Path | None = None) -> Done:
    """Call ``classgap`` with these arguments."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        _state(["classgap", *map(str, arguments)], folder),
        built_once(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = 0 if stop.code is None else int(stop.code)
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


@contextlib.contextmanager
def _state(arguments: list[str], folder: Path | None) -> Iterator[None]:
    before, place = sys.argv, Path.cwd()
    sys.argv = arguments
    try:
        if folder is not None:
            os.chdir(folder)
        yield
    finally:
        sys.argv = before
        os.chdir(place)
