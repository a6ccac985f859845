"""Short views of a report and of a comparison: one line at a Python prompt; verdict and two small tables in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from classgap.measure.render.plain import confidence_level, p_value, percent, points
from classgap.measure.statistics.metrics import label

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport, Estimate
    from classgap.measure.comparison import Change, Comparison

CLASSES_SHOWN = 5
_AUDIT_ROWS = ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_corrected", "gap", "gap_corrected")
_CHANGE_ROWS = ("overall", "balanced", "easy", "medium", "hard", "worst", "gap")
_NAME_LENGTH = 40


def audit_line(report: AuditReport) -> str:
    """The report in one line."""
    numbers = [f"{label(name)} {percent(report.metrics[name].value)}" for name in ("overall", "hard", "worst", "gap")]
    numbers[2] += f" ({_short(str(report.hardest(1)['name'][0]))})"
    size = f"{report.num_classes:,} classes, {report.num_samples:,} samples"
    return f"<AuditReport: {size}; {', '.join(numbers)}; homogeneity test {p_value(report.homogeneity.p_value)}>"


def comparison_line(comparison: Comparison) -> str:
    """The comparison in one line."""
    size = f"{comparison.num_classes:,} classes, {comparison.num_samples:,} samples"
    overall, hard = comparison.metrics["overall"], comparison.groups["cross"]["hard"]
    numbers = f"overall accuracy {_change(overall)}, classes that were hard before {_change(hard)}"
    return f"<Comparison: {_short(comparison.verdict.title)}; {size}; {numbers} points>"


def audit_html(report: AuditReport) -> str:
    """Verdict, main numbers with intervals, and the hardest classes."""
    interval = f"{confidence_level(report.confidence)} interval"
    headline = [(label(name), *_estimate(report.metrics[name])) for name in _AUDIT_ROWS if name in report.metrics]
    rows = [
        (str(r["name"]), f"{r['support']:,}", percent(r["accuracy"]), f"{percent(r['low'])} to {percent(r['high'])}")
        for r in report.hardest(CLASSES_SHOWN)
    ]
    return block(
        "Class audit",
        f"{report.num_classes:,} classes, {report.num_samples:,} samples",
        report.verdict,
        [
            ("Accuracy", ("", "value", interval), headline),
            (f"Hardest {len(rows)} classes", ("class", "samples", "accuracy", interval), rows),
        ],
        report.notes,
    )


def comparison_html(comparison: Comparison) -> str:
    """Verdict, changes of the main numbers with intervals, and the classes that changed significantly."""
    interval = f"{confidence_level(comparison.confidence)} interval"
    headline = [(label(name), *_cells(comparison.metrics[name])) for name in _CHANGE_ROWS if name in comparison.metrics]
    headline += [
        (f"classes that were {group} before", *_cells(change)) for group, change in comparison.groups["cross"].items()
    ]
    changed = comparison.per_class[comparison.per_class["significant"]]
    largest = changed[np.argsort(-np.abs(changed["delta"]), kind="stable")[: 2 * CLASSES_SHOWN]]
    rows = [
        (str(r["name"]), f"{r['support']:,}", percent(r["before"]), percent(r["after"]), points(r["delta"]),
         f"{points(r['low'])} to {points(r['high'])}")
        for r in largest
    ]  # fmt: skip
    columns = ("before", "after", "change (points)", interval)
    runs = (len(comparison.before), len(comparison.after))
    title = f"Classes with a significant change: {len(changed):,}"
    return block(
        "Class comparison",
        f"{comparison.num_classes:,} classes, {comparison.num_samples:,} samples"
        + (f", {runs[0]} runs before, {runs[1]} runs after" if max(runs) > 1 else ""),
        comparison.verdict.sentence,
        [
            ("Accuracy", ("", *columns), headline),
            (
                title + (f" (largest {len(rows)})" if len(changed) > len(rows) else ""),
                ("class", "samples", *columns),
                rows,
            ),
        ],
        comparison.notes,
    )


def block(
    title: str,
    size: str,
    verdict: str,
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
    notes: Sequence[str],
) -> str:
    """HTML without scripts or style sheets; it uses the colours of the notebook, light or dark."""
    parts = [f"<p><strong>{escape(title)}</strong> ({escape(size)})<br>{escape(verdict)}</p>"]
    parts += [_table(*table) for table in tables if table[2]]
    if notes:
        listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
        parts.append(f"<details><summary>Notes ({len(notes)})</summary><ul>{listed}</ul></details>")
    return f'<div class="classgap">{"".join(parts)}</div>'


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        aligned = (
            f'<{tag} style="text-align: {"left" if i == 0 else "right"}">{escape(cell)}</{tag}>'
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(aligned)}</tr>"

    body = "".join(line("td", row) for row in rows)
    caption = f'<caption style="text-align: left">{escape(caption)}</caption>'
    return f'<table class="dataframe">{caption}<thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def _estimate(estimate: Estimate) -> tuple[str, str]:
    return percent(estimate.value), f"{percent(estimate.low)} to {percent(estimate.high)}"


def _cells(change: Change) -> tuple[str, str, str, str]:
    delta = change.delta
    interval = f"{points(delta.low)} to {points(delta.high)}"
    return percent(change.before.value), percent(change.after.value), points(delta.value), interval


def _change(change: Change) -> str:
    return f"{points(change.delta.value)} [{points(change.delta.low)}, {points(change.delta.high)}]"


def _short(text: str) -> str:
    """``text`` on one line, shortened if it is long."""
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 1] + "…"
