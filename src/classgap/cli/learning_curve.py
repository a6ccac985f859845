"""``classgap learning-curve``: what more training samples would give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from classgap.checks import InputError
from classgap.cli import options
from classgap.cli.paths import matching


def learning_curve(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Prediction files of models trained with different numbers of samples, for the same test samples; or with "
            "--train one file of features.",
        ),
    ],
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help="Training samples per class of each FILE, in order. Without it, the array train_counts of each file is used.",
        ),
    ] = None,
    factor: Annotated[
        float, typer.Option(help="Predict for this many times the largest number of training samples.")
    ] = 2.0,
    train: Annotated[
        bool, typer.Option("--train", help="FILE has features: train linear heads on parts of the training samples.")
    ] = False,
    shares: Annotated[
        str, typer.Option(metavar="S,S,…", help="With --train: shares of the training samples.")
    ] = "0.125,0.25,0.5,1",
    seeds: Annotated[int, typer.Option(help="With --train: heads per share.")] = 3,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --train: setting of all heads, e.g. epochs=50."),
    ] = None,
    true: options.True_ = None,
    pred: options.Pred = None,
    scores: options.Scores = None,
    id: options.Id = None,
    names: options.Names = None,
    confidence: options.Confidence = 0.95,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for learning_curve.md and learning_curve.json.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict what more training samples would give, for all classes and for the easy and the hard third.

    The error is extrapolated by a power law with a floor. At least three numbers of training samples are needed,
    and four times as many must have been seen to predict for twice as many.

    \b
    classgap learning-curve n50.npz n100.npz n200.npz
    classgap learning-curve "runs/share*/predictions_test.npz" --out curve
    classgap learning-curve a.csv b.csv c.csv --samples 50,100,200
    classgap features timm:resnet50 photos/ --set data.size=224 --out photos.safetensors
    classgap learning-curve photos.safetensors --train --set epochs=30
    """
    from rich.text import Text

    from classgap import Columns
    from classgap import learning_curve as curve_of
    from classgap.cli.output import _table, console, working
    from classgap.predictions import read_names
    from classgap.writing import write

    runs: list[Any] = [run for file in files for run in matching(file)]
    if train:
        runs = _trained(runs, shares, seeds, settings or [])
    with working("fitting curves"):
        found = curve_of(
            runs,
            None if samples is None else _numbers("--samples", samples),
            factor=factor,
            columns=Columns(true=true, pred=pred, scores=scores, id=id),
            class_names=None if names is None else read_names(names),
            confidence=confidence,
            seed=seed,
        )
    if out is not None:
        write(out / "learning_curve.md", found.to_markdown())
        write(out / "learning_curve.json", json.dumps(found.to_dict(), indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    screen = console()
    screen.print(Text(found.verdict, style="bold"))
    screen.print(f"{found.num_samples:,} test samples, {int(found.runs.sum())} runs; training samples per class:\n")
    table = _table(*found.columns())
    for row in found.rows():
        table.add_row(*row)
    screen.print(table)
    for note in found.notes:
        screen.print(f"note: {note}", soft_wrap=True, style="dim")
    if out is not None:
        screen.print(f"written to {out}", soft_wrap=True)


def _trained(files: list[str], shares: str, seeds: int, settings: list[str]) -> list[Any]:
    from classgap.cli.output import working
    from classgap.training.probe_sizes import probe_sizes

    if len(files) != 1:
        raise InputError(f"--train takes one file of features, got {len(files)} files")
    with working("training heads") as watch:
        found = probe_sizes(files[0], _numbers("--shares", shares), seeds=seeds, settings=settings, watch=watch)
    return [run.predictions for run in found]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} must be numbers separated by commas, got {text!r}; e.g. {option} 50,100,200"
        ) from None
