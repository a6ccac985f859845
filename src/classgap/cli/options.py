"""Options shared by the verbs that read prediction files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_WHAT, _RUN, _OUT = "What is in the file", "How to measure", "What to write"

True_ = Annotated[
    str | None, typer.Option("--true", metavar="COL", help="Column (or array) of true labels.", rich_help_panel=_WHAT)
]
Pred = Annotated[
    str | None, typer.Option("--pred", metavar="COL", help="Column of predicted labels.", rich_help_panel=_WHAT)
]
Scores = Annotated[
    str | None,
    typer.Option(
        "--scores",
        metavar="COL",
        help="Logits or probabilities: a list column or matrix, a prefix such as 'score_', or columns joined by commas.",
        rich_help_panel=_WHAT,
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        "--features", metavar="COL", help="Input of the last layer; named like --scores.", rich_help_panel=_WHAT
    ),
]
Names = Annotated[
    Path | None,
    typer.Option(
        "--names", metavar="FILE", help="Class names in class order: one per line, or JSON.", rich_help_panel=_WHAT
    ),
]
TrainCounts = Annotated[
    Path | None,
    typer.Option(
        "--train-counts",
        metavar="FILE",
        help="Training samples of each class: CSV of class,count with a header, or JSON.",
        rich_help_panel=_WHAT,
    ),
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="COL",
        help="Column of sample ids, for files in different order.",
        rich_help_panel=_WHAT,
    ),
]
Confidence = Annotated[float, typer.Option(help="Confidence level of the intervals.", rich_help_panel=_RUN)]
Seed = Annotated[int, typer.Option(help="Random seed.", rich_help_panel=_RUN)]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="EXPR",
        help="Exit with code 1 and the reason if this condition holds, e.g. 'hard < 0.6'. Repeatable.",
        rich_help_panel=_RUN,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder for report.html, report.md, report.json and figures/.", rich_help_panel=_OUT
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON report and nothing else.", rich_help_panel=_OUT)]
