"""Progress of many jobs: a bar with the remaining time, or one line per job where there is no terminal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

if TYPE_CHECKING:
    from classgap.suites import Result
    from classgap.suites.jobs import Job
    from classgap.suites.pool import Event


class BenchProgress:
    """Progress bar of a suite; pass :meth:`tell` to :func:`classgap.suites.pool.run_jobs`.

    The remaining time is estimated from the mean duration of an epoch in finished jobs, divided by the number of workers: in
    jobs of the same task of this call; until there are any, in the known results, which may be from another machine.
    """

    def __init__(self, console: Console, jobs: Mapping[str, Job], known: Sequence[Result], workers: int) -> None:
        self.console, self.jobs, self.workers = console, jobs, workers
        self.share = dict.fromkeys(jobs, 0.0)
        self.began: dict[str, tuple[float, float]] = {}
        self.known: dict[str, list[float]] = defaultdict(list)  # seconds per epoch, by task
        self.measured: dict[str, list[float]] = defaultdict(list)
        for result in known:
            self.known[result.task].append(result.seconds / result.config.epochs)
        self.done = 0
        self.bar = Progress(
            TextColumn("{task.fields[now]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("jobs  {task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", total=len(jobs), now="starting workers", left="")

    def __enter__(self) -> BenchProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def tell(self, event: Event | None) -> None:
        """Process an event of a worker and update the bar."""
        if event is not None:
            self.share[event.key] = event.share
            job, now = self.jobs[event.key], time.monotonic()
            first, share = self.began.setdefault(event.key, (now, event.share))
            if (
                event.kind == "running" and event.share > share
            ):  # measured from the first event: a job may have been resumed
                self._now(f"{job.name} {event.share:.0%}")
            elif event.kind == "done":
                self.done += 1
                if share < 1:
                    self.measured[job.task].append((now - first) / (1 - share) / job.config.epochs)
                if not self.console.is_terminal:
                    self.console.print(f"{self.done}/{len(self.jobs)}  {job.name}  {self.time_left()}", soft_wrap=True)
            elif event.kind == "failed":
                self.share[event.key] = 1.0
                self.done += 1
        self.bar.update(self.task, completed=self.done, left=self.time_left())

    def _now(self, text: str) -> None:
        self.bar.update(self.task, now=text)

    def time_left(self) -> str:
        """Text for the remaining time; empty until the duration of any job is known."""
        if not self.known and not self.measured:
            return ""
        total = sum(
            (1 - share) * self.jobs[key].config.epochs * self._epoch(self.jobs[key].task)
            for key, share in self.share.items()
        )
        return f"{duration(total / self.workers)} left"

    def _epoch(self, task: str) -> float:
        """Expected seconds per epoch."""
        seconds = self.measured.get(task) or self.known.get(task)
        if not seconds:
            seconds = [value for tasks in (self.measured or self.known).values() for value in tasks]
        return sum(seconds) / len(seconds)


def duration(seconds: float) -> str:
    """Text for a duration.

    Example:
        >>> duration(42), duration(150), duration(7500)
        ('42 s', '2.5 min', '2.1 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
