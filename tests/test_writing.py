"""Files are written completely or not at all: full disks, read-only folders, kills and links."""

from __future__ import annotations

import ast
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classgap
from classgap import audit, posthoc, writing
from classgap.checks import InputError
from classgap.measure.render.folder import write_report
from classgap.measure.render.plain import records
from classgap.predictions.export import csv_text, write_table
from classgap.writing import append_line, check_folder, replacing, replacing_entries, write
from command_line import call
from reports import FORMULAS, formula_report, run_as_formulas

SOURCE = Path(classgap.__file__).parent
GOOD = "y_true,y_pred\n" + "a,a\nb,b\nb,a\nc,c\n" * 5
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from classgap.cli import main
main()
"""


def run(folder: Path, *arguments: str, limit: int | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    start = ["-m", "classgap"] if limit is None else ["-c", LIMITED, str(limit)]
    command = [sys.executable, *start, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


# ---------------------------------------------------------------- one file


def _half_a_file(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def _entries(folder: Path, names: Sequence[str], then: Exception | None = None) -> None:
    with replacing_entries(folder, ("a", "b", "c")) as new:
        for name in names:
            write(new / name, "new")
            assert (folder / name).read_text() == "old"
        if then is not None:
            raise then


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError):
        _half_a_file(tmp_path / "a.txt")
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_a_full_disk_keeps_the_old_file_and_names_it(small_disk: Path) -> None:
    write(small_disk / "a.bin", b"old")
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.bin'"):
        write(small_disk / "a.bin", bytes(1 << 20))
    with pytest.raises(OSError, match="No space left"):
        write_table({"a": ["x" * 1000] * 1000}, small_disk / "a.csv")
    assert contents(small_disk) == {"a.bin": b"old"}


def test_links_permissions_and_devices_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "old")
    (tmp_path / "a.txt").chmod(0o640)
    (tmp_path / "link.txt").symlink_to("a.txt")
    write(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
    write(os.devnull, "text")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    with pytest.raises(IsADirectoryError):
        write(tmp_path, "text")


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    write(tmp_path / ("a" * 251 + ".txt"), "text")
    with pytest.raises(OSError, match="too long"):
        write(tmp_path / ("a" * 300), "text")


def test_a_lone_surrogate_is_written_as_an_escape_sequence(tmp_path: Path) -> None:
    assert write(tmp_path / "a.txt", "a\udc80").read_bytes() == rb"a\udc80"


def test_only_one_module_writes_files() -> None:
    """Everything else calls it, so every file is complete or absent."""
    forbidden = {"write_text", "write_bytes", "save_file", "savez", "savez_compressed", "replace_with", "mkstemp"}
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.name == "writing.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                function = node.func
                modes = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                opened = function.attr == "open" and any(set(mode) & set("wax") and len(mode) < 4 for mode in modes)
                # Into a temporary file; with a lock; into a new folder that is removed if it is not complete.
                allowed = path.name in ("export.py", "checkpoint.py", "results.py", "stand_ins.py")
                if (function.attr in forbidden or opened) and not allowed:
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {function.attr}")
    assert not found


# ---------------------------------------------------------------- several files


def test_entries_are_exchanged_together(tmp_path: Path) -> None:
    old = {"a": b"old", "b": b"old", "mine": b"mine"}
    for name, content in old.items():
        write(tmp_path / name, content)
    with pytest.raises(RuntimeError):
        _entries(tmp_path, "a", RuntimeError())
    assert contents(tmp_path) == old
    _entries(tmp_path, "a")
    assert contents(tmp_path) == {"a": b"new", "mine": b"mine"}  # the old b is no longer true


def test_an_error_during_the_exchange_restores_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write(tmp_path / name, "old")
    rename, calls = os.rename, []

    def fails(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 5:
            raise OSError(28, "No space left on device", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="No space left"):
        _entries(tmp_path, "abc")
    assert contents(tmp_path) == dict.fromkeys("abc", b"old")


@pytest.mark.parametrize("moment", range(5))
def test_a_signal_after_a_rename_restores_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """The handler of a signal runs when the call has done its work: the file of that call was removed."""
    for name in "abc":
        write(tmp_path / name, "old")
    rename, calls = os.rename, []

    def interrupted(source: Path, target: Path) -> None:
        rename(source, target)
        calls.append(source)
        if len(calls) == moment + 1:
            raise SystemExit(143)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(SystemExit):
        _entries(tmp_path, "ab")
    assert contents(tmp_path) == dict.fromkeys("abc", b"old")


@pytest.mark.parametrize("name", ["new", "old"])
def test_a_folder_that_cannot_be_made_leaves_nothing_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in "abc":
        write(tmp_path / entry, "old")
    make = Path.mkdir

    def fails(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == name:
            raise OSError(28, "No space left on device", str(path))
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(OSError, match="No space left"):
        _entries(tmp_path, "abc")
    assert sorted(path.name for path in tmp_path.iterdir()) == list("abc")
    assert contents(tmp_path) == dict.fromkeys("abc", b"old")


def test_an_error_of_the_last_flush_leaves_the_new_result_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in "abc":
        write(tmp_path / entry, "old")
    flush = writing._flush

    def fails(path: Path) -> None:
        if path == tmp_path:
            raise OSError(28, "No space left on device", str(path))
        flush(path)

    monkeypatch.setattr(writing, "_flush", fails)
    with pytest.raises(OSError, match="No space left"):
        _entries(tmp_path, "abc")
    assert sorted(path.name for path in tmp_path.iterdir()) == list("abc")
    assert contents(tmp_path) == dict.fromkeys("abc", b"new")


def test_what_cannot_be_put_back_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write(tmp_path / name, "old")
    rename, calls = os.rename, []

    def fails(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) > 3:
            raise OSError(5, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="Input/output"):
        _entries(tmp_path, "abc")
    assert sorted(contents(tmp_path).values()) == [b"old"] * 3


KILLED = """
import os, sys
from classgap.writing import replacing_entries, write
count, rename = 0, os.rename
def dies(*paths):
    global count
    count += 1
    if count > int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    rename(*paths)
with replacing_entries(sys.argv[1], ("a", "b", "c")) as new:
    for name in "abc":
        write(new / name, "new")
    os.rename = dies
"""


@pytest.mark.parametrize("moment", range(7))
def test_a_kill_during_the_exchange_never_mixes_two_results(tmp_path: Path, moment: int) -> None:
    for name in "abc":
        write(tmp_path / name, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(moment)], check=False)
    assert done.returncode == (-signal.SIGKILL if moment < 6 else 0)
    found = {name: content for name, content in contents(tmp_path).items() if "/" not in name}
    assert len(set(found.values())) <= 1, found
    assert "c" not in found or len(found) == 3, found  # the last name is there only with all the others


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "file", "text")
    with pytest.raises(InputError, match="file is a file"):
        check_folder(tmp_path / "file" / "below")
    check_folder(tmp_path / "new" / "below")
    assert not (tmp_path / "new").exists()


def test_lines_are_appended(tmp_path: Path) -> None:
    append_line(tmp_path / "log", "one")
    append_line(tmp_path / "log", "two")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


# ---------------------------------------------------------------- the command line


def test_half_a_report_is_never_left(tmp_path: Path) -> None:
    """The limit lets the small files through and stops the page: the disk is full in the middle of a report."""
    (tmp_path / "p.csv").write_text(GOOD)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("old")
    before = contents(tmp_path)
    done = run(tmp_path, "audit", "p.csv", "--out", "report", limit=200_000)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "File too large" in done.stderr
    assert contents(tmp_path) == before


def test_a_read_only_folder_is_one_sentence(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert "is read-only" in call("audit", tmp_path / "p.csv", "--out", small_disk / "report").sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "p.csv", "--out", "p.csv"], "p.csv is a file"),
        (["audit", "p.csv", "--out", "p.csv/below"], "p.csv is a file"),
        (["audit", "p.csv", "--out", "x" * 300], "File name too long"),
        (["compare", "p.csv", "p.csv", "--out", "p.csv"], "p.csv is a file"),
        (["fix", "p.csv", "--out", "p.csv"], "p.csv is a file"),
        (["train", "--quick", "--out", "p.csv"], "p.csv is a file"),
        (["bench", "smoke", "--out", "p.csv"], "p.csv is a file"),
        (["bench", "smoke", "--out", "new", "--results", "."], "is a folder"),
        (["predict", "run", "digits", "--out", "p.csv/x.npz"], "p.csv is a file"),
    ],
)  # fmt: skip
def test_output_that_cannot_be_written_is_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    assert words in call(*arguments, folder=tmp_path).sentence
    assert (tmp_path / "p.csv").read_text() == GOOD


def test_closed_and_ascii_output(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD.replace("a", "é"))
    for arguments, code in (("audit p.csv --json >&- 2>&-", 0), ("audit none.csv >&- 2>&-", 2), ("audit p.csv", 0)):
        command = f"PYTHONIOENCODING=ascii {sys.executable} -m classgap {arguments}"
        assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_a_name_of_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    for name in ("p\udc80\x1b[31m.csv", "none\udc80\x1b[31m.npz"):
        if name.endswith("csv"):
            (tmp_path / name).write_text(GOOD)
        done = call("audit", tmp_path / name)
        assert r"\udc80\x1b" in done.sentence
        assert "\x1b" not in done.sentence


# ---------------------------------------------------------------- exports


def test_formulas_are_text_in_exported_tables(tmp_path: Path) -> None:
    names = ["=cmd|'/C calc'!A0", "@x", "+1 button", "-12", "plain"]
    write_table({"name": names}, tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()[1:]
    assert lines == ["'=cmd|'/C calc'!A0", "'@x", "'+1 button", "-12", "plain"]
    report = audit(["=a", "b"], ["=a", "b"])
    write_table({"y_true": ["=a", "b"], "y_pred": ["=a", "b"]}, tmp_path / "p.csv")
    assert audit(tmp_path / "p.csv").classes == report.classes  # read back without the apostrophe


def test_no_exported_table_holds_a_formula(tmp_path: Path) -> None:
    """Class names, ids, texts, slices, and the names of columns too."""
    report = formula_report()
    write_report(report, tmp_path / "report")
    write_table({name: [name] for name in FORMULAS}, tmp_path / "header.csv")
    tables = [path.read_bytes().decode() for path in tmp_path.rglob("*.csv")]
    assert len(tables) == 3
    for text in [*tables, csv_text(records(report.per_class))]:
        assert "cmd|" in text
        assert run_as_formulas(text) == []


def test_names_are_no_links_in_markdown() -> None:
    names = ["![x](https://example.org/pixel.png)", "[b][c]", "<b>"]
    text = audit(names * 2, [names[0]] * 6).to_markdown()
    assert "](" not in text.replace(r"\](", "")
    assert "][" not in text.replace(r"\][", "")
    assert "<b>" not in text


def test_a_method_is_saved_completely_or_not(tmp_path: Path) -> None:
    y = np.arange(30) % 3
    method = posthoc.LogitAdjustment().fit(np.eye(3)[y], y, class_counts=[10, 20, 30])
    posthoc.save(method, tmp_path)
    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            posthoc.save(method, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert contents(tmp_path) == before
