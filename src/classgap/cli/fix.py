"""``classgap fix``: close the gap of a trained model without retraining."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgap.cli import options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from classgap import Predictions
    from classgap.measure import Comparison
    from classgap.posthoc.fixing import Repair


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
    from classgap import Columns, Predictions
    from classgap.cli.output import console, working, write_report
    from classgap.posthoc.figure import frontier
    from classgap.posthoc.fixing import repair
    from classgap.predictions import read_names, read_train_counts

    with working("reading"):
        found = Predictions.read(
            files,
            Columns(true=true, scores=scores, features=features),
            class_names=None if names is None else read_names(names),
            train_counts=None if train_counts is None else read_train_counts(train_counts),
            rows=True,
        )
        evidence = _evidence(found)
    with working("fitting") as progress:
        result = repair(
            evidence,
            rule=rule,
            overall=overall,
            report_share=report_share,
            folds=folds,
            seed=seed,
            progress=progress,
        )
    screen = console()
    screen.print(
        f"{len(evidence.y):,} samples, {evidence.num_classes:,} classes; {_split_sentence(result, len(evidence.y))}\n"
    )
    screen.print(_table(result, overall))
    for name, reason in result.skipped.items():
        screen.print(f"left out: {name} ({reason})", style="dim")
    if found.train_counts is None:
        screen.print("note: no training counts given; the labels in FILE stand for them (--train-counts)", style="dim")
    screen.print(_verdict(result), style="bold")
    out.mkdir(parents=True, exist_ok=True)
    (out / "methods.md").write_text(methods_markdown(result, overall), encoding="utf-8")
    if result.chosen is not None:
        with working("writing"):
            charts = {"frontier": frontier(result, overall)}
            source = f"{files[0].name}: {result.chosen}, on the samples set aside"
            write_report(_named(result, found), out, source=source, more=charts)
            if result.helps:
                _write_method(result, found, evidence.logits, out)
    screen.print(f"Written to {out}", soft_wrap=True)


def _evidence(found: Predictions) -> Any:
    """The file's content as evidence; probabilities become log-probabilities."""
    import numpy as np

    from classgap.checks import InputError
    from classgap.posthoc.held_out import Evidence
    from classgap.predictions.arrays import read_scores

    scores, features = found.scores, found.features
    if scores is None or found.y_true is None:
        raise InputError(
            "fix needs logits (--scores), or features with the last layer's weight, and true labels; "
            "labels alone show which classes fail (classgap audit), but not how close they were"
        )
    matrix, kind = read_scores(scores, "auto")
    if matrix is not None and kind == "probabilities":
        matrix = np.log(np.maximum(matrix, 1e-12))
    norms = None if found.weight is None else np.linalg.norm(found.weight, axis=1)
    return Evidence.gather(
        matrix,
        found.y_true,
        classes=np.arange(len(found.classes)),
        class_counts=found.train_counts,
        weight_norms=None if norms is None or (norms == 0).any() else norms,
        bias=found.bias,
        features=features,
    )[0]


def _split_sentence(result: Repair, total: int) -> str:
    aside = len(result.report_rows)
    return f"fitted and chosen on {total - aside:,} (cross-fitted), reported on the {aside:,} set aside"


def _verdict(result: Repair) -> str:
    if result.chosen is None:
        return _with_rejected(f"No method is admissible under the rule {result.rule}.", result)
    from classgap.measure.render.plain import points

    report = result.candidates[result.chosen].report
    hard, overall = report.groups["cross"]["hard"].delta, report.metrics[result.overall].delta
    numbers = (
        f"classes hard before {points(hard.value)} [{points(hard.low)}, {points(hard.high)}], "
        f"{result.overall} accuracy {points(overall.value)} [{points(overall.low)}, {points(overall.high)}]"
    )
    if result.helps:
        return f"Chosen by {result.rule}: {result.chosen}. On the samples set aside: {numbers}; {report.verdict.title}."
    reason = f'the verdict on the samples set aside is "{report.verdict.title}"'
    if hard.low > 0 or overall.low > 0:
        reason += ", because after Bonferroni correction (4 tests) no gain is significant"
    sentence = (
        f"Nothing helps beyond noise: {result.rule} chose {result.chosen}, {numbers}; {reason}. No method was written."
    )
    return _with_rejected(sentence, result)


def _with_rejected(sentence: str, result: Repair) -> str:
    """The sentence, and which methods looked better on the samples set aside but were not chosen, why, and what to do."""
    if not result.rejected:
        return sentence
    named = "; ".join(f"{label}: {reason}" for label, reason in list(result.rejected.items())[:3])
    return (
        f"{sentence} An improvement on the samples set aside that the rule did not choose: {named}. To take it, choose by "
        "another --rule (best_hard allows any cost), or fit that method alone in Python (classgap.posthoc); as it "
        "is then chosen with these samples in view, confirm it on new ones."
    )


def _rows(result: Repair, overall: str) -> list[tuple[str, ...]]:
    from classgap.measure.render.plain import points

    def cell(comparison: Comparison, metric: str, *, crossed: bool = False) -> str:
        delta = (comparison.groups["cross"] if crossed else comparison.metrics)[metric].delta
        mark = " +" if delta.low > 0 else " −" if delta.high < 0 else ""
        return f"{points(delta.value)} [{points(delta.low)}, {points(delta.high)}]{mark}"

    return [
        (
            ("→ " if label == result.chosen else "") + label,
            cell(c.selection, "hard"),
            cell(c.selection, overall),
            cell(c.report, "hard", crossed=True),
            cell(c.report, overall),
            c.report.verdict.title,
        )
        for label, c in result.candidates.items()
    ]


_HEADS = ("method", "hard cv", "overall cv", "hard", "overall", "verdict")


def _table(result: Repair, overall: str) -> Table:
    from rich import box
    from rich.table import Table

    caption = (
        "cv: on the fitting part, what the rule sees; other columns: samples set aside, hard: classes hard before, cross-fitted; "
        "points with 95 % interval, + and − where it leaves out 0"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    # intervals of the choosing part are in methods.md: they do not fit a terminal
    for i, head in enumerate(_HEADS):
        table.add_column(head, justify="right" if 0 < i < 5 else "left", no_wrap=i < 5)
    for name, hard, balanced, *report in _rows(result, overall):
        choosing = hard.split(" ")[0], balanced.split(" ")[0]
        table.add_row(name, *choosing, *report, style="bold" if name.startswith("→") else "")
    return table


def methods_markdown(result: Repair, overall: str) -> str:
    """All methods as a Markdown table, with how they were fitted and chosen."""
    counted = "mean over classes" if overall == "balanced" else "mean over samples"
    lines = [
        "# Methods tried",
        "",
        "Differences to the uncorrected scores in points, with 95 % paired intervals; + and − mark those that leave out 0. "
        f'"cv" is cross-fitted and what the rule sees; the other columns are measured on {len(result.report_rows):,} samples '
        f'that had no say in any fit or choice, "hard" there on the classes hard before, cross-fitted. The verdict allows for '
        f"four tests (Bonferroni). Rule: {result.rule}. Overall: {counted}.",
        "",
        "| " + " | ".join(_HEADS) + " |",
        "|" + "---|" * len(_HEADS),
        *("| " + " | ".join(row) + " |" for row in _rows(result, overall)),
        "",
        _verdict(result),
        "",
        *(f"Left out: {name} ({reason})." for name, reason in result.skipped.items()),
    ]
    return "\n".join(lines) + "\n"


def _named(result: Repair, found: Predictions) -> Comparison:
    """The chosen method's comparison on the report part, with the file's class names and full bootstrap."""
    from classgap.measure import audit, compare

    assert result.chosen is not None
    samples = [
        r.samples
        for r in (*result.candidates[result.chosen].report.before, *result.candidates[result.chosen].report.after)
    ]
    before, after = (audit(s.y_true, s.y_pred, class_names=found.classes) for s in samples if s is not None)
    return compare(before, after)


def _write_method(result: Repair, found: Predictions, scores: NDArray[np.floating[Any]], out: Path) -> None:
    import numpy as np
    import polars as pl

    from classgap.checks import InputError
    from classgap.posthoc import save

    assert result.chosen is not None
    method = result.candidates[result.chosen].method
    names = np.asarray(found.classes)
    after = method.predict(scores, features=found.features)
    part = np.full(len(scores), "fit", dtype=object)
    part[result.report_rows] = "report"
    table = {"row": np.arange(len(scores)), "part": part, "true": names[found.y_true]} | (
        {} if found.ids is None else {"id": found.ids}
    )
    table |= {"before": names[scores.argmax(axis=1)], "after": names[after]}
    pl.DataFrame({k: v.tolist() for k, v in table.items()}).write_csv(out / "predictions.csv")
    method.classes_ = names
    save(method, out / "method")
    if found.weight is not None:
        from safetensors.numpy import save_file

        try:
            weight, bias = method.fold(found.weight, found.bias)
        except InputError:
            return  # DisAlign: nothing to fold
        save_file(
            {"weight": np.ascontiguousarray(weight), "bias": np.ascontiguousarray(bias)}, out / "head.safetensors"
        )
