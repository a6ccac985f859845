"""Faults at single writes of the command line, in this process or in children that are forked from a loaded one.

``python tests/fault_injection.py FILE`` loads the modules and the computed results that FILE names, and then forks one child per
line of its input: a start costs milliseconds instead of the seconds that an interpreter and its imports take.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import vl_convert
from altair.utils import schemapi

import classgap
from command_line import built_once
from waiting import SECONDS

# A child begins with those modules of these packages that the tests have loaded; without torch it is forked faster.
MEASURING = ("classgap.cli", "classgap.measure", "classgap.posthoc", "classgap.predictions", "numpy", "scipy", "sklearn",
             "polars", "narwhals", "altair", "jsonschema", "jinja2", "rich", "typer", "safetensors")  # fmt: skip
TRAINING = (*MEASURING, "classgap", "torch", "lightning_fabric")
# Slow functions that compute and write nothing.
_PURE = (
    (vl_convert, "vegalite_to_png"),
    (vl_convert, "vegalite_to_svg"),
    (vl_convert, "javascript_bundle"),
    (classgap, "fix"),
)


class Faults:
    """Counts what writes: opening and writing files, flushing, renaming, making folders; and lets one of these fail."""

    def __init__(self, act: Callable[[], None] | None = None, at: int = -1) -> None:
        self.act, self.at, self.count = act, at, 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.at + 1 and self.act is not None:
            self.act()

    def wrap(self, function: Any, writes: Callable[..., bool] = lambda *a, **k: True) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if writes(*arguments, **options):
                self.step()
            return function(*arguments, **options)

        return wrapped

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        def opened(path: object, mode: str = "r", *more: Any, **options: Any) -> bool:
            return bool(set(mode) & set("wax+"))

        with pytest.MonkeyPatch.context() as patch:
            for owner, name in ((os, "replace"), (os, "rename"), (os, "fsync"), (pathlib.Path, "write_bytes")):
                patch.setattr(owner, name, self.wrap(getattr(owner, name)))
            patch.setattr(pathlib.Path, "open", self.wrap(pathlib.Path.open, opened))
            patch.setattr(pathlib.Path, "mkdir", self.wrap(pathlib.Path.mkdir))
            yield


def fails(number: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def sends(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


class Remembered:
    """Results of the functions that only compute: the same call with the same files need not compute them again."""

    def __init__(self, results: dict[tuple[str, str], Any] | None = None) -> None:
        self.results = {} if results is None else results

    def wrap(self, name: str, function: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            key = name, "" if name == "fix" else repr((arguments, options))
            if key not in self.results:
                self.results[key] = function(*arguments, **options)
            return self.results[key]

        return wrapped

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in _PURE:
                patch.setattr(owner, name, self.wrap(name, getattr(owner, name)))
            # Nearly half the time of a call: the charts are valid, which their own tests check, and the same every time.
            patch.setattr(schemapi, "validate_jsonschema", lambda *arguments, **options: None)
            yield


@contextlib.contextmanager
def children(
    remembered: Remembered, packages: tuple[str, ...], folder: Path
) -> Iterator[Callable[[list[str], Path, int, int], int]]:
    """A function that calls the command line in a process that gets a signal at one write, and tells how it ended."""
    modules = [name for name in sys.modules if name.startswith(packages)]
    (folder / "loaded.pickle").write_bytes(pickle.dumps((modules, remembered.results)))
    command = [sys.executable, __file__, str(folder / "loaded.pickle")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def start(words: list[str], place: Path, number: int, moment: int) -> int:
            print(json.dumps([words, str(place), int(number), moment]), file=server.stdin, flush=True)
            return int(server.stdout.readline())  # type: ignore[union-attr]

        try:
            yield start
        finally:
            server.kill()


def serve(file: Path) -> None:
    """Fork a child for every line of the input, and print its exit code."""
    modules, results = pickle.loads(file.read_bytes())  # written by the tests just before
    warnings.simplefilter("ignore")
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from classgap.cli.app import app

    with built_once():
        typer.main.get_command(app)  # before the first fork, for all children
    gc.freeze()  # a collection in a child would copy all memory
    for line in sys.stdin:
        words, place, number, moment = json.loads(line)
        process = os.fork()
        if not process:
            signal.alarm(SECONDS)  # ends what hangs
            _call(words, place, Faults(sends(number), moment), Remembered(results))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _call(words: list[str], place: str, faults: Faults, remembered: Remembered) -> None:
    from classgap.cli import main

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.chdir(place)
    sys.argv[1:] = words
    with built_once(), remembered.active(), faults.active():
        main()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
