"""The Typer application. Verbs are registered here in the order in which ``--help`` lists them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

import classgap
from classgap.cli.audit import audit
from classgap.cli.bench import bench
from classgap.cli.compare import compare
from classgap.cli.data import app as data_app
from classgap.cli.demo import demo
from classgap.cli.export import export
from classgap.cli.features import features
from classgap.cli.fix import fix
from classgap.cli.learning_curve import learning_curve
from classgap.cli.methods import methods
from classgap.cli.new_method import new_method
from classgap.cli.predict import predict
from classgap.cli.probe import probe
from classgap.cli.train import train
from classgap.cli.tune import tune

app = typer.Typer(
    name="classgap",
    help="Find the classes that a classifier fails, test whether the gap is real, and close it.",
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the classes that a classifier fails, test whether the gap is real, and close it."""


def _flowing(text: str) -> str:
    """A help text whose paragraphs fill the width of any terminal; examples, marked or indented, keep their lines."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith(("\b", " ")) else part.replace("\n", " ") for part in parts)


def _add(*verbs: Callable[..., None], **context: Any) -> None:
    for verb in verbs:
        app.command(help=_flowing(inspect.cleandoc(str(verb.__doc__))), context_settings=context)(verb)


_add(demo, audit, compare, learning_curve, fix)
_add(train, allow_extra_args=True)  # train explains unexpected arguments itself
_add(predict, features, probe, export, tune, bench)
app.add_typer(data_app, name="data")
_add(methods, new_method)
