"""``classgap compare``: which classes improved or got worse, with significance."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from classgap.checks import InputError
from classgap.cli import multi_label as multi
from classgap.cli import options
from classgap.cli.paths import matching

_SIDE = "one file or address, several separated by commas, or a quoted file pattern; each file or folder is one run"


def compare(
    before: Annotated[str, typer.Argument(help=f"Predictions of the old model: {_SIDE}.")],
    after: Annotated[str, typer.Argument(help="Predictions of the new model for the same samples, in the same form.")],
    true: options.True_ = None,
    pred: options.Pred = None,
    scores: options.Scores = None,
    id: options.Id = None,
    multi_label: options.MultiLabel = False,
    common: Annotated[
        bool,
        typer.Option(
            "--common",
            help="Compare only the samples that all files have, matched by --id, instead of refusing different samples.",
            rich_help_panel="Measurement",
        ),
    ] = False,
    names: options.Names = None,
    confidence: options.Confidence = 0.95,
    seed: options.Seed = 0,
    fail_if: options.FailIf = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Report which classes improved or got worse, with significance.

    Both sides must predict the same samples, in the same order or matched by
    --id. Pass several runs (training seeds) per side to include the variation
    between training runs.

    \b
    classgap compare erm.csv mr2.csv
    classgap compare "erm_seed*.npz" "mr2_seed*.npz" --out report
    classgap compare a.csv,b.csv c.csv,d.csv --id filename
    classgap compare old.csv new.csv --multi-label --fail-if "any label worsened"
    classgap compare old.parquet new.parquet --fail-if "easy.delta.high < -0.01"

    Exit codes: 0 success; 1 a --fail-if condition is true; 2 the input cannot be used.
    """
    from classgap import Columns
    from classgap import compare as compare_runs
    from classgap.cli.output import check_output, finish, working
    from classgap.predictions import read_names

    check_output(out, fail_if)
    if multi_label:
        multi.refuse(names=names)
        output: dict[str, Any] = {"out": out, "as_json": as_json, "fail_if": fail_if or []}
        output["source"] = f"{before} → {after}"
        columns = Columns(true=true, pred=pred, scores=scores, id=id)
        multi.compare_files(runs(before), runs(after), columns, common=common, confidence=confidence, **output)
        return
    with working("comparing"):
        comparison = compare_runs(
            runs(before),
            runs(after),
            columns=Columns(true=true, pred=pred, scores=scores, id=id),
            class_names=None if names is None else read_names(names),
            common=common,
            confidence=confidence,
            seed=seed,
        )
    finish(comparison, out=out, as_json=as_json, fail_if=fail_if or [], source=f"{before} → {after}")


def runs(side: str) -> list[str]:
    """The files of one side: paths, addresses and file patterns, separated by commas."""
    if os.path.exists(side):  # unlike Path.exists, no error for names that are too long
        return [side]
    parts = [part.strip() for part in side.split(",")]
    if not all(parts):
        raise InputError(
            f"BEFORE and AFTER must be prediction files separated by commas, got an empty name in {side!r}"
        )
    return [file for part in parts for file in matching(part)]
