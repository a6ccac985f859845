"""``classgap data``: list the known data sets, and download one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from classgap.checks import InputError, did_you_mean
from classgap.cli.output import console, echo

_OWN = (
    (
        "FOLDER",
        "your images: train/CLASS/… beside test or val, or CLASS/…; or what datasets.Dataset.save_to_disk wrote",
    ),
    ("FILE.csv", "your images or texts: columns path or text, label and optionally split; also .tsv and .parquet"),
    ("FILE.txt", "your images: a path and a label per line"),
    ("FILE.safetensors", "features of a frozen network, written by classgap features"),
    ("FILE.npz", "your arrays: x_train, y_train, x_test, y_test[, class_names]"),
)
_ROOT = Annotated[
    Path | None,
    typer.Option(
        "--root", metavar="DIR", help="Folder of all data sets; by default CLASSGAP_DATA, or a folder in your cache."
    ),
]
app = typer.Typer(no_args_is_help=True, help="List the known data sets, or prepare one: download, verify and check it.")


@app.command("list")
def list_(root: _ROOT = None) -> None:
    """List the known data sets and whether each is on this machine."""
    from rich.table import Table

    from classgap.data import SOURCES, data_root

    place = root or data_root()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "present", "classes", "training", "validation", "test", "content"):
        justify: Literal["left", "right"] = "left" if column in ("name", "present", "content") else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column == "name")
    for name, known in SOURCES.items():
        counts = (f"{count:,}" if count else "" for count in known.counts)
        table.add_row(name, "no" if known.missing(place) else "yes", str(known.classes), *counts, known.about)
    for path, what in _OWN:
        table.add_row(path, "", "", "", "", "", what)
    screen = console()
    screen.print(table)
    screen.print(
        f"looked for in {place} (environment variable CLASSGAP_DATA); `classgap data prepare NAME` downloads to it",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def prepare(name: Annotated[str, typer.Argument(help="Name from `classgap data list`.")], root: _ROOT = None) -> None:
    """Download a data set as far as it is missing, verify it, unpack it and count its samples.

    You can stop with Ctrl-C and start again: a download continues where it was interrupted. Where a data set may not be
    downloaded by a program, this says which files to put where.

    \b
    classgap data prepare cifar100
    classgap data prepare imagenet_lt --root /data
    """
    from classgap.data import SOURCES, data_root

    if name not in SOURCES:
        raise InputError(did_you_mean(name, SOURCES, what="data set"))
    with _Downloads() as downloads:
        source = SOURCES[name].prepare(name, root or data_root(), downloads.tell)
    parts = [(len(source.y_train), "training"), (len(source.y_test), "test")]
    if source.y_val is not None:
        parts.insert(1, (len(source.y_val), "validation"))
    counted = ", ".join(f"{count} {part}" for count, part in parts)
    echo(f"{name}: {counted} samples of {len(source.class_names)} classes are ready")


class _Downloads:
    """Progress bars on a terminal, one per file."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console(stderr=True))
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> _Downloads:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def tell(self, name: str, there: int, whole: int | None) -> None:
        """Show how much of a file has arrived."""
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=whole)
        self._progress.update(self._bars[name], completed=there)
