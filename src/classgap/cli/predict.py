"""``classgap predict``: apply the classifier of a finished run to labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classgap.checks import InputError
from classgap.cli.options import Plugins

_ENDINGS = (".npz", ".csv", ".parquet")


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run of `classgap train`.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Name or path of a labelled data set.")],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Where to write: .npz (also features and last layer), .csv or .parquet."),
    ] = Path("predictions.npz"),
    part: Annotated[
        str | None,
        typer.Option(help="train, val, test or all; by default test where DATA has parts, otherwise all."),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Folder that the paths in a table are relative to; that of the table by default."
        ),
    ] = None,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out image files that cannot be decoded.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that decode image files; one per processor core by default, at most 8."),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            metavar="VIEWS",
            help="Test-time augmentation of images: flip (also mirrored), crop (also shifted), or flip,crop; scores and features "
            "are means over 2, 5 or 10 views. none for the plain images; by default as the run predicts (predict.augment).",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute, as torch names it: cpu, cuda, mps.")] = "cpu",
    plugin: Plugins = None,
) -> None:
    """Apply the classifier of a finished run to labelled data.

    DATA is a folder of images (CLASS/…, or test/CLASS/…), a table with columns path and label, an NPZ archive, or a name of
    `classgap data list`. Images are prepared as in the run. Labels are matched with the classes of the run by name;
    labels 0, 1, 2, … as in list files are positions among these classes.

    \b
    classgap predict runs/mine photos/ --out predictions.npz
    classgap audit predictions.npz --out report
    classgap fix predictions.npz                   if the run was not trained on DATA
    classgap compare before.npz predictions.npz    two runs on the same DATA
    """
    if out.suffix.lower() not in _ENDINGS:
        raise InputError(f"--out must end in {', '.join(_ENDINGS)}, got {out.name!r}")
    from classgap.cli.output import check_output, console, working

    check_output(out.parent)
    from classgap.training import load_run

    predictor = load_run(run, device=device)
    with working("predicting"):
        found = predictor.outputs(
            data,
            part=part,  # type: ignore[arg-type]
            root=root,
            skip_corrupt=skip_corrupt,
            workers=workers,
            augment=augment,
        )
    found.write(out)
    for note in found.notes:
        console().print(f"note: {note}", soft_wrap=True)
    right = float((found.y_pred == found.y_true).mean())
    console().print(
        f"{len(found.y_true):,} samples, {len(found.class_names):,} classes, accuracy {right:.1%}; written to {out}; why and "
        f"which: classgap audit {out}",
        soft_wrap=True,
    )
