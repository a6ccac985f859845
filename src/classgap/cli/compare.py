"""``classgap compare``: who gained, who paid, is it beyond noise."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.checks import InputError
from classgap.cli import options

if TYPE_CHECKING:
    pass

_SIDE = "a file, files joined by commas, or a quoted pattern: one run each"


def compare(
    before: Annotated[str, typer.Argument(help=f"Predictions before: {_SIDE}.")],
    after: Annotated[str, typer.Argument(help="Predictions after, likewise, for the same samples.")],
    true: options.True_ = None,
    pred: options.Pred = None,
    scores: options.Scores = None,
    id: options.Id = None,
    names: options.Names = None,
    confidence: options.Confidence = 0.95,
    seed: options.Seed = 0,
    fail_if: options.FailIf = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Who gained, who paid, and is it beyond noise.

    Both sides must predict the same samples, in the same order or with --id. Give several runs (training seeds) a side
    to include how training itself varies.

    \b
    classgap compare erm.csv mr2.csv
    classgap compare "erm_seed*.npz" "mr2_seed*.npz" --out report
    classgap compare a.csv,b.csv c.csv,d.csv --id filename
    classgap compare old.parquet new.parquet --fail-if "easy.delta.high < -0.01"

    Exit codes: 0 fine, 1 a --fail-if condition holds, 2 the input cannot be used.
    """
    from classgap import Columns
    from classgap import compare as compare_runs
    from classgap.cli.output import check_conditions, finish, working
    from classgap.predictions import read_names

    check_conditions(fail_if)
    with working("comparing") as progress:
        comparison = compare_runs(
            runs(before),
            runs(after),
            columns=Columns(true=true, pred=pred, scores=scores, id=id),
            class_names=None if names is None else read_names(names),
            confidence=confidence,
            seed=seed,
            progress=progress,
        )
    finish(comparison, out=out, as_json=as_json, fail_if=fail_if or [], source=f"{before} → {after}")


def runs(side: str) -> list[Path]:
    """The files of one side: each path or pattern between commas."""
    if Path(side).exists():
        return [Path(side)]
    found: list[Path] = []
    for part in filter(None, (p.strip() for p in side.split(","))):
        matches = sorted(glob.glob(part))
        if not matches and glob.escape(part) != part:
            raise InputError(f"no file matches {part!r}")
        found += map(Path, matches or [part])
    if not found:
        raise InputError("a side of the comparison names no file")
    return found
