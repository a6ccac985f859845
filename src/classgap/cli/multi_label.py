"""The measuring verbs with ``--multi-label``: one binary problem per label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgap.checks import InputError
from classgap.cli.paths import matching, title

if TYPE_CHECKING:
    from rich.console import Console

    from classgap import Columns, MultiLabelComparison, MultiLabelReport
    from classgap.posthoc import MultiLabelFix

_SHOWN = 10


def refuse(**options: Any) -> None:
    """Refuse options that mean nothing for multi-label data, instead of ignoring them."""
    for name, value in options.items():
        if value not in (None, False, [], ()):
            raise InputError(f"--{name.replace('_', '-')} cannot be used with --multi-label; leave it out")


def given_thresholds(threshold: float | None, file: Path | None) -> float | Mapping[str, float] | None:
    """One threshold for all labels, or those of a file by label; None if there are none."""
    from classgap.posthoc.label_thresholds import read_thresholds

    if threshold is not None and file is not None:
        raise InputError("give either --threshold, for all labels, or --thresholds, a file with one per label")
    if file is not None:
        return read_thresholds(file)
    return threshold


def audit_files(
    files: Sequence[str],
    columns: Columns,
    limits: float | Mapping[str, float] | None,
    names: Path | None,
    *,
    confidence: float,
    seed: int,
    **output: Any,
) -> None:
    """Audit multi-label files; ``output`` are the arguments of :func:`classgap.cli.output.finish`."""
    from classgap import MultiLabelPredictions, audit_labels
    from classgap.cli.output import finish, working
    from classgap.posthoc.label_thresholds import check_labels
    from classgap.predictions import read_names

    parts = [part for file in files for part in matching(file)]
    with working("measuring"):
        known = None if names is None else read_names(names)
        by_label = isinstance(limits, Mapping)
        found = MultiLabelPredictions.read(parts, columns, threshold=None if by_label else limits, label_names=known)
        if isinstance(limits, Mapping):
            check_labels(limits, found.labels)
            found = found.at_threshold({name: limits[name] for name in found.labels})
        report = audit_labels(found, confidence=confidence, seed=seed)
    finish(report, source=title(parts), **output)


def compare_files(
    before: Sequence[str],
    after: Sequence[str],
    columns: Columns,
    *,
    common: bool,
    confidence: float,
    source: str,
    **output: Any,
) -> None:
    """Compare two multi-label files."""
    from classgap import compare_labels
    from classgap.cli.output import finish, working

    if len(before) != 1 or len(after) != 1:
        raise InputError("compare --multi-label takes one file per side; compare several runs one by one")
    with working("comparing"):
        found = compare_labels(before[0], after[0], columns=columns, common=common, confidence=confidence)
    finish(found, source=source, **output)


def fix_files(files: Sequence[str], columns: Columns, names: Path | None, *, out: Path, **options: Any) -> None:
    """Fit thresholds to multi-label files and write the result folder."""
    from classgap import MultiLabelPredictions, fix_labels
    from classgap.cli.output import console, plain_table, working
    from classgap.posthoc.fixing_labels import COLUMNS
    from classgap.predictions import read_names

    parts = [part for file in files for part in matching(file)]
    with working("fitting"):
        known = None if names is None else read_names(names)
        found = MultiLabelPredictions.read(parts, columns, label_names=known)
        result = fix_labels(found, **options)
    screen = console()
    screen.print(f"{found.num_samples:,} samples, {found.num_labels:,} labels; {_split(result)}\n")
    screen.print(plain_table(COLUMNS, result.rows()))
    screen.print(result.verdict, style="bold")
    with working("writing"):
        result.save(out, source=title(parts))
    screen.print(f"Written to {out}", soft_wrap=True)


def _split(result: MultiLabelFix) -> str:
    aside = len(result.report_rows)
    return (
        f"fitted and chosen on {result.before.num_samples - aside:,} samples (cross-fitted), reported on the {aside:,} samples "
        "set aside"
    )


def print_labels(report: MultiLabelReport, out: Console) -> None:
    """Print the verdict, the aggregates and the labels with the lowest F1."""
    from rich.text import Text

    from classgap.cli.output import plain_table
    from classgap.measure.render.plain import confidence_level

    out.print(Text(report.verdict, style="bold"))
    level = confidence_level(report.confidence)
    out.print(f"{report.num_samples:,} samples, {report.num_labels:,} labels, {level} intervals\n")
    out.print(plain_table(("", "value", "interval"), report.headline_rows()))
    heads = ("label", "samples", "predicted", "F1", "interval", "recall", "interval", "precision", "interval")
    out.print(plain_table(heads, report.label_rows(_SHOWN), title="Labels with the lowest F1"))


def print_label_comparison(found: MultiLabelComparison, out: Console) -> None:
    """Print the verdict, macro and micro F1, and the labels that changed significantly."""
    from rich.text import Text

    from classgap.cli.output import plain_table

    out.print(Text(found.verdict.sentence, style="bold"))
    out.print(f"{found.num_samples:,} samples, {found.num_labels:,} labels\n")
    out.print(plain_table(found.headings(), found.headline_rows()))
    rows = found.label_rows(_SHOWN, changed=True)
    if rows:
        number = len(found.improved) + len(found.worsened)
        heads = found.label_headings()
        out.print(plain_table(heads, rows, title=f"Labels with a significant change of F1 ({number})"))
