"""Optional parts of a report (slices …), described once: page, terminal and Markdown show the same text and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from classgap.measure.render.plain import confidence_level, percent, points

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from classgap.measure.audit_report import AuditReport
    from classgap.measure.diagnostics.prediction_sets import PredictionSetReport
    from classgap.measure.diagnostics.threshold import Threshold
    from classgap.measure.statistics.slices import SliceColumn

SHOWN = 12  # rows of a table on the terminal and in Markdown


@dataclass(frozen=True)
class Listing:
    """A table: each column is (key, heading, kind); kinds are those of the page (text, int, share, points, number, flag).

    ``terminal`` says whether the terminal shows the table too, as the page and the Markdown always do.
    """

    key: str
    title: str
    columns: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    more: str = "rows"
    terminal: bool = True

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(heading for _, heading, _ in self.columns)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The first rows as text."""
        kinds = [kind for _, _, kind in self.columns]
        return [tuple(_text(value, kind) for value, kind in zip(row, kinds, strict=True)) for row in self.rows[:SHOWN]]

    @property
    def remark(self) -> str:
        """How many rows are not shown; empty if none."""
        left = len(self.rows) - SHOWN
        return f"… and {left:,} more {self.more} in report.html and report.json" if left > 0 else ""


@dataclass(frozen=True)
class Section:
    """Text and tables of one part of a report; ``figures`` are (name, title, caption) of charts of the page."""

    key: str
    title: str
    text: tuple[str, ...]
    listings: tuple[Listing, ...]
    figures: tuple[tuple[str, str, str], ...] = ()


def sections(report: AuditReport) -> list[Section]:
    """The optional parts that this report has."""
    found = []
    if report.threshold is not None:
        found.append(_threshold(report.threshold))
    if report.slices is not None:
        found += [_slices(column, number) for number, column in enumerate(report.slices.columns.values())]
    if report.prediction_sets is not None:
        found.append(_sets(report, report.prediction_sets))
    if not report.weighted:
        found.append(_test_samples(report))
    return found


def listing(
    key: str,
    title: str,
    columns: Sequence[tuple[str, str, str]],
    records: NDArray[np.void],
    more: str,
    *,
    terminal: bool = True,
) -> Listing:
    """A table of the named fields of records."""
    rows = zip(*(records[name].tolist() for name, _, _ in columns), strict=True)
    return Listing(key, title, tuple(columns), tuple(rows), more, terminal)


def _text(value: Any, kind: str) -> str:
    if kind in ("share", "points"):
        return percent(value) if kind == "share" else points(value)
    if kind == "int":
        return f"{value:,}"
    if kind == "number":
        return "–" if math.isnan(value) else f"{value:.2g}"
    return ("yes" if value else "") if kind == "flag" else str(value)


def _threshold(found: Threshold) -> Section:
    first, second = found.positive, found.negative
    columns = (("threshold", "threshold", "number"), ("positive_accuracy", f"accuracy of {first}", "share"),
               ("positive_low", "from", "share"), ("positive_high", "to", "share"),
               ("negative_accuracy", f"accuracy of {second}", "share"), ("negative_low", "from", "share"),
               ("negative_high", "to", "share"), ("overall", "overall", "share"), ("balanced", "balanced", "share"),
               ("precision", f"precision of {first}", "share"), ("mark", "", "text"))  # fmt: skip
    used = "" if math.isnan(found.used) else f" The predictions of this report use {found.used:.3g}."
    text = (
        f"'{first}' is predicted where its probability is at least the threshold: a lower threshold finds more samples of "
        f"'{first}' and misjudges more of '{second}'.{used}",
        "The thresholds marked as equal accuracy and as highest balanced accuracy were found on these samples, so choose one on "
        "validation data and check it on test data.",
    )
    return Section(
        "threshold",
        "Threshold",
        text,
        (listing("threshold", "Accuracy of both classes by threshold", columns, found.table, "thresholds"),),
        (
            (
                "threshold_curve",
                "Accuracy of both classes by threshold",
                "The predictions of this report were not made with a threshold."
                if found.used != found.used
                else "The dashed line is the threshold of this report.",
            ),
        ),
    )


def _sets(report: AuditReport, found: PredictionSetReport) -> Section:
    """Classes in the order of their coverage with a common threshold."""
    import numpy as np

    numbers = found.summary()
    level = confidence_level(found.coverage)
    order = np.argsort(found.common, kind="stable")
    order = order[: int((found.support > 0).sum())]
    columns = (("class", "class", "text"), ("samples", "samples", "int"), ("common", "common threshold", "share"),
               ("common_size", "mean size", "number"), ("own", "threshold per class", "share"), ("low", "from", "share"),
               ("high", "to", "share"), ("own_size", "mean size", "number"))  # fmt: skip
    fields = (
        found.support,
        found.common,
        found.common_size,
        found.per_class,
        found.low,
        found.high,
        found.per_class_size,
    )
    rows = tuple((report.classes[k], *(field[k].item() for field in fields)) for k in order)
    text = (
        f"A prediction set holds all classes that are probable enough, so that the true class is in it for {level} of the "
        f"samples. With one threshold for all classes the sets have {numbers['common_set_size']:.1f} classes on average, but the "
        f"class that is covered least is in its set only in {percent(numbers['common_set_lowest_coverage'])}. With one threshold "
        f"per class every class is promised {level}; the sets have {numbers['class_set_size']:.1f} classes on average.",
        "Thresholds are set on one half of the samples and evaluated on the other half, and the other way round.",
    )
    table = Listing(
        "prediction_sets", "How often the set holds the true class", columns, rows, "classes", terminal=False
    )
    return Section("sets", "Prediction sets", text, (table,))


def _test_samples(report: AuditReport) -> Section:
    wanted, more = 0.05, 100
    columns = (("name", "class", "text"), ("support", "samples", "int"), ("accuracy", "accuracy", "share"),
               ("half_width", "± now", "share"), ("half_width_with_more", f"± with {more} more", "share"),
               ("needed", "more samples for ± 5 points", "int"), ("needed_at_most", "at most", "int"))  # fmt: skip
    records = report.more_test_samples(wanted, more=more)
    text = (
        f"Half the length of the {confidence_level(report.confidence)} interval of each class, as it is, as expected with {more} "
        "more test samples of the class, and the number of further samples for ± 5 points: at the observed accuracy, and at the "
        "accuracy within the interval that needs most samples.",
    )
    table = listing("test_samples", "Widest intervals first", columns, records, "classes", terminal=False)
    return Section("planning", "How many more test samples", text, (table,))


def _slices(column: SliceColumn, number: int) -> Section:
    difference = (("difference", "difference", "points"), ("difference_low", "from", "points"),
                  ("difference_high", "to", "points"), ("q_value", "q", "number"),
                  ("significant", "significant", "flag"))  # fmt: skip
    slices = (
        ("name", column.name, "text"),
        ("support", "samples", "int"),
        ("accuracy", "accuracy", "share"),
        *difference,
    )
    cells = (("class", "class", "text"), ("slice", column.name, "text"), ("support", "samples", "int"),
             ("accuracy", "accuracy", "share"), ("corrected", "without sampling noise", "share"),
             ("other_accuracy", "rest of the class", "share"), *difference)  # fmt: skip
    gaps = (("name", "class", "text"), ("cells", "cells", "int"), ("worst_slice", "worst slice", "text"), ("gap", "gap", "share"),
            ("gap_corrected", "without sampling noise", "share"), ("low", "from", "share"), ("high", "to", "share"),
            ("q_value", "q", "number"), ("significant", "significant", "flag"))  # fmt: skip
    per_class = column.per_class[column.per_class["cells"] > 1]
    text = (
        column.verdict,
        "A difference is to the other slices of the same classes, in percentage points; q is the p-value after "
        "Benjamini-Hochberg correction.",
        *((f"{column.pooled[0].upper()}{column.pooled[1:]}.",) if column.pooled else ()),
    )
    return Section(
        f"slices_{number}",
        f"Slices by {column.name}",
        text,
        (
            listing(f"slices_{number}", "Slices", slices, column.per_slice, "slices"),
            listing(
                f"cells_{number}",
                "Classes within slices, worst first",
                cells,
                column.cells,
                "cells",
                terminal=column.real,
            ),
            listing(
                f"slice_gaps_{number}", "Gap between the slices of a class", gaps, per_class, "classes", terminal=False
            ),
        ),
    )
