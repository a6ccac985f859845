"""``classgap fix``: reduce the gap of a trained model without training it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.cli import multi_label as multi
from classgap.cli import options
from classgap.cli.paths import matching, title

if TYPE_CHECKING:
    from rich.table import Table

    from classgap.posthoc import FixReport


def fix(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Prediction file (CSV, Parquet, NPZ or safetensors), a folder of such files, an address such as "
            "s3://bucket/folder/, or a quoted file pattern.",
        ),
    ],
    true: options.True_ = None,
    scores: options.Scores = None,
    features: options.Features = None,
    multi_label: options.MultiLabel = False,
    names: options.Names = None,
    train_counts: options.TrainCounts = None,
    rule: Annotated[
        str, typer.Option(help="Rule that chooses the method; listed above.", rich_help_panel="Choice of the method")
    ] = "hard_if_overall_holds",
    cost: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Costs of errors: CSV with the true class in the first column and one column per predicted class, or JSON. The "
            "lowest mean cost then chooses, instead of the rule.",
            rich_help_panel="Choice of the method",
        ),
    ] = None,
    overall: Annotated[
        str,
        typer.Option(
            help="What the rules mean by overall: 'balanced' is the mean over classes, 'overall' the mean over samples.",
            rich_help_panel="Choice of the method",
        ),
    ] = "balanced",
    report_share: Annotated[
        float,
        typer.Option(
            help="Share of the samples that is set aside for the report.",
            rich_help_panel="Choice of the method",
            show_default="one third",
        ),
    ] = 1 / 3,
    folds: Annotated[
        int, typer.Option(min=2, help="Number of folds of the cross-fitting.", rich_help_panel="Choice of the method")
    ] = 5,
    seed: options.Seed = 0,
    plugin: options.Plugins = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.", rich_help_panel="Output")] = Path(
        "classgap-fix"
    ),
) -> None:
    """Reduce the gap of a trained model without training it again.

    FILE holds true labels and logits (or features with the weight and bias of
    the last layer) of samples that the model was NOT trained on: a validation
    set, or out-of-fold scores. One third of the samples is set aside. Every
    post-hoc method is fitted on the other samples, and the rule chooses one of
    them by cross-fitting. The samples set aside measure its effect.

    \b
    classgap fix val.npz                   arrays: scores, y_true; also features,
                                           weight, bias, train_counts, class_names
    classgap fix val.csv --scores logit_ --true label --train-counts counts.csv
    classgap fix val.npz --rule best_overall --out fixed
    classgap fix val.csv --cost costs.csv  decisions of lowest expected cost
    classgap fix tags.csv --multi-label    one threshold per label, for the
                                           highest F1: thresholds.json

    \b
    Rules that choose the method
    hard_if_overall_holds  largest gain of the hard third, if overall accuracy
                           is not significantly worse (default)
    hard_if_overall_gains  largest gain of the hard third, if overall accuracy
                           is not lower
    best_hard              largest gain of the hard third
    best_overall           largest gain of the overall accuracy

    \b
    Files written to DIR
    report.html .md .json  effect of the chosen method on the samples set
                           aside; figures/
    methods.md             all methods with their intervals
    method/                the chosen method, for classgap.posthoc.load
    head.safetensors       corrected last layer, if FILE holds its weight. It
                           takes features as FILE holds them: for a cosine
                           head, unit vectors
    predictions.csv        predicted labels before and after
    prediction_sets.json   thresholds of prediction sets with a coverage of 90 %
                           in every class, for classgap.posthoc.PredictionSets
    If no method helps significantly, only the reports and prediction_sets.json
    (for the uncorrected scores) are written.
    """
    from classgap import Columns, Predictions, fix
    from classgap.cli.output import check_output, console, working
    from classgap.predictions import read_cost, read_names, read_train_counts

    check_output(out)
    if multi_label:
        multi.refuse(features=features, train_counts=train_counts, cost=cost)
        columns = Columns(true=true, scores=scores)
        multi.fix_files(files, columns, names, out=out, report_share=report_share, folds=folds, seed=seed)
        return
    parts = [part for file in files for part in matching(file)]
    with working("reading"):
        found = Predictions.read(
            parts,
            Columns(true=true, scores=scores, features=features),
            class_names=None if names is None else read_names(names),
            train_counts=None if train_counts is None else read_train_counts(train_counts),
            rows=True,
        )
    with working("fitting") as progress:
        result = fix(
            found,
            rule=rule,
            cost=None if cost is None else read_cost(cost),
            overall=overall,
            report_share=report_share,
            folds=folds,
            seed=seed,
            progress=progress,
        )
    screen = console()
    screen.print(f"{found.num_samples:,} samples, {found.num_classes:,} classes; {_split_sentence(result)}\n")
    screen.print(_table(result))
    for name, reason in result.skipped.items():
        screen.print(f"not fitted: {name} ({reason})", style="dim")
    if found.train_counts is None:
        screen.print(
            "note: no training counts given (--train-counts); the label counts in FILE are used instead", style="dim"
        )
    screen.print(result.verdict, style="bold")
    if result.note:
        screen.print(f"note: {result.note}")
    with working("writing"):
        result.save(out, source=title(parts))
    screen.print(f"Written to {out}", soft_wrap=True)


def _split_sentence(result: FixReport) -> str:
    aside = len(result.report_rows)
    return (
        f"fitted and chosen on {result.before.num_samples - aside:,} samples (cross-fitted), "
        f"reported on the {aside:,} samples set aside"
    )


def _table(result: FixReport) -> Table:
    from rich import box
    from rich.table import Table

    from classgap.posthoc.fix_report import COLUMNS

    caption = (
        f"cv: cross-fitted change on the samples for fitting{'' if result.costs else ', which the rule uses'}. Other columns: "
        "change on the samples set aside. hard cv: worst third of each side; hard: classes that were hard before (cross-fitted "
        f"ranking). overall: mean over {'classes' if result.overall == 'balanced' else 'samples'}. In points with 95 % interval; "
        f"+ and − mark an interval that excludes 0.{' The method with the lowest mean cost is chosen.' if result.costs else ''}"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    # a terminal is too narrow for the cross-fitted intervals; methods.md has them
    for i, head in enumerate(COLUMNS):
        table.add_column(head, justify="right" if 0 < i < 5 else "left", no_wrap=i < 5)
    for name, hard, balanced, *report in result.rows():
        choosing = hard.split(" ")[0], balanced.split(" ")[0]
        table.add_row(name, *choosing, *report, style="bold" if name.startswith("→") else "")
    return table
