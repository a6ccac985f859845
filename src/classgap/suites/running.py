"""Running a suite: which jobs are left, the workers that run them, and the tables of what is there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from classgap.checks import InputError, one_of
from classgap.suites.jobs import Job
from classgap.suites.pool import Event, run_jobs
from classgap.suites.published import published_tables
from classgap.suites.render import Table
from classgap.suites.results import Result, append_results, collect_done, read_results
from classgap.suites.select import RULES
from classgap.suites.suite import Suite, load_suite
from classgap.suites.tables import TaskTables, suite_tables
from classgap.writing import check_folder


@dataclass(frozen=True, eq=False)
class BenchReport:
    """What is known of a suite. Made by :func:`classgap.bench`.

    Attributes:
        jobs: The jobs asked for.
        results: Results by the key of their job; also those of other jobs in the same files.
        failed: Jobs that could not be run, by name, with the error.
    """

    suite: Suite
    jobs: Sequence[Job]
    results: Mapping[str, Result]
    failed: Mapping[str, str] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    only: Sequence[str] = ()

    @property
    def missing(self) -> list[Job]:
        """Jobs without a result."""
        return [job for job in self.jobs if job.key not in self.results]

    def tables(self, rule: str = "last") -> list[TaskTables]:
        """Accuracies and paired differences to the reference, a pair of tables per task."""
        chosen = RULES[one_of("rule", rule, RULES)]
        return suite_tables(self.suite, self.results, rule=chosen, seeds=self.seeds, only=self.only)

    def published(self, rule: str = "last") -> list[Table]:
        """Published numbers beside those measured here."""
        chosen = RULES[one_of("rule", rule, RULES)]
        return published_tables(self.suite, self.results, rule=chosen, seeds=self.seeds, only=self.only)

    def to_markdown(self, rule: str = "last") -> str:
        """All tables in Markdown."""
        tables = [t for task in self.tables(rule) for t in (task.accuracy, task.differences) if t.rows]
        return "\n\n".join(table.render("md") for table in (*tables, *self.published(rule)))


@dataclass(frozen=True, eq=False)
class Plan:
    """A suite with the place of its jobs and results. Made by :func:`plan`."""

    suite: Suite
    jobs: Sequence[Job]
    folder: Path
    results: Sequence[Path]
    seeds: Sequence[int] | None
    only: Sequence[str]

    def report(self, failed: Mapping[str, str] | None = None) -> BenchReport:
        """What the result files hold."""
        return BenchReport(self.suite, self.jobs, read_results(self.results), failed or {}, self.seeds, self.only)

    def collect(self) -> None:
        """Append what this or other machines have finished to the first result file."""
        append_results(self.results[0], collect_done(self.jobs, self.folder))

    def run(
        self,
        jobs: Sequence[Job],
        *,
        workers: int = 0,
        threads: int = 0,
        tell: Callable[[Event | None], None] | None = None,
    ) -> dict[str, str]:
        """Run these jobs and collect their results; returns those that could not be run, by name, with the error."""
        self.find_data(jobs)
        # A batch system's request to end is like Ctrl-C: workers must not outlive this process.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            errors = run_jobs(
                jobs, self.folder, results=self.results[0], workers=workers, threads=threads, tell=tell or _silent
            )
        finally:
            signal.signal(signal.SIGTERM, before)
        self.collect()
        names = {job.key: job.name for job in jobs}
        return {names[key]: error for key, error in errors.items()}

    def find_data(self, jobs: Sequence[Job]) -> None:
        """Let workers find the suite's archives, and say at once if one is missing."""
        if self.suite.data is not None:
            os.environ.setdefault("CLASSGAP_DATA", str(self.suite.data))
        from classgap.data import data_root

        for name in sorted({job.config.data.name for job in jobs}):
            kind, _, path = name.partition(":")
            if kind == "npz" and not any((place / path).is_file() for place in (Path(), data_root())):
                raise InputError(
                    f"suite {self.suite.name} needs {path}, which is not in {data_root()}; set CLASSGAP_DATA to the folder "
                    "that has it (tables of committed results need no data: --tables-only)"
                )


def _silent(event: Event | None) -> None:
    """Nobody asked for progress."""


def plan(
    suite: Suite | str | Path,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    settings: Sequence[str] = (),
    quick: bool = False,
    out: Path | str | None = None,
    results: Sequence[Path | str] = (),
) -> Plan:
    """The jobs of a suite and the place of their results; arguments as of :func:`bench`."""
    chosen = suite if isinstance(suite, Suite) else load_suite(str(suite))
    chosen = (chosen.quickened() if quick else chosen).with_settings(settings)
    folder = Path("runs") / "bench" / chosen.name if out is None else Path(out)
    check_folder(folder)
    beside = not isinstance(suite, Suite) and Path(suite).is_file() and not quick
    files = [Path(file) for file in results] or [
        Path(str(suite)).with_suffix(".jsonl") if beside else folder / "results.jsonl"
    ]
    return Plan(chosen, chosen.jobs(seeds, only), folder, files, seeds, only)


def bench(
    suite: Suite | str | Path,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    settings: Sequence[str] = (),
    quick: bool = False,
    workers: int = 0,
    threads: int = 0,
    out: Path | str | None = None,
    results: Sequence[Path | str] = (),
    tell: Callable[[Event | None], None] | None = None,
) -> BenchReport:
    """Run methods × tasks × seeds under one protocol; finished jobs are not repeated, others continue from their checkpoint.

    Args:
        suite: A suite, a Python file with ``suite() -> Suite``, ``"smoke"``, the tables of a paper (``"mr2"``, ``"mr2_large"``,
            …), or a recipe (``"mr2_cifar100"``), which is compared with cross-entropy.
        seeds: Instead of the suite's.
        only: Patterns of ``TASK/VARIANT``.
        settings: Changes of all runs, as ``["data.root=/data", "epochs=100"]``.
        quick: Two epochs of every run on small stand-ins of the data, with one seed: whether everything works.
        workers: Processes that share the jobs; 0 for one per processor core, or a single one where there is a GPU.
        threads: Threads of each worker; 0 for what ``OMP_NUM_THREADS`` says, else its share of the processors.
        out: Folder of the jobs; by default ``runs/bench/SUITE``.
        results: Runs in these files count as done; new ones are added to the first. By default ``SUITE.jsonl`` beside the file
            of the suite, or ``results.jsonl`` in ``out``.
        tell: Called with an :class:`~classgap.suites.pool.Event` whenever a job starts, advances, ends or fails.
    """
    planned = plan(suite, seeds=seeds, only=only, settings=settings, quick=quick, out=out, results=results)
    planned.collect()
    missing = planned.report().missing
    return planned.report(planned.run(missing, workers=workers, threads=threads, tell=tell) if missing else {})
