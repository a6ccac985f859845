"""``classgap features``: the features of a frozen network for a data set, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def features(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Network as in model=, e.g. timm:resnet50, or the folder of a run.")
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Name or path of a data set, as in data=.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write; must end in .safetensors.")] = Path(
        "features.safetensors"
    ),
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of network or data, e.g. model.pretrained=FILE or data.size=224.",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Type of the numbers in the file: float32, or float16 or bf16 for half the size.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="Where to compute, as torch names it: cpu, cuda, mps.")] = "cpu",
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that decode image files; one per processor core by default, at most 8."),
    ] = None,
) -> None:
    """Write the features of a frozen network for every sample of a data set.

    Features are the inputs of the last layer, without augmentation. A network of a library comes with its published weights;
    model.pretrained names others. The file is itself a data set: train heads on it in seconds.

    An interrupted command continues where it stopped when it is given again.

    \b
    classgap features timm:resnet50 photos/ --set data.size=224 --out photos.safetensors
    classgap train --set data=photos.safetensors --set model=linear --set method=logit_adjusted
    classgap probe photos.safetensors --grid lr=0.01,0.1,1 --grid seed=0,1,2
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from classgap.cli.output import console
    from classgap.training.extracting import features as run

    columns = (TextColumn("features"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=console()) as bar:
        task = bar.add_task("features", total=None)
        done = run(
            model,
            data,
            out,
            settings=settings or [],
            dtype=dtype,
            device=device,
            workers=workers,
            watch=lambda finished, total: bar.update(task, completed=finished, total=total),
        )
    for note in done.notes:
        console().print(f"note: {note}", soft_wrap=True, highlight=False)
    resumed = f" ({done.resumed:,} were there already)" if done.resumed else ""
    console().print(
        f"{done.samples:,} samples{resumed}, {done.width:,} features each; written to {done.path}; train a head on them: "
        f"classgap train --set data={done.path} --set model=linear",
        soft_wrap=True,
        highlight=False,
    )
