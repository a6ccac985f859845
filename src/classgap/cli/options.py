"""Options that several verbs have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_WHAT, _RUN, _OUT = "Columns of the file", "Measurement", "Output"


def _add_plugins(files: list[Path] | None) -> list[Path] | None:
    from classgap.registry import add_plugin

    for file in files or ():
        add_plugin(file)
    return files


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=_add_plugins,
        help="Python file with methods of your own (see classgap new-method). Repeatable.",
    ),
]
True_ = Annotated[
    str | None, typer.Option("--true", metavar="COL", help="Column or array of the true labels.", rich_help_panel=_WHAT)
]
Pred = Annotated[
    str | None,
    typer.Option("--pred", metavar="COL", help="Column or array of the predicted labels.", rich_help_panel=_WHAT),
]
Scores = Annotated[
    str | None,
    typer.Option(
        "--scores",
        metavar="COL",
        help="Logits or probabilities: a column of lists, a matrix, a column prefix such as 'score_', a pattern such as "
        "'P(*)', or column names separated by commas.",
        rich_help_panel=_WHAT,
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        metavar="COL",
        help="Features (the input of the last layer), in the same forms as --scores.",
        rich_help_panel=_WHAT,
    ),
]
Names = Annotated[
    Path | None,
    typer.Option(
        "--names",
        metavar="FILE",
        help="File of class names in class order: one name per line, or JSON.",
        rich_help_panel=_WHAT,
    ),
]
TrainCounts = Annotated[
    Path | None,
    typer.Option(
        "--train-counts",
        metavar="FILE",
        help="File with the number of training samples per class: CSV with a header and the columns class,count, or JSON.",
        rich_help_panel=_WHAT,
    ),
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="COL",
        help="Column or array of sample ids: shown in lists of samples, and used to match rows of files that are in different "
        "order.",
        rich_help_panel=_WHAT,
    ),
]
PathColumn = Annotated[
    str | None,
    typer.Option(
        "--path",
        metavar="COL",
        help="Column or array with the image files of the samples; the report shows the worst mistakes as pictures.",
        rich_help_panel=_WHAT,
    ),
]
MislabelledBelow = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="List a label as probably wrong if the model gives it at most this share of the mean probability for its class. A "
        "larger share lists more of the wrong labels, but also more correct ones. Needs scores of held-out data.",
        rich_help_panel=_RUN,
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COL",
        help="Column or array with the texts of the samples; the report shows those of the worst mistakes.",
        rich_help_panel=_WHAT,
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COL",
        help="Column or array that defines slices, e.g. site or camera: the report says which slices, and which classes within "
        "slices, are less accurate. Repeatable.",
        rich_help_panel=_WHAT,
    ),
]
SampleWeight = Annotated[
    str | None,
    typer.Option(
        "--sample-weight",
        metavar="COL",
        help="Column or array with the weight of each sample.",
        rich_help_panel=_WHAT,
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="P",
        help="Of two classes with scores: predict the positive class where its probability is at least P. With --multi-label: "
        "predict every label where its probability is at least P (default: the predictions in the file, or 0.5).",
        rich_help_panel=_RUN,
    ),
]
MultiLabel = Annotated[
    bool,
    typer.Option(
        "--multi-label",
        help="A sample can have several labels: one column of 0 and 1 per label, and one of scores or predictions. --true, "
        "--scores and (except in fix) --pred then name them by prefix ('true_') or pattern ('*_true').",
        rich_help_panel=_WHAT,
    ),
]
Thresholds = Annotated[
    Path | None,
    typer.Option(
        "--thresholds",
        metavar="FILE",
        help="With --multi-label: JSON file with one threshold per label, as fix writes it (thresholds.json).",
        rich_help_panel=_RUN,
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(
        "--positive",
        metavar="NAME",
        help="Of two classes: name of the positive class, whose score a single score column holds. Default: the second class.",
        rich_help_panel=_RUN,
    ),
]
Count = Annotated[
    str | None,
    typer.Option(
        "--count",
        metavar="COL",
        help="Column with the number of samples that a row stands for, if the table is already counted (true, pred, n).",
        rich_help_panel=_WHAT,
    ),
]
Sql = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="QUERY",
        help="Query on FILE, a DuckDB file, that selects the columns. It is opened for reading only.",
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
        help="Exit with code 1 and print the reason if this condition is true, e.g. 'hard < 0.6'. Repeatable.",
        rich_help_panel=_RUN,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for report.html, report.md, report.json and figures/; of an audit also mistakes.csv (with --id, --path, "
        "--text or scores) and mislabelled.csv (with scores).",
        rich_help_panel=_OUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON and nothing else.", rich_help_panel=_OUT)]
