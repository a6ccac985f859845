"""Workers: processes on this machine that share a list of jobs with each other and with workers on other machines."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from classgap.checks import InputError
from classgap.data.workers import default_workers, processor_cores
from classgap.suites.jobs import Job, JobFolder, job_key

_POLL_SECONDS = 0.5
_WAIT_SECONDS = 2.0  # between looks at jobs that other workers have, or that wait for them
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
    workers: int = 0,
    threads: int = 0,
    tell: Callable[[Event | None], None] = lambda event: None,
) -> dict[str, str]:
    """Run all jobs in worker processes and return the errors of those that could not be run, by key.

    Args:
        results: File that finished jobs are added to.
        workers: Worker processes; by default one per processor core, or a single one where there is a GPU.
        threads: For each worker; by default what ``OMP_NUM_THREADS`` says, else its share of the processors.
        tell: Called with every event, and with None about twice a second.
    """
    unique = list({job.key: job for job in jobs}.values())
    workers, threads = team_size(len(unique), workers, threads)
    context = multiprocessing.get_context("spawn")
    task = (unique, out, results, threads, default_workers(workers), uuid.uuid4().hex)
    team: list[_Worker] = []
    deaths, errors = 0, {}
    try:
        team += (_hire(context, task) for _ in range(workers))
        while team:
            # Before reading the pipes, so that their last messages are not lost.
            ended = [worker for worker in team if not worker.process.is_alive()]
            for event in _heard(team):
                tell(event)
                if event is not None and event.kind == "failed":
                    errors[event.key] = event.text
                if event is not None and event.kind == "done":
                    deaths = 0
            for worker in ended:
                team.remove(worker)
                worker.inbox.close()
                if worker.process.exitcode:
                    deaths += 1
                    if deaths >= _DEATHS_IN_A_ROW:
                        raise InputError(_died(worker.process.exitcode))
                    team.append(_hire(context, task))
    finally:
        for worker in team:
            worker.process.terminate()
        for worker in team:
            worker.process.join()
    return errors


def team_size(jobs: int, workers: int = 0, threads: int = 0) -> tuple[int, int]:
    """Workers and threads of each, where 0 stands for the default of :func:`run_jobs`."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads or (int(asked) if asked.isdecimal() else 0)
    if not workers:
        import torch

        workers = 1 if torch.cuda.is_available() else max(1, processor_cores() // max(1, threads))
    workers = max(1, min(workers, jobs))
    return workers, threads or max(1, processor_cores() // workers)


@dataclass(frozen=True)
class _Worker:
    """A process and the pipe of its messages. A worker killed while writing would block a pipe that several share."""

    process: Any
    inbox: Any


def _hire(context: Any, task: tuple[Any, ...]) -> _Worker:
    inbox, outbox = context.Pipe(duplex=False)
    # No daemon: it has processes of its own, which decode images. They end some seconds after it, however that ends.
    process = context.Process(target=work, args=(*task, outbox), daemon=False)
    process.start()
    outbox.close()  # so that the pipe ends with the process
    return _Worker(process, inbox)


def _heard(team: Sequence[_Worker]) -> list[Event | None]:
    """All new messages; after a short wait without any, None."""
    events: list[Event | None] = []
    ready: list[Any] = list(wait([worker.inbox for worker in team], timeout=_POLL_SECONDS))
    for inbox in ready:
        with contextlib.suppress(EOFError, OSError):  # the process has ended, perhaps in the middle of a message
            while inbox.poll():
                events.append(inbox.recv())
    return events or [None]


def _died(code: int) -> str:
    how = f"was killed by signal {-code}, perhaps for want of memory" if code < 0 else f"ended with code {code}"
    return (
        f"{_DEATHS_IN_A_ROW} workers in a row died without finishing a job; the last one {how}. Jobs go on from their "
        "checkpoints: try again with fewer --workers"
    )


def work(jobs: Sequence[Job], out: Path, results: Path, threads: int, decoders: int, session: str, events: Any) -> None:
    """Take the first free job until all are done; the main function of a worker process.

    Args:
        decoders: Its own processes that decode image files.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    # As in `classgap train`: a spawned decoder imports torch for seconds.
    multiprocessing.set_start_method(None, force=True)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # not a line on precision for every job
    import torch

    from classgap.suites.results import append_results
    from classgap.suites.work import run_job

    torch.set_num_threads(threads)
    first = {job.key: _begins_with(job) for job in jobs}

    def settled(job: Job) -> bool:
        folder = JobFolder(out, job)
        return folder.done.exists() or folder.failed(session) is not None

    def take(job: Job) -> bool:
        """Run the job if no other process has it."""
        folder = JobFolder(out, job)
        with folder.claimed() as mine:
            if not mine or folder.failed(session) is not None:
                return False
            try:
                result = run_job(job, folder, _reporter(job.key, events), workers=decoders)
            except Exception as error:
                text = str(error) if isinstance(error, InputError) else traceback.format_exc()
                folder.fail(text, session)
                events.send(Event("failed", job.key, text=text))
                return True
            append_results(results, [result])
            events.send(Event("done", job.key, share=1.0))
        return True

    while open_jobs := [job for job in jobs if not settled(job)]:
        keys = {job.key for job in open_jobs}
        if not any(take(job) for job in open_jobs if not first[job.key] & keys):
            time.sleep(_WAIT_SECONDS)
        _leave_if_orphan()


def _begins_with(job: Job) -> set[str]:
    """Keys of the jobs whose trained networks this job uses if they are in its suite: it waits for them."""
    from classgap.training.stages.base import shared_runs

    try:
        return {job_key(config) for config in shared_runs(job.config)}
    except InputError:  # the job itself will say so
        return set()


def _reporter(key: str, events: Any) -> Callable[[float], None]:
    told = 0.0

    def report(share: float) -> None:
        nonlocal told
        if time.monotonic() - told > 1:
            told = time.monotonic()
            _leave_if_orphan()  # first: a broken pipe would look like a failure of the job
            events.send(Event("running", key, share))

    return report


def _leave_if_orphan() -> None:
    """A worker whose parent was killed must not go on in secret."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)
