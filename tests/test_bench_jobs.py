"""Jobs of the bench: they survive crashes and are never run twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from bench_suite import EPOCHS, same, tiny
from classgap.suites import Task, Variant, append_results, pool, read_results
from classgap.suites.jobs import JobFolder
from classgap.suites.pool import Event, _heard, _hire, _Worker, run_jobs, team_size, work
from classgap.suites.results import collect_done
from classgap.suites.tables import suite_tables
from classgap.suites.work import run_job
from classgap.training.epoch import read_log


class Crash(Exception):
    pass


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])  # in mid-epoch, at the end of one, after the last
def test_a_job_cut_off_becomes_what_it_would_have_been(done: Any, tmp_path: Path, share: float) -> None:
    suite, _, results = done
    job = suite.jobs()[2]
    folder = JobFolder(tmp_path, job)

    def crash(now: float) -> None:
        if now >= share:
            raise Crash

    with pytest.raises(Crash), folder.claimed():
        run_job(job, folder, crash)
    assert not folder.done.exists()
    with folder.claimed() as mine:
        assert mine  # the lock went with the crash
        again = run_job(job, folder)
    assert same(again, results[job.key])
    assert len(read_log(folder.path / "log.jsonl")) == EPOCHS


def test_a_job_belongs_to_one_worker(done: Any, tmp_path: Path) -> None:
    suite, out, _ = done
    job = suite.jobs()[0]
    with JobFolder(tmp_path, job).claimed() as first, JobFolder(tmp_path, job).claimed() as second:
        assert first
        assert not second
    with JobFolder(out, job).claimed() as mine:
        assert not mine  # done


def test_workers_share_jobs_and_one_that_is_killed_is_replaced(
    done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, _, results = done
    events: list[Event] = []
    hired: list[Any] = []
    hire = pool._hire
    monkeypatch.setattr(pool, "_hire", lambda *arguments: hired.append(hire(*arguments)) or hired[-1])

    def tell(event: Event | None) -> None:
        if event is not None:
            if event.kind == "running" and not any(e.kind == "running" for e in events):
                hired[0].process.kill()
            events.append(event)

    path = tmp_path / "results.jsonl"
    errors = run_jobs(suite.jobs(), tmp_path, results=path, workers=2, threads=1, tell=tell)
    assert errors == {}
    assert len(hired) == 3
    told = [e.key for e in events if e.kind == "done"]
    assert len(set(told)) == len(told)  # none was run twice
    append_results(path, collect_done(suite.jobs(), tmp_path))  # the first worker may have died just before it did so
    found = read_results([path])
    assert all(same(found[key], result) for key, result in results.items())


def test_a_worker_killed_while_writing_does_not_silence_the_others() -> None:
    (cut, cut_off), (heard, speaks) = (multiprocessing.Pipe(duplex=False) for _ in range(2))
    os.write(cut_off.fileno(), b"\0\0\0\xff half")  # announces 255 bytes
    cut_off.close()
    speaks.send(Event("done", "a"))
    speaks.send(Event("done", "b"))
    team = [_Worker(None, cut), _Worker(None, heard)]
    assert [event.key for event in _heard(team) if event is not None] == ["a", "b"]
    assert _heard([_Worker(None, heard)]) == [None]


def test_a_worker_may_have_processes_of_its_own() -> None:
    """They decode images; a daemon may have none."""
    context = MagicMock()
    context.Pipe.return_value = MagicMock(), MagicMock()
    _hire(context, ())
    assert context.Process.call_args.kwargs["daemon"] is False


def test_processes_of_a_worker_start_as_those_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned worker spawned its own processes too: each of them imported torch, for every part of the data."""
    monkeypatch.setattr(signal, "signal", MagicMock())  # a worker ignores Ctrl-C
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)  # as in a spawned worker
    try:
        work([], tmp_path, tmp_path / "results.jsonl", torch.get_num_threads(), 0, "session", MagicMock())
        assert multiprocessing.get_start_method() == usual
    finally:
        multiprocessing.set_start_method(None, force=True)


def test_a_job_that_cannot_be_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process wants its Ctrl-C
    base = tiny().tasks[0].config
    suite = tiny(
        tasks=(Task("missing", base.override(["data=npz:nowhere.npz"])), Task("digits", base)),
        variants=(Variant("erm"),),
        seeds=(0,),
    )
    inbox, outbox = multiprocessing.Pipe(duplex=False)
    work(suite.jobs(), tmp_path, tmp_path / "r.jsonl", 1, 0, "this session", outbox)
    events = []
    while inbox.poll():
        events.append(inbox.recv())
    missing, digits = suite.jobs()
    told = [event for event in events if event.kind != "running"]
    assert [(event.kind, event.key) for event in told] == [("failed", missing.key), ("done", digits.key)]
    assert "no file or folder nowhere.npz" in told[0].text
    assert set(read_results([tmp_path / "r.jsonl"])) == {digits.key}
    assert JobFolder(tmp_path, missing).failed("another session") is None  # which will try again


def test_a_diverging_run_is_a_result(tmp_path: Path) -> None:
    suite = tiny(variants=(Variant("erm"), Variant("wild", settings=("optim.lr=1e30",))), seeds=(0,))
    for job in suite.jobs():
        run_job(job, JobFolder(tmp_path, job))
    results = {result.key: result for result in collect_done(suite.jobs(), tmp_path)}
    wild = results[suite.jobs()[1].key]
    assert "not finite in epoch" in wild.diverged
    assert wild.candidates == ()
    table = suite_tables(suite, results)[0].accuracy
    assert table.rows[1][:3] == ("wild", "0 + 1 diverged", "–")


def test_a_job_waits_for_the_runs_that_it_begins_with(tmp_path: Path) -> None:
    """Otherwise a second worker, or a staged job that came first, would train the plain run once more."""
    dial, views = ("stage=gap_dial", "stage.strength=1", "stage.ridge=1"), ("predict.augment=flip",)
    two = ("stage=ensemble", "stage.members=2", "stage.seed_step=1000")
    taught = ("stage=ensemble_teacher", "stage.members=2", "stage.seed_step=1000")
    variants = (
        Variant("dial", settings=dial),
        Variant("views", settings=views),
        Variant("two", settings=two),
        Variant("taught", "distillation", settings=taught),
        Variant("plain"),
        Variant("re-run", seed_shift=1000),
        Variant("wrong", settings=two, seed_shift=2**32 - 4),  # no room for the seed of a second member
    )
    jobs = tiny(variants=variants, seeds=(3, 1)).jobs()
    told: list[Event | None] = []
    errors = run_jobs(jobs, tmp_path, results=tmp_path / "results.jsonl", workers=2, threads=1, tell=told.append)
    names = {job.key: (job.variant, job.seed) for job in jobs}
    assert {names[key] for key in errors} == {("wrong", 3), ("wrong", 1)}
    done = [names[event.key] for event in told if event is not None and event.kind == "done"]
    for seed in (3, 1):
        assert done.index(("plain", seed)) < min(
            done.index((name, seed)) for name in ("dial", "views", "two", "taught")
        )
        assert done.index(("re-run", seed)) < min(done.index((name, seed)) for name in ("two", "taught"))
    assert len(done) == 12
    assert not (tmp_path / "shared").exists()  # nothing was trained twice


def test_workers_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker per core with one thread each; OMP_NUM_THREADS counts; few jobs share all cores."""
    monkeypatch.setattr("classgap.suites.pool.processor_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert team_size(20) == (8, 1)
    assert team_size(2) == (2, 4)
    assert team_size(20, workers=2) == (2, 4)
    assert team_size(20, workers=2, threads=3) == (2, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert team_size(20) == (2, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert team_size(20, workers=1) == (1, 1)
