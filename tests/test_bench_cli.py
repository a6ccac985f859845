"""``classgap bench``: resumable, interruptible, and clear about what is missing."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench_suite import SUITE_FILE
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.cli.bench_progress import BenchProgress
from classgap.suites import append_results
from classgap.suites.jobs import Job, JobFolder
from classgap.suites.pool import Event
from classgap.suites.results import archive_results
from classgap.training import TrainConfig
from waiting import SECONDS, started, wait_until

CLI = [sys.executable, "-m", "classgap", "bench"]


def _cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_command_line(done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed results count as done, whatever became of the job folders."""
    suite, _, results = done
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent(SUITE_FILE).replace('"model=mlp-16"', '"model=mlp-16", "checkpoint_steps=2"')
    (tmp_path / "mine.py").write_text(text)
    nothing = _cli("mine.py", "--tables-only")
    assert "no results of mine to show" in str(nothing.exception)
    append_results(tmp_path / "mine.jsonl", [results[job.key] for job in suite.jobs(only=["*/erm"])])
    committed = (tmp_path / "mine.jsonl").read_bytes()
    listed = _cli("mine.py", "--list")
    assert [line.split()[1] for line in listed.stdout.splitlines()] == ["done", "open", "done", "open"]
    again = _cli("mine.py", "--only", "*/erm", "--format", "tex")
    assert again.exit_code == 0
    assert "all 2 jobs of mine are done" in again.stderr
    assert r"\begin{tabular}" in again.stdout
    assert (tmp_path / "mine.jsonl").read_bytes() == committed
    assert not (tmp_path / "runs").exists()
    archive_results(tmp_path / "mine.jsonl")
    assert _cli("mine.py", "--list").stdout == listed.stdout
    assert _cli("mine.py", "--only", "*/erm", "--format", "tex").stdout == again.stdout
    assert not (tmp_path / "mine.jsonl").exists()
    wrong = _cli("mine.py", "--rule", "best")
    assert isinstance(wrong.exception, InputError)
    assert "value for --rule" in str(wrong.exception)


def test_remaining_time_follows_this_machine_and_the_epochs(done: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known results may be from a slower machine: they count only until a job of the task is done in this call."""
    _, _, results = done
    slow = [dataclasses.replace(result, seconds=3600.0) for result in results.values()]
    jobs = {
        name: Job("tiny", "digits", name, 0, TrainConfig(epochs=epochs))
        for name, epochs in (("a", 2), ("b", 2), ("c", 20))
    }
    monkeypatch.setattr("classgap.cli.bench_progress.time.monotonic", iter([0.0, 10.0]).__next__)
    assert BenchProgress(Console(), jobs, [], workers=1).time_left() == ""
    progress = BenchProgress(Console(), jobs, slow, workers=2)
    assert progress.time_left() == "6.0 h left"
    progress.tell(Event("running", "a"))
    progress.tell(Event("done", "a", 1.0))
    assert progress.time_left() == "55 s left"


def test_a_run_that_two_tasks_ask_for_counts_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
    from classgap.suites import Suite, Task, Variant
    from classgap.training import TrainConfig
    def suite():
        tasks = tuple(Task(f"{n} epochs", TrainConfig(epochs=n)) for n in (1, 3))
        return Suite("mine", tasks, (Variant("plain"), Variant("longer", settings=("epochs=3",), tasks=("1 epochs",))))
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(text))
    listed = _cli("mine.py", "--list", "--seeds", "0")
    keys = [line.split()[0] for line in listed.stdout.splitlines()]
    assert len(keys) == 3
    assert len(set(keys)) == 2
    assert "0 of 3 jobs done" in listed.stderr


def test_missing_data_are_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path))
    text = textwrap.dedent(SUITE_FILE).replace('"data.per_class=13"', '"data=npz:absent.npz"')
    (tmp_path / "mine.py").write_text(text)
    run = _cli("mine.py")
    assert isinstance(run.exception, InputError)
    assert "needs absent.npz" in str(run.exception)
    assert "CLASSGAP_DATA" in str(run.exception)
    assert not (tmp_path / "runs").exists()


def test_archives_are_found_by_name_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from classgap.data import load_source

    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.normal(size=(8, 3)), "x_test": rng.normal(size=(4, 3))}
    np.savez(tmp_path / "there.npz", y_train=np.arange(8) % 2, y_test=np.arange(4) % 2, **arrays)
    monkeypatch.setenv("CLASSGAP_DATA", str(tmp_path))
    assert load_source("npz:there.npz").in_shape == (3,)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupting_leaves_no_process_and_loses_nothing(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SUITE_FILE).replace("epochs=2", "epochs=30000"))
    with started(
        [*CLI, "mine.py", "--workers", "1"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as run:
        wait_until(lambda: list(tmp_path.glob("runs/bench/mine/jobs/*/checkpoint.pt")), run)
        run.send_signal(how)
        _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 130, errors
    assert "the same command continues" in errors
    assert "Traceback" not in errors
    (folder,) = (tmp_path / "runs/bench/mine/jobs").iterdir()
    config = TrainConfig.from_dict(json.loads((folder / "run.json").read_text())["config"])
    job = Job("mine", "digits", "erm", 0, config)
    with JobFolder(tmp_path / "runs/bench/mine", job).claimed() as mine:
        assert mine  # nobody holds it any more
