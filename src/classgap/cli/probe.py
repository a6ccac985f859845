"""``classgap probe``: a grid of linear heads on features, trained at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from classgap.checks import InputError, plain_value


def probe(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="File of `classgap features`, or an NPZ archive of vectors.")
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="AXIS=V,V,…",
            help="Values of lr, weight_decay, seed or a parameter of the method, e.g. lr=0.01,0.1,1; repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Setting of all heads, e.g. method=logit_adjusted or epochs=50."
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="Validation accuracy by which the best head is chosen: overall, easy, medium or hard.")
    ] = "overall",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the table, and layer and predictions of the best head, here."),
    ] = None,
) -> None:
    """Train a linear head for every point of a grid, all at once, on the features of a frozen network.

    A head is what `classgap train --set model=linear` with the same settings gives, up to rounding. The point is chosen on the
    validation set, as a mean over seeds; test accuracies are shown beside it.

    \b
    classgap features timm:resnet50 photos/ --set data.size=224 --out photos.safetensors
    classgap probe photos.safetensors --set method=logit_adjusted --grid tau=0.5,1,2 --grid lr=0.01,0.1,1 --grid seed=0,1,2
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from classgap.cli.output import console
    from classgap.training.probing import probe as run

    axes = dict(_axis(text) for text in grid or [])
    with Progress(TextColumn("heads"), BarColumn(), TimeRemainingColumn(), transient=True, console=console()) as bar:
        task = bar.add_task("heads", total=None)
        report = run(
            data, axes, settings=settings or [], watch=lambda n, total: bar.update(task, completed=n, total=total)
        )
    for note in report.notes:
        console().print(f"note: {note}", soft_wrap=True, highlight=False)
    best = report.best(by)
    table = Table(box=None, pad_edge=False)
    shown = [*axes, *(f"{part} {name}" for part in ("val", "test") for name in ("overall", "hard"))]
    for column in shown:
        table.add_column(column, justify="right")
    for head in sorted(report.heads, key=lambda head: -head.accuracy["val"][by])[:_SHOWN]:
        found = [f"{head.accuracy[part][name]:.1%}" for part in ("val", "test") for name in ("overall", "hard")]
        table.add_row(*(str(head.point[axis]) for axis in axes), *found, style="bold" if head is best else "")
    console().print(table)
    more = f", the first {_SHOWN} shown" if len(report.heads) > _SHOWN else ""
    console().print(
        f"{len(report.heads)} heads in {report.seconds:.1f} s, by {by} validation accuracy{more}; best as a mean over seeds: "
        f"{' '.join(setting for setting in report.settings(best) if not setting.startswith('seed='))}",
        soft_wrap=True,
        highlight=False,
    )
    if out is not None:
        report.save(out, by)
        console().print(
            f"written to {out}; next: classgap audit {out}/predictions_test.npz", soft_wrap=True, highlight=False
        )


_SHOWN = 20


def _axis(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"--grid wants AXIS=VALUE,VALUE,…, got {text!r}; e.g. --grid lr=0.01,0.1,1")
    return name.strip(), [plain_value(part.strip()) for part in values.split(",")]
