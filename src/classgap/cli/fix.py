"""``classgap fix``: close the gap of a trained model without retraining."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from classgap.posthoc import FixReport


def fix(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="CSV, Parquet, NPZ or safetensors, or a folder of parts.")
    ],
    true: options.True_ = None,
    scores: options.Scores = None,
    features: options.Features = None,
    names: options.Names = None,
    train_counts: options.TrainCounts = None,
    rule: Annotated[
        str, typer.Option(help="How to choose, see above.", rich_help_panel="How to choose")
    ] = "hard_if_overall_holds",
    overall: Annotated[
        str,
        typer.Option(
            help="What rules call overall: 'balanced' counts classes alike, 'overall' samples.",
            rich_help_panel="How to choose",
        ),
    ] = "balanced",
    report_share: Annotated[
        float,
        typer.Option(
            help="Share of samples set aside for the report.", rich_help_panel="How to choose", show_default="a third"
        ),
    ] = 1 / 3,
    folds: Annotated[int, typer.Option(min=2, help="Of the cross-fitting.", rich_help_panel="How to choose")] = 5,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.", rich_help_panel="What to write")] = Path(
        "classgap-fix"
    ),
) -> None:
    """Close the gap of a trained model without retraining.

    FILE holds true labels and logits (or features with the last layer's weight and bias) of samples the model was NOT
    trained on: a validation set, or out-of-fold scores. A third of them is set aside. On the rest every post-hoc method
    is fitted and cross-fitted, and the rule chooses; the samples set aside then say what it is worth.

    \b
    classgap fix val.npz                   arrays: scores, y_true; also features,
                                           weight, bias, train_counts, class_names
    classgap fix val.csv --scores logit_ --true label --train-counts counts.csv
    classgap fix val.npz --rule best_overall --out fixed

    \b
    Rules: which method to choose
    hard_if_overall_holds  largest gain of the hard third with overall not
                           significantly worse (default)
    hard_if_overall_gains  largest gain of the hard third, overall no lower
    best_hard              largest gain of the hard third, at any cost
    best_overall           largest gain overall

    \b
    Written to DIR
    report.html .md .json  chosen method on the samples set aside; figures/
    methods.md             all methods with their intervals
    method/                the chosen method, for classgap.posthoc.load
    head.safetensors       corrected last layer, if FILE holds its weight;
                           for the features of FILE: those of a cosine head
                           are unit vectors, so normalise before it
    predictions.csv        labels before and after
    If no method helps beyond noise, only the reports are written.
    """
    from classgap import Columns, Predictions, fix
    from classgap.cli.output import console, working
    from classgap.predictions import read_names, read_train_counts

    with working("reading"):
        found = Predictions.read(
            files,
            Columns(true=true, scores=scores, features=features),
            class_names=None if names is None else read_names(names),
            train_counts=None if train_counts is None else read_train_counts(train_counts),
            rows=True,
        )
    with working("fitting") as progress:
        result = fix(
            found, rule=rule, overall=overall, report_share=report_share, folds=folds, seed=seed, progress=progress
        )
    screen = console()
    screen.print(f"{found.num_samples:,} samples, {found.num_classes:,} classes; {_split_sentence(result)}\n")
    screen.print(_table(result))
    for name, reason in result.skipped.items():
        screen.print(f"left out: {name} ({reason})", style="dim")
    if found.train_counts is None:
        screen.print("note: no training counts given; the labels in FILE stand for them (--train-counts)", style="dim")
    screen.print(result.verdict, style="bold")
    with working("writing"):
        result.save(out, source=files[0].name)
    screen.print(f"Written to {out}", soft_wrap=True)


def _split_sentence(result: FixReport) -> str:
    aside = len(result.report_rows)
    return f"fitted and chosen on {result.before.num_samples - aside:,} (cross-fitted), reported on the {aside:,} set aside"


def _table(result: FixReport) -> Table:
    from rich import box
    from rich.table import Table

    from classgap.posthoc.fix_report import COLUMNS

    caption = (
        "cv: on the fitting part, what the rule sees; other columns: samples set aside, hard: classes hard before, cross-fitted; "
        "points with 95 % interval, + and − where it leaves out 0"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    # intervals of the choosing part are in methods.md: they do not fit a terminal
    for i, head in enumerate(COLUMNS):
        table.add_column(head, justify="right" if 0 < i < 5 else "left", no_wrap=i < 5)
    for name, hard, balanced, *report in result.rows():
        choosing = hard.split(" ")[0], balanced.split(" ")[0]
        table.add_row(name, *choosing, *report, style="bold" if name.startswith("→") else "")
    return table
