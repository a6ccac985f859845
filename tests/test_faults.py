"""A fault at every single write: full disk, read-only disk, SIGTERM and SIGKILL. Earlier results stay, and exit codes say why."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Done, call
from waiting import SECONDS

TORCH = find_spec("torch") is not None
Y = np.arange(90) % 3
RNG = np.random.default_rng(0)
SCORES = 2 * np.eye(3)[Y] + RNG.normal(size=(90, 3)) - np.array([0.0, 2.0, 3.0])
SMALL = ["epochs=1", "data.per_class=4", "model=mlp-4", "batch=16", "checkpoint_steps=1"]


def settings(words: list[str]) -> list[str]:
    return [part for word in words for part in ("--set", word)]


# What is called, and the file or folder that it writes.
MEASURING = {
    "audit": (["audit", "s.npz", "--out", "out"], "out"),
    "compare": (["compare", "s.npz", "s.npz", "--out", "out"], "out"),
    "fix": (["fix", "s.npz", "--out", "out"], "out"),
}
TRAINING = {
    "train": (["train", *settings(SMALL), "--out", "new"], "new"),
    "predict": (["predict", "run", "digits", "--out", "out.npz"], "out.npz"),
    "predict table": (["predict", "run", "digits", "--out", "out.csv"], "out.csv"),
    "features": (["features", "run", "digits", *settings(["data.per_class=4"]), "--out", "out.safetensors"], "out.safetensors"),
    "probe": (["probe", "f.safetensors", *settings(["epochs=1"]), "--grid", "lr=0.1,1", "--out", "out"], "out"),
    "new-method": (["new-method", "my_loss"], "my_loss.py"),
}  # fmt: skip
VERBS = {**MEASURING, **(TRAINING if TORCH else {})}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    np.savez(folder / "s.npz", y_true=Y, scores=SCORES, train_counts=np.array([100, 20, 5]))
    if TORCH:
        for words in (TRAINING["train"][0], TRAINING["features"][0]):
            changed = [{"new": "run", "out.safetensors": "f.safetensors"}.get(word, word) for word in words]
            assert call(*changed, folder=folder).code == 0
    return folder


def contents(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files if path.name != ".lock"}


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


def sends(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def chosen(count: int, most: int) -> list[int]:
    """At most so many of the writes, first and last among them."""
    return sorted({round(k) for k in np.linspace(0, count - 1, min(count, most))})


@dataclass(frozen=True)
class Case:
    """A verb in a folder with its inputs and, where it replaces one, an earlier result."""

    verb: str
    words: list[str]
    written: str
    folder: Path
    writes: int
    new: dict[str, bytes]

    def begin(self, folder: Path) -> tuple[Path, dict[str, bytes]]:
        """A copy to work in: the place of the result, and what is there."""
        shutil.copytree(self.folder, folder)
        place = folder / self.written
        return place, contents(place) if place.exists() else {}


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    verb = request.param
    words, written = VERBS[verb]
    folder, whole, faults = (
        tmp_path_factory.mktemp("case") / "case",
        tmp_path_factory.mktemp("whole") / "whole",
        Faults(),
    )
    shutil.copytree(inputs, whole)
    with faults.active():
        assert call(*words, folder=whole).code == 0
    shutil.copytree(inputs if verb in ("train", "new-method") else whole, folder)
    place = folder / written
    for path in ([place] if place.is_file() else sorted(place.rglob("*"))) if place.exists() else ():
        if path.is_file():
            path.write_bytes(b"earlier " + path.read_bytes()[:20])
    return Case(verb, words, written, folder, faults.count, contents(whole / written))


def check_refused(done: Done, verb: str, moment: int) -> None:
    assert done.code == 2, (verb, moment, done)
    assert "space" in done.sentence or "ead-only" in done.sentence, (verb, moment, done)


def disk_faults(case: Case, tmp_path: Path, most: int) -> int:
    """Let writes fail one after the other; the number of faults that were tried."""
    moments, verb = chosen(case.writes, most), case.verb
    for moment in moments:
        number, folder = (errno.ENOSPC, errno.EROFS)[moment % 4 == 0], tmp_path / str(moment)
        place, before = case.begin(folder)
        with Faults(fails(number), moment).active():
            done = call(*case.words, folder=folder)
        if done.code == 0:  # a note or a flush that is not needed
            assert contents(place).keys() == case.new.keys(), (verb, moment)
        else:
            check_refused(done, verb, moment)
            if verb != "train":
                assert (contents(place) if place.exists() else {}) == before, (verb, moment)
            assert not list(folder.rglob(".classgap-*")), (verb, moment)
        if verb == "train":
            assert call(*case.words, "--resume", folder=folder).code == 0, (verb, moment)
            weights = "model.safetensors"
            assert (place / weights).read_bytes() == case.new[weights], (verb, moment)
        shutil.rmtree(folder)
    return len(moments)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", VERBS, indirect=True)
def test_a_full_or_read_only_disk_at_some_writes(case: Case, tmp_path: Path) -> None:
    assert disk_faults(case, tmp_path, 3) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", VERBS, indirect=True)
def test_a_full_or_read_only_disk_at_every_write(case: Case, tmp_path: Path) -> None:
    print(case.verb, disk_faults(case, tmp_path, 1000), "faults")


CHILD = """
import signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from test_faults import Faults, sends
from classgap.cli import main
number, moment, sys.argv[1:] = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
with Faults(sends(signal.Signals(number)), moment).active():
    main()
"""


def in_a_child(words: list[str], folder: Path, number: signal.Signals, moment: int) -> int:
    """Call the command line in a process that gets a signal at one write; how it ended."""
    command = [sys.executable, "-c", CHILD, str(int(number)), str(moment), *words]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": path}, "timeout": SECONDS}
    return subprocess.run(command, capture_output=True, check=False, **options).returncode  # type: ignore[call-overload,no-any-return]


def signals(case: Case, tmp_path: Path, most: int) -> int:
    """End the process at writes, one after the other; the number of signals."""
    moments, verb = chosen(case.writes, most), case.verb
    for moment in moments:
        number, folder = (signal.SIGKILL, signal.SIGTERM)[moment % 2], tmp_path / str(moment)
        place, before = case.begin(folder)
        code = in_a_child(case.words, folder, number, moment)
        found = {n: c for n, c in (contents(place) if place.exists() else {}).items() if ".classgap-" not in n}
        resumable = verb in ("train", "features")
        if number == signal.SIGKILL:
            assert code == -number, (verb, moment, code)
        else:
            assert code in (0, 128 + number), (verb, moment, code)
            assert not list(folder.rglob(".classgap-*")), (verb, moment)
            assert resumable or found == before or found.keys() == case.new.keys(), (verb, moment)
        old = {name for name, content in found.items() if content == before.get(name)}
        assert resumable or old in (set(), set(found)), (verb, moment, old, set(found))  # never a mix of two results
        again = call(*case.words, *(["--resume"] if verb == "train" else []), folder=folder)
        assert again.code == 0, (verb, moment, again)
        if resumable:
            for name in ("model.safetensors", "."):
                assert name not in case.new or contents(place)[name] == case.new[name], (verb, moment)
        shutil.rmtree(folder)
    return len(moments)


SIGNALLED = [verb for verb in VERBS if verb != "new-method"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [verb for verb in ("audit", "probe", "train") if verb in VERBS], indirect=True)
def test_signals_at_some_writes(case: Case, tmp_path: Path) -> None:
    assert signals(case, tmp_path, 2) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SIGNALLED, indirect=True)
def test_signals_at_every_write(case: Case, tmp_path: Path) -> None:
    print(case.verb, signals(case, tmp_path, 1000), "signals")


# ---------------------------------------------------------------- real ones


def limited(size: int) -> Callable[[], None]:
    """Files of this process may not become larger; unlike a full disk this needs no rights."""

    def set_up() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return set_up


@pytest.mark.skipif(not TORCH, reason="needs torch")
@pytest.mark.parametrize("case", ["train", "features", "probe"], indirect=True)
def test_files_that_cannot_become_large_enough(case: Case, tmp_path: Path) -> None:
    place, before = case.begin(tmp_path / "here")
    command = [sys.executable, "-m", "classgap", *case.words]
    done = subprocess.run(
        command, cwd=tmp_path / "here", preexec_fn=limited(600), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "too large" in done.stderr, done.stderr
    assert case.verb == "train" or contents(place) == before
