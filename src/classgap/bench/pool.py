"""Workers: processes on this machine that share a list of jobs with each other and with workers on other machines."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgap._checks import InputError
from classgap.bench.jobs import Job, JobFolder

_POLL_SECONDS = 0.5
_WAIT_SECONDS = 2.0  # between looks at jobs that other workers hold
_DEATHS_IN_A_ROW = 3  # of worker processes, with no job finished in between


@dataclass(frozen=True)
class Event:
    """Something a worker tells: a job of which ``share`` is trained, is done, or failed with ``text``."""

    kind: Literal["running", "done", "failed"]
    key: str
    share: float = 0.0
    text: str = ""


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    results: Path,
    workers: int = 1,
    threads: int = 0,
    tell: Callable[[Event | None], None] = lambda event: None,
) -> dict[str, str]:
    """Run all jobs in worker processes and return the errors of those that could not be run, by key.

    Args:
        results: File that finished jobs are added to.
        threads: For each worker; by default its share of the processors.
        tell: Called with every event, and with None about twice a second.
    """
    unique = list({job.key: job for job in jobs}.values())
    workers = min(workers, len(unique))
    threads = threads or max(1, (os.cpu_count() or 1) // max(workers, 1))
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    task = (unique, out, results, threads, uuid.uuid4().hex, events)
    team = [_hire(context, task) for _ in range(workers)]
    deaths, errors = 0, {}
    try:
        while team:
            event = _next(events)
            tell(event)
            if event is not None and event.kind == "failed":
                errors[event.key] = event.text
            if event is not None and event.kind == "done":
                deaths = 0
            for ended in [process for process in team if not process.is_alive()]:
                team.remove(ended)
                if ended.exitcode:
                    deaths += 1
                    if deaths >= _DEATHS_IN_A_ROW:
                        raise InputError(_died(ended.exitcode))
                    team.append(_hire(context, task))
        while (event := _next(events, wait=False)) is not None:
            tell(event)
            if event.kind == "failed":
                errors[event.key] = event.text
    finally:
        for process in team:
            process.terminate()
        for process in team:
            process.join()
    return errors


def _hire(context: Any, task: tuple[Any, ...]) -> Any:
    process = context.Process(target=work, args=task, daemon=True)
    process.start()
    return process


def _next(events: Any, *, wait: bool = True) -> Event | None:
    try:
        return events.get(timeout=_POLL_SECONDS if wait else 0.1)  # type: ignore[no-any-return]
    except queue.Empty:
        return None


def _died(code: int) -> str:
    how = f"was killed by signal {-code}, perhaps for want of memory" if code < 0 else f"ended with code {code}"
    return (
        f"{_DEATHS_IN_A_ROW} workers in a row died without finishing a job; the last one {how}. Jobs go on from their "
        "checkpoints: try again with fewer --workers"
    )


def work(jobs: Sequence[Job], out: Path, results: Path, threads: int, session: str, events: Any) -> None:
    """Take one free job after the other until all are done; the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # not a line on precision for every job
    import torch

    from classgap.bench.results import append_results
    from classgap.bench.work import run_job

    torch.set_num_threads(threads)
    open_jobs = list(jobs)
    while open_jobs:
        left = []
        for job in open_jobs:
            folder = JobFolder(out, job)
            if folder.done.exists() or folder.failed(session) is not None:
                continue
            with folder.claimed() as mine:
                if not mine or folder.failed(session) is not None:
                    left.append(job)
                    continue
                try:
                    result = run_job(job, folder, _reporter(job.key, events))
                except Exception as error:
                    text = str(error) if isinstance(error, InputError) else traceback.format_exc()
                    folder.fail(text, session)
                    events.put(Event("failed", job.key, text=text))
                    continue
                append_results(results, [result])
                events.put(Event("done", job.key, share=1.0))
        if len(left) == len(open_jobs):
            time.sleep(_WAIT_SECONDS)
        _leave_if_orphan()
        open_jobs = left


def _reporter(key: str, events: Any) -> Callable[[float], None]:
    told = 0.0

    def report(share: float) -> None:
        nonlocal told
        if time.monotonic() - told > 1:
            told = time.monotonic()
            events.put(Event("running", key, share))
            _leave_if_orphan()

    return report


def _leave_if_orphan() -> None:
    """A worker whose parent was killed must not go on in secret."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)
