"""Output of the measuring verbs: Rich tables on the terminal, report files, results of conditions, progress."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from classgap.checks import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Comparison
    from classgap.measure.gate import Measured, Outcome
    from classgap.predictions import Progress

_WORST_SHOWN = 10
_PAIRS_SHOWN = 5


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Standard output or standard error; 120 characters wide where it is not a terminal.

    Text is printed as it is: brackets and colons in the name of a class or file are no markup, and control characters are shown.
    """
    from rich.console import Console
    from rich.text import Text

    class Screen(Console):
        def on_broken_pipe(self) -> None:  # Rich exits with code 1, which is the code of a failed gate
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    return Screen(stderr=stderr, quiet=quiet, width=width, highlight=False, markup=False, emoji=False)


def echo(text: str, *, err: bool = False) -> None:
    """Print lines without a limit of their width."""
    typer.echo(visible(text), err=err)


def visible(text: str) -> str:
    """Lines without characters that a terminal would act on."""
    return "\n".join(map(printable, text.split("\n")))


@contextlib.contextmanager
def working(what: str) -> Iterator[Progress]:
    """A spinner or a progress bar on standard error; nothing where standard error is not a terminal."""
    if not sys.stderr.isatty():  # Rich before 14.3 prints an empty line for a disabled bar
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_audit(report: AuditReport, out: Console) -> None:
    """Print the verdict, the main numbers, the groups, the worst classes and their causes."""
    from rich.text import Text

    from classgap.measure.render.plain import confidence_level

    level = confidence_level(report.confidence)
    out.print(Text(report.verdict, style="bold"))
    out.print(f"{report.num_samples:,} samples, {report.num_classes:,} classes, {level} intervals\n")
    out.print(_headline_table(report))
    out.print(_group_table(report))
    out.print(_worst_table(report))
    known = [d for d in report.diagnoses if d.causes]
    for diagnosis in known[:_WORST_SHOWN]:
        line = Text(f"{diagnosis.name}: ", style="bold")
        line.append(diagnosis.causes[0].sentence, style="not bold")
        out.print(line)
    if len(known) > _WORST_SHOWN:
        out.print(
            f"… and {len(known) - _WORST_SHOWN} more classes with a cause (write the full report with --out DIR)",
            style="dim",
        )
    _print_sections(report, out)
    _print_notes(report.notes, out)


def print_comparison(comparison: Comparison, out: Console) -> None:
    """Print the verdict, the changes of the main numbers and groups, and the classes that changed significantly."""
    from rich.text import Text

    from classgap.measure.audit_report import HEADLINES
    from classgap.measure.render.plain import confidence_level, deviation, percent, points
    from classgap.measure.statistics.metrics import label

    out.print(Text(comparison.verdict.sentence, style="bold"))
    seeds = f", {len(comparison.before)} runs before, {len(comparison.after)} after" if comparison.several_runs else ""
    out.print(f"{comparison.num_samples:,} samples, {comparison.num_classes:,} classes{seeds}\n")
    stds = ("std over runs before", "after") if comparison.several_runs else ()
    table = _table("", "before", "after", "change", f"{confidence_level(comparison.confidence)} interval", *stds)
    rows = [(label(name), comparison.metrics[name]) for name in HEADLINES]
    rows += [(f"{group} ({ranking} ranking)", change) for ranking in ("reference", "cross")
             for group, change in comparison.groups.get(ranking, {}).items()]  # fmt: skip
    for name, c in rows:
        style = "green" if c.delta.low > 0 else "red" if c.delta.high < 0 else ""
        interval = f"{points(c.delta.low)} … {points(c.delta.high)}"
        cells = (deviation(c.before_run_std), deviation(c.after_run_std)) if comparison.several_runs else ()
        values = percent(c.before.value), percent(c.after.value), points(c.delta.value)
        table.add_row(name, *values, interval, *cells, style=style)
    out.print(table)
    for title, records in (
        ("Classes that improved significantly", comparison.improved),
        ("Classes that got worse significantly", comparison.worsened),
    ):
        if len(records):
            out.print(_changed_table(f"{title} ({len(records)})", records, comparison.confidence))
    _print_confusions(comparison, out)
    _print_notes(comparison.notes, out)


def finish(
    result: Measured,
    *,
    out: Path | None,
    as_json: bool,
    fail_if: Sequence[str],
    source: str,
    below: float = 0.1,
) -> None:
    """Print or write the result, then tell the --fail-if conditions; ``below`` is the limit of suspected labels."""
    from classgap.measure.gate import check
    from classgap.measure.render.folder import write_report

    screen, outcomes = console(), check(result, fail_if)  # a condition may be refused: then nothing is written
    if out is not None:
        with working("writing the report"):
            write_report(result, out, source, below=below)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result, screen)
    if out is not None and not as_json:
        screen.print(f"\nReport: {out / 'report.html'}", soft_wrap=True)
        for name, what in (("mistakes.csv", "All mistakes"), ("mislabelled.csv", "Labels to check")):
            if (out / name).exists():
                screen.print(f"{what}: {out / name}", soft_wrap=True)
    tell_outcomes(outcomes)


def _print(result: Measured, screen: Console) -> None:
    from classgap.cli import multi_label
    from classgap.measure import Comparison, MultiLabelComparison, MultiLabelReport

    if isinstance(result, Comparison):
        print_comparison(result, screen)
    elif isinstance(result, MultiLabelReport):
        multi_label.print_labels(result, screen)
        _print_notes(result.notes, screen)
    elif isinstance(result, MultiLabelComparison):
        multi_label.print_label_comparison(result, screen)
        _print_notes(result.notes, screen)
    else:
        print_audit(result, screen)


def check_output(out: Path | None, fail_if: Sequence[str] | None = None, below: float = 0.1) -> None:
    """Reject a folder that cannot be written, a condition that cannot be parsed and a wrong limit before any work is done."""
    from classgap.checks import fraction
    from classgap.measure.gate import parse
    from classgap.writing import check_folder

    if out is not None:
        check_folder(out)
    for text in fail_if or ():
        parse(text)
    fraction("--mislabelled-below", below)


def tell_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print the result of each condition on standard error; exit with code 1 if one is true."""
    for found in outcomes:
        echo(f"gate {found.sentence}", err=True)
    if any(found.failed for found in outcomes):
        raise typer.Exit(1)


# ---------------------------------------------------------------- tables


def _table(*heads: str, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for i, head in enumerate(heads):
        # In a narrow terminal a cell takes several lines; "75…" instead of "75.2 %" would be another number.
        table.add_column(head, justify="left" if i == 0 else "right", overflow="fold", min_width=4)
    return table


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """A table of text; the rows marked with an arrow are bold."""
    from rich.text import Text

    table = _table(*heads, title=title)
    for row in rows:
        table.add_row(*map(Text, row), style="bold" if row[0].startswith("→") else "")
    return table


def _interval(estimate: Any) -> str:
    from classgap.measure.render.plain import percent

    return f"{percent(estimate.low).removesuffix(' %')} – {percent(estimate.high)}"


def _headline_table(report: AuditReport) -> Table:
    from classgap.measure.audit_report import HEADLINES
    from classgap.measure.render.plain import percent
    from classgap.measure.statistics.metrics import label

    table = _table("", "accuracy", "interval", "without sampling noise", "interval")
    for name in HEADLINES:
        found, clean = report.metrics[name], report.metrics.get(f"{name}_corrected")
        corrected = ("", "") if clean is None else (percent(clean.value), _interval(clean))
        table.add_row(label(name), percent(found.value), _interval(found), *corrected)
    return table


def _group_table(report: AuditReport) -> Table:
    from classgap.measure.render.plain import percent

    table = _table("ranking", "easy", "medium", "hard", title="Mean class accuracy per group of classes")
    for ranking, groups in report.groups.items():
        frequency = ranking == "frequency"
        cells = []
        for name, e in groups.items():
            shown = percent(e.value) if math.isnan(e.value) else f"{percent(e.value)} [{_interval(e)}]"
            cells.append(f"{name} {shown}" if frequency else shown)
        table.add_row(ranking, *cells)
    return table


def _worst_table(report: AuditReport) -> Table:
    from rich.text import Text

    from classgap.measure.audit_report import Estimate
    from classgap.measure.diagnostics.geometry.embedding import most_frequent_error
    from classgap.measure.render.plain import percent

    table = _table(
        "class", "samples", "accuracy", "interval", "precision", "most frequent error", title="Worst classes"
    )
    index = {name: k for k, name in enumerate(report.classes)}
    for row in report.hardest(_WORST_SHOWN):
        k = index[str(row["name"])]
        other = most_frequent_error(report, k)
        share = 0.0 if other is None else report.confusion.counts[k, other] / row["support"]
        error = "" if other is None else f"{report.classes[other]} ({percent(share)})"
        interval = _interval(Estimate(row["accuracy"], row["low"], row["high"]))
        cells = (f"{row['support']:,}", percent(row["accuracy"]), interval, percent(row["precision"]))
        table.add_row(Text(str(row["name"])), *cells, Text(error))
    return table


def _print_sections(report: AuditReport, out: Console) -> None:
    """Print the optional parts of a report: verdict first, then its tables."""
    from rich.text import Text

    from classgap.measure.render.sections import sections

    for section in sections(report):
        if not any(part.terminal for part in section.listings):
            continue
        out.print(Text(f"\n{section.title}", style="bold underline"))
        for sentence in section.text:
            out.print(Text(sentence))
        for part in (listing for listing in section.listings if listing.terminal):
            table = _table(*part.headings, title=part.title)
            for cells in part.cells:
                table.add_row(*(Text(cell) for cell in cells))
            out.print(table)
            if part.remark:
                out.print(part.remark, style="dim")


def _changed_table(title: str, records: Any, confidence: float) -> Table:
    from rich.text import Text

    from classgap.measure.render.plain import confidence_level, percent, points

    table = _table(
        "class", "samples", "before", "after", "change", f"{confidence_level(confidence)} interval", "q", title=title
    )
    for row in records[:_WORST_SHOWN]:
        interval = f"{points(row['low'])} … {points(row['high'])}"
        table.add_row(Text(str(row["name"])), f"{row['support']:,}", percent(row["before"]), percent(row["after"]),
                      points(row["delta"]), interval, f"{row['q_value']:.2g}")  # fmt: skip
    return table


def _print_confusions(comparison: Comparison, out: Console) -> None:
    """The confusions that changed most, as numbers of samples."""
    from rich.text import Text

    pairs = comparison.confusions(_PAIRS_SHOWN).rows(named=True)
    if not any(pair["change"] for pair in pairs):
        return
    table = _table(
        "true", "predicted", "before", "after", "change", title="Confusions that changed most (samples, not tested)"
    )
    for pair in pairs:
        numbers = (f"{pair['before']:,.10g}", f"{pair['after']:,.10g}", f"{pair['change']:+,.10g}")
        table.add_row(Text(pair["true"]), Text(pair["predicted"]), *numbers)
    out.print(table)


def _print_notes(notes: Sequence[str], out: Console) -> None:
    from rich.text import Text

    for note in notes:
        out.print(Text(f"note: {note}", style="dim"))
