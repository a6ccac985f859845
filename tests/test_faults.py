"""A fault at every single write: full disk, read-only disk, SIGTERM and SIGKILL. Earlier results stay, and exit codes say why."""

from __future__ import annotations

import errno
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import fault_injection
from command_line import Done, call
from fault_injection import Faults, Remembered, children, fails

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


def everything(folder: Path) -> dict[str, bytes | None]:
    """All files and folders, also locks and what was left half-written."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def results(place: Path) -> dict[str, bytes]:
    """The files of a result, without what a killed process has left beside them."""
    found = contents(place) if place.exists() else {}
    return {name: content for name, content in found.items() if ".classgap-" not in name}


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
    remembered: Remembered

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
    remembered = Remembered()
    with faults.active(), remembered.active():
        assert call(*words, folder=whole).code == 0
    shutil.copytree(inputs if verb in ("train", "new-method") else whole, folder)
    place = folder / written
    for path in ([place] if place.is_file() else sorted(place.rglob("*"))) if place.exists() else ():
        if path.is_file():
            path.write_bytes(b"earlier " + path.read_bytes()[:20])
    return Case(verb, words, written, folder, faults.count, contents(whole / written), remembered)


def check_refused(done: Done, verb: str, moment: int) -> None:
    assert done.code == 2, (verb, moment, done)
    assert "space" in done.sentence or "ead-only" in done.sentence, (verb, moment, done)


def disk_faults(case: Case, tmp_path: Path, most: int) -> int:
    """Let writes fail one after the other; the number of faults that were tried."""
    moments, verb = chosen(case.writes, most), case.verb
    for moment in moments:
        number, folder = (errno.ENOSPC, errno.EROFS)[moment % 4 == 0], tmp_path / str(moment)
        place, before = case.begin(folder)
        with case.remembered.active(), Faults(fails(number), moment).active():
            done = call(*case.words, folder=folder)
        if done.code == 0:  # a note or a flush that is not needed
            assert contents(place).keys() == case.new.keys(), (verb, moment)
        else:
            check_refused(done, verb, moment)
            found = contents(place) if place.exists() else {}
            if verb != "train" and found != before:  # only the flush of the folder, after the last rename, has failed
                assert moment == case.writes - 1 or verb == "features", (verb, moment)
                assert found.keys() == case.new.keys(), (verb, moment)
                assert not [name for name in found if found[name] == before.get(name)], (verb, moment)
            assert not list(folder.rglob(".classgap-*")), (verb, moment)
        if verb == "train":
            again_as_new(case, (number, moment), folder)
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


def signals(case: Case, tmp_path: Path, most: int) -> int:
    """End the process at writes, one after the other, with SIGKILL and with SIGTERM; the number of signals."""
    moments = [(moment, number) for moment in chosen(case.writes, most) for number in (signal.SIGKILL, signal.SIGTERM)]
    packages = fault_injection.MEASURING if case.verb in MEASURING else fault_injection.TRAINING
    begun = everything(case.folder)
    with children(case.remembered, packages, tmp_path) as in_a_child:
        for moment, number in moments:
            folder = tmp_path / f"{moment} {number.name}"
            place, before = case.begin(folder)
            code = in_a_child(case.words, folder, number, moment)
            check_signalled(case, (number, moment, code), place, before)
            if everything(folder) != begun:  # otherwise it would be the first call once more
                again_as_new(case, (number, moment), folder)
            shutil.rmtree(folder)
    return len(moments)


def check_signalled(case: Case, ended: tuple[signal.Signals, int, int], place: Path, before: dict[str, bytes]) -> None:
    """The exit code says what happened, and the earlier result or the new one is there, never a mix."""
    number, _, code = ended
    found = results(place)
    resumable = case.verb in ("train", "features")
    if number == signal.SIGKILL:
        assert code == -number, (case.verb, ended)
    else:
        assert code in (0, 128 + number), (case.verb, ended)
        assert not list(place.parent.rglob(".classgap-*")), (case.verb, ended)
        assert resumable or found == before or found.keys() == case.new.keys(), (case.verb, ended)
    old = {name for name, content in found.items() if content == before.get(name)}
    assert resumable or old in (set(), set(found)), (case.verb, ended, old, set(found))


def without_place(content: bytes) -> bytes:
    """The bytes of a file without the hash of the folder and the times of its inputs, which a file of features has."""
    return re.sub(rb"(fingerprint.{6})[0-9a-f]{16}", rb"\1", content)


def again_as_new(case: Case, fault: tuple[object, ...], folder: Path) -> None:
    """After a fault the same call gives what it would have given without it."""
    with case.remembered.active():
        again = call(*case.words, *(["--resume"] if case.verb == "train" else []), folder=folder)
    assert again.code == 0, (case.verb, fault, again)
    found = results(folder / case.written)
    assert found.keys() == case.new.keys(), (case.verb, fault)
    for name in ("model.safetensors", ".") if case.verb in ("train", "features") else ():
        assert name not in case.new or without_place(found[name]) == without_place(case.new[name]), (case.verb, fault)


SIGNALLED = [verb for verb in VERBS if verb != "new-method"]


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
@pytest.mark.slow
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
