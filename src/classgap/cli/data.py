"""``classgap data``: list the known data sets, and download one."""

from __future__ import annotations

from typing import Annotated

import typer

from classgap.checks import InputError, did_you_mean

_OWN = (
    (
        "FOLDER",
        "your images: train/CLASS/… beside test or val, or CLASS/…; or what datasets.Dataset.save_to_disk wrote",
    ),
    ("FILE.csv", "your images or texts: columns path or text, label and optionally split; also .tsv and .parquet"),
    ("FILE.txt", "your images: a path and a label per line"),
    ("FILE.npz", "your arrays: x_train, y_train, x_test, y_test[, class_names]"),
)
app = typer.Typer(no_args_is_help=True, help="List the known data sets, or download one.")


@app.command("list")
def list_() -> None:
    """List the known data sets and whether each is on this machine."""
    from rich.console import Console
    from rich.table import Table

    from classgap.data import SOURCES, data_root

    table = Table(box=None, pad_edge=False)
    for column in ("name", "present", "content"):
        table.add_column(column)
    for name, known in SOURCES.items():
        table.add_row(name, "yes" if known.present(data_root()) else "no", known.about)
    for path, what in _OWN:
        table.add_row(path, "", what)
    console = Console()
    console.print(table)
    console.print(
        f"downloads are stored in {data_root()} (environment variable CLASSGAP_DATA)", highlight=False, soft_wrap=True
    )


@app.command()
def prepare(name: Annotated[str, typer.Argument(help="Name from `classgap data list`.")]) -> None:
    """Download a data set, unless it is present, and check it."""
    from classgap.data import SOURCES, data_root, load_source

    if name not in SOURCES:
        raise InputError(did_you_mean(name, SOURCES, what="data set"))
    try:
        source = load_source(name, download=True)
    except OSError as error:  # no network, no disk space, a server that does not answer
        raise InputError(
            f"{name} could not be downloaded ({error}); check the network, or copy the data to {data_root()}"
        ) from None
    train, test, classes = len(source.y_train), len(source.y_test), len(source.class_names)
    typer.echo(f"{name}: {train} training and {test} test samples of {classes} classes are ready")
