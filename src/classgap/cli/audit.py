"""``classgap audit``: which classes fail, whether the gap is real, and why."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from classgap.checks import InputError
from classgap.cli import multi_label as multi
from classgap.cli import options
from classgap.cli.paths import matching, title


def audit(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Prediction file (CSV, Parquet, NPZ or safetensors), a folder of such files, an address such as "
            "s3://bucket/folder/, a quoted file pattern, or with --sql a DuckDB file.",
        ),
    ],
    true: options.True_ = None,
    pred: options.Pred = None,
    scores: options.Scores = None,
    features: options.Features = None,
    id: options.Id = None,
    path: options.PathColumn = None,
    text: options.Text = None,
    mislabelled_below: options.MislabelledBelow = 0.1,
    by: options.By = None,
    sample_weight: options.SampleWeight = None,
    count: options.Count = None,
    sql: options.Sql = None,
    multi_label: options.MultiLabel = False,
    names: options.Names = None,
    train_counts: options.TrainCounts = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Prediction file of another model. Its class accuracies define the reference ranking.",
            rich_help_panel="Measurement",
        ),
    ] = None,
    threshold: options.Threshold = None,
    positive: options.Positive = None,
    thresholds: options.Thresholds = None,
    confidence: options.Confidence = 0.95,
    seed: options.Seed = 0,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="ROWS",
            min=100,
            help="Read scores in batches, and take curves, causes and mistakes from a stratified sample of ROWS rows. By default "
            "for tables of more than 100 million scores (rows × classes).",
            rich_help_panel="Measurement",
        ),
    ] = None,
    fail_if: options.FailIf = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Report which classes fail, whether the gap is real, and why.

    Several FILEs are parts of one data set. Columns with common names are found
    without options: label, target, y_true; pred, prediction; score_0, score_1 …;
    features. To compare two models, use `classgap compare`.

    \b
    classgap audit predictions.csv
    classgap audit logits.npz --out report
    classgap audit test.csv --id file --path file --out report
    classgap audit reviews.parquet --text body --out report
    classgap audit parts/ --true label --pred top1
    classgap audit test.csv --scores score_ --names classes.txt
    classgap audit binary.csv --scores prob --threshold 0.3
    classgap audit tags.csv --multi-label --true true_ --scores prob_
    classgap audit s3://bucket/predictions/ --true label --pred top1
    classgap audit results.duckdb --sql "select label, pred from test"
    classgap audit test.csv --by site --by camera --fail-if "any slice worse"
    classgap audit test.npz --fail-if "hard < 0.60" --fail-if "worst.low < 0.4"

    Exit codes: 0 success; 1 a --fail-if condition is true; 2 the input cannot be used.
    """
    from classgap import Columns, Predictions
    from classgap import audit as audit_predictions
    from classgap.cli.output import check_output, finish, working
    from classgap.predictions import read_names, read_train_counts
    from classgap.predictions.binary import decide
    from classgap.predictions.databases import read_query

    check_output(out, fail_if, mislabelled_below)
    slices = tuple(dict.fromkeys(by or ()))
    columns = Columns(true, pred, scores, features, id, path, text, slices, sample_weight, count)
    if multi_label:
        multi.refuse(train_counts=train_counts, reference=reference, positive=positive, sql=sql, sample=sample)
        limits = multi.given_thresholds(threshold, thresholds)
        output = {"out": out, "as_json": as_json, "fail_if": fail_if or []}
        multi.audit_files(files, columns, limits, names, confidence=confidence, seed=seed, **output)
        return
    if thresholds is not None:
        raise InputError("--thresholds needs --multi-label; for two classes use --threshold")
    class_names = None if names is None else read_names(names)
    counts = None if train_counts is None else read_train_counts(train_counts)
    known: dict[str, Any] = {"class_names": class_names, "train_counts": counts}
    parts = [part for file in files for part in matching(file)]
    batched = partial(Predictions.read, batches=None if sample is None else True)
    read = batched if sql is None else partial(read_query, sql=sql)
    with working("reading predictions"):
        found = read(parts, columns, **known)
    found = decide(found, threshold, positive)
    with working("measuring"):
        baseline = None
        if reference is not None:
            labels = Columns(true, pred, scores, features)
            baseline = audit_predictions(Predictions.read(reference, labels, class_names=class_names).labels_only())
        report = audit_predictions(found, confidence=confidence, seed=seed, reference=baseline, sample=sample)
    finish(report, out=out, as_json=as_json, fail_if=fail_if or [], source=title(parts), below=mislabelled_below)
