"""Progress of training runs: a bar with the remaining time, or one line per epoch where there is no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

if TYPE_CHECKING:
    from classgap.training import TrainProgress as Position


class RunProgress:
    """One bar over ``runs`` training runs; call :meth:`start` before each run and pass :meth:`watch` to it::

    with RunProgress(console) as progress:
        progress.start("resnet32 · mr2")
        train(config, folder, watch=progress.watch)
    """

    def __init__(self, console: Console, runs: int = 1) -> None:
        self.console, self.runs, self.run, self.name, self.shown = console, runs, -1, "", ""
        self.bar = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("left  {task.fields[shown]}", table_column=Column(no_wrap=True)),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", total=None, shown="")

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def start(self, name: str) -> None:
        """Begin the next run."""
        self.run, self.name, self.shown = self.run + 1, name, ""

    def watch(self, position: Position) -> None:
        """Show the position of the current run."""
        stage = f"{position.stage}  " if position.stage else ""
        if position.note and self.runs == 1:
            self.console.print(stage + position.note, highlight=False)
        if position.record is not None:
            self.shown = _summary(position.record)
            if not self.console.is_terminal and self.runs == 1:
                self.console.print(f"{stage}epoch {position.epoch}/{position.epochs}  {self.shown}", highlight=False)
        self.bar.update(
            self.task,
            description=f"{self.name}  {stage}epoch {min(position.epoch + 1, position.epochs)}/{position.epochs}",
            completed=self.run * position.steps + position.step,
            total=self.runs * position.steps,
            shown=self.shown,
        )


def _summary(record: dict[str, Any]) -> str:
    parts = [f"loss {record['train']['loss']:.3f}"]
    if "val" in record:
        parts += [f"val {record['val']['balanced']:.1%}", f"hard {record['val']['hard']:.1%}"]
    else:
        parts.append(f"train {record['train']['accuracy']:.1%}")
    return "  ".join(parts)
