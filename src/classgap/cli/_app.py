"""The Typer application: every verb is registered here, in the order ``--help`` lists them."""

from __future__ import annotations

from typing import Annotated

import typer

import classgap

app = typer.Typer(
    name="classgap",
    help="Find the classes a classifier fails, say whether the gap is real, and close it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"classgap {classgap.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the classes a classifier fails, say whether the gap is real, and close it."""
