"""``classgap export``: a finished run as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run of `classgap train`.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write; must end in .onnx.")] = Path("model.onnx"),
) -> None:
    """Write the network of a finished run as an ONNX file, from samples to scores.

    Standardisation of pixels and the correction of a stage such as gap_dial are part of the graph. Class names and how images are
    resized are in the metadata, under the key classgap, as JSON.

    \b
    classgap export runs/mine --out model.onnx
    """
    from classgap.cli.output import console, working
    from classgap.training.exporting import export as write

    with working("exporting"):
        done = write(run, out)
    given = done.about["input"]
    checked = (
        "not checked, since onnxruntime is not installed"
        if done.difference is None
        else f"checked with onnxruntime: scores differ by at most {done.difference:.1g}"
    )
    shape = " × ".join(["N", *map(str, given["shape"])])
    console().print(
        f"{len(done.about['class_names'])} classes, input {given['name']} ({shape}, {given['dtype']}); written to {done.path}; "
        f"{checked}",
        soft_wrap=True,
        highlight=False,
    )
