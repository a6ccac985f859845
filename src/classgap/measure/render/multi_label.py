"""The pages of multi-label audits and comparisons, with their figures and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from classgap.measure.label_views import LabelViews
from classgap.measure.multi_label_compare import METHOD, MultiLabelComparison
from classgap.measure.multi_label_report import MEANINGS, SIDES, MultiLabelReport, side_label
from classgap.measure.render.chart_parts import Records, inline, sized, unit_axis
from classgap.measure.render.html import Charts, render_page, verdict_parts
from classgap.measure.render.page_tables import listing_table, records_table
from classgap.measure.render.plot import CHANGES, NAMED_CLASSES

if TYPE_CHECKING:
    from classgap.measure.audit_report import Estimate

_COLOURS = {"recall": "#3f8fd2", "precision": "#e8703a"}
_TILES = (("recall", "balanced"), ("recall", "worst"), ("recall", "gap"), ("precision", "balanced"), ("precision", "worst"),
          ("precision", "gap"))  # fmt: skip
_WORDS = {
    "balanced": "mean over the labels",
    "worst": "lowest of all labels",
    "gap": "highest minus lowest of all labels",
}
_TONES = {"better": "good", "worse": "bad", "some_worse": "bad"}
_OF = {
    "recall": "share of the samples with the label that are found",
    "precision": "share of the predictions of the label that are right",
}


def label_figures(report: MultiLabelReport) -> dict[str, alt.TopLevelMixin]:
    """The figures of a multi-label audit, by name."""
    return {"labels": recall_and_precision(report)}


def comparison_figures(comparison: MultiLabelComparison) -> dict[str, alt.TopLevelMixin]:
    """The figures of a multi-label comparison, by name."""
    return {"label_changes": f1_before_after(comparison)}


def recall_and_precision(report: MultiLabelReport, limit: int = NAMED_CLASSES) -> alt.TopLevelMixin:
    """Recall and precision of each label with intervals, lowest F1 first; with many labels only the first ones."""
    found = report.per_label[report.per_label["support"] > 0][:limit]
    rows: Records = [
        {"class": str(r["name"]), "measure": side, "value": _clean(r[side]), "low": _clean(r[f"{side}_low"]),
         "high": _clean(r[f"{side}_high"]), "samples": int(r["support"]), "offset": (-3.5, 3.5)[i]}
        for r in found
        for i, side in enumerate(SIDES)
        if math.isfinite(r[side])
    ]  # fmt: skip
    scale = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    colour = alt.Color("measure:N", scale=scale, legend=alt.Legend(title=None))
    tip = [alt.Tooltip("class:N", title="label"), "measure:N", alt.Tooltip("value:Q", format=".1%"),
           alt.Tooltip("low:Q", format=".1%", title="interval from"), alt.Tooltip("high:Q", format=".1%", title="to"),
           alt.Tooltip("samples:Q", format=",d")]  # fmt: skip
    base = alt.Chart(inline(rows)).encode(alt.Y("class:N", sort=None, title=None), alt.YOffset("measure:N", sort=SIDES))
    lines = base.mark_rule(strokeWidth=3, opacity=0.4).encode(
        alt.X("low:Q", title="recall and precision", **unit_axis()), alt.X2("high:Q"), colour, tooltip=tip
    )
    dots = base.mark_circle(size=46, opacity=1).encode(alt.X("value:Q"), colour, tooltip=tip)
    return sized(alt.layer(lines, dots), height=24 * len(found) + 10)


def f1_before_after(comparison: MultiLabelComparison, limit: int = NAMED_CLASSES) -> alt.TopLevelMixin:
    """F1 before and after of each label, largest gain first; with many labels only the largest changes."""
    found = comparison.per_label[~np.isnan(comparison.per_label["delta"])][::-1]
    if len(found) > limit:
        found = np.concatenate([found[: limit // 2], found[-(limit - limit // 2) :]])
    rows: Records = [
        {"class": str(r["name"]), "change": _kind(r)}
        | {key: _clean(r[key]) for key in ("before", "after", "delta", "low", "high", "q_value")}
        for r in found
    ]
    base = alt.Chart(inline(rows))
    place = alt.Y("class:N", sort=None, title=None)
    scale = alt.Scale(domain=list(CHANGES), range=list(CHANGES.values()))
    colour = alt.Color("change:N", scale=scale, legend=alt.Legend(title=None))
    shown = {"before": ".1%", "after": ".1%", "delta": "+.1%", "low": "+.1%", "high": "+.1%", "q_value": ".3g"}
    tip = [alt.Tooltip("class:N", title="label")] + [alt.Tooltip(f"{k}:Q", format=form) for k, form in shown.items()]
    start = alt.X("before:Q", title="F1", **unit_axis())
    bar = base.mark_rule(strokeWidth=3, opacity=0.6).encode(place, start, alt.X2("after:Q"), colour, tooltip=tip)
    before = base.mark_point(size=60, filled=False, strokeWidth=1.6).encode(place, start, colour, tooltip=tip)
    after = base.mark_circle(size=95, opacity=1).encode(place, alt.X("after:Q"), colour, tooltip=tip)
    return sized(alt.layer(bar, before, after), height=18 * len(rows) + 10)


def render(result: LabelViews, path: Path | str) -> None:
    """Write the page of an audit or a comparison."""
    if isinstance(result, MultiLabelComparison):
        render_label_comparison(result, path)
    elif isinstance(result, MultiLabelReport):
        render_labels(result, path)
    else:
        raise TypeError(f"result must be a multi-label audit or comparison, got {type(result).__name__}")


def render_labels(
    report: MultiLabelReport, path: Path | str | None = None, *, source: str = "", charts: Charts | None = None
) -> str:
    """The page of a multi-label audit, with the arguments of :func:`classgap.measure.render.html.render_audit`."""
    intervals = {key: (f"{key}_low", f"{key}_high") for key in ("recall", "precision", "specificity", "f1", "auc",
                 "average_precision")}  # fmt: skip
    first = ("name", "f1", "recall", "precision", "support", "predicted", "threshold")
    hidden = [bound for pair in intervals.values() for bound in pair]
    table = records_table(report.per_label, hidden, first, "labels", _COLUMNS)
    for column in table["columns"]:
        if column["key"] in intervals:
            column["interval"] = list(intervals[column["key"]])
    worst = [(str(r["name"]), float(r["f1"])) for r in report.per_label[report.per_label["support"] > 0][:5]]
    shown = min(NAMED_CLASSES, len(report.per_label))
    real = min(report.homogeneity.p_value, report.precision_homogeneity.p_value) < 1 - report.confidence
    return render_page(
        "labels.html.j2",
        {"tables": {"classes": table | {"sort": {"key": "f1", "down": False}}, "metrics": _metric_table(report)},
         "diagnoses": []},
        label_figures(report) if charts is None else charts, path,
        title="classgap audit" + (f": {source}" if source else ""), report=report, **verdict_parts(report.verdict),
        tone="bad" if real else "neutral", worst=worst, facts=[source] if source else [], tiles=_tiles(report),
        caption="All labels, lowest F1 first." if shown == len(report.per_label)
        else f"The {shown} of {len(report.per_label):,} labels with the lowest F1.",
        links=[("labels", "Labels"), ("classes", "All labels"), ("numbers", "Numbers")],
        notes=report.notes, confidence=report.confidence, seed=report.seed,
    )  # fmt: skip


def render_label_comparison(
    comparison: MultiLabelComparison,
    path: Path | str | None = None,
    *,
    source: str = "",
    charts: Charts | None = None,
) -> str:
    """The page of a multi-label comparison."""
    first = ("name", "support", "before", "after", "delta", "low", "high", "significant", "q_value", "recall_before",
             "recall_after", "precision_before", "precision_after")  # fmt: skip
    table = records_table(comparison.per_label, (), first, "labels", _COLUMNS)
    tiles = [
        {"name": "", "label": MEANINGS[name][0], "meaning": MEANINGS[name][1], "change": change,
         "tone": "up" if change.delta.low > 0 else "down" if change.delta.high < 0 else ""}
        for name, change in comparison.metrics.items()
    ]  # fmt: skip
    shown = min(NAMED_CLASSES, comparison.num_labels)
    return render_page(
        "label_comparison.html.j2",
        {"tables": {"classes": table | {"sort": {"key": "delta", "down": False}}}, "diagnoses": []},
        comparison_figures(comparison) if charts is None else charts, path,
        title="classgap compare" + (f": {source}" if source else ""), comparison=comparison,
        **verdict_parts(comparison.verdict.sentence, comparison.verdict.headline),
        tone=_TONES.get(comparison.verdict.kind, "neutral"), facts=[source] if source else [], tiles=tiles,
        caption="All labels, largest gain first." if shown == comparison.num_labels
        else f"The {shown} of {comparison.num_labels:,} labels with the largest gains and losses.",
        changed=_significant(comparison), method=METHOD,
        links=[("changes", "Changes"), ("classes", "All labels")],
        notes=comparison.notes, confidence=comparison.confidence, seed=None,
    )  # fmt: skip


# ---------------------------------------------------------------- parts

# key: (heading, kind, meaning), beside those of the page of classes
_COLUMNS = {
    "name": ("label", "text", "name of the label"),
    "support": ("samples", "int", "number of samples that have the label"),
    "predicted": ("predicted", "int", "number of samples that are predicted to have the label"),
    "recall": ("recall", "share", f"{_OF['recall']}; the bar shows the interval"),
    "precision": ("precision", "share", f"{_OF['precision']}; the bar shows the interval"),
    "specificity": ("specificity", "share", "share of the samples without the label that are predicted not to have it"),
    "f1": ("F1", "share", "harmonic mean of recall and precision; the bar shows the interval"),
    "threshold": ("threshold", "number", "probability from which the label is predicted"),
    "threshold_before": ("threshold before", "number", "probability from which the label is predicted"),
    "threshold_after": ("threshold after", "number", "probability from which the label is predicted"),
    "before": ("F1 before", "share", "F1 before"),
    "after": ("F1 after", "share", "F1 after"),
    "delta": ("change", "points", "F1 after minus before, in percentage points"),
    "recall_before": ("recall before", "share", _OF["recall"]),
    "recall_after": ("recall after", "share", _OF["recall"]),
    "precision_before": ("precision before", "share", _OF["precision"]),
    "precision_after": ("precision after", "share", _OF["precision"]),
    "q_value": ("q", "number", "p-value after Benjamini-Hochberg correction over the labels"),
    "auc": ("ROC AUC", "share", "probability that a sample with the label gets a higher score than one without"),
    "average_precision": ("average precision", "share", "area under the curve of precision by recall"),
}


def _tiles(report: MultiLabelReport) -> list[dict[str, Any]]:
    tiles: list[dict[str, Any]] = [
        {"name": "", "label": MEANINGS[name][0], "meaning": MEANINGS[name][1], "estimate": report.metrics[name],
         "corrected": None}
        for name in MEANINGS
    ]  # fmt: skip
    for side, name in _TILES:
        group: Mapping[str, Estimate] = report.groups[side]
        meaning = f"{_WORDS[name]}; {side} is the {_OF[side]}"
        tiles.append({"name": name, "label": side_label(side, name), "meaning": meaning, "estimate": group[name],
                      "corrected": group.get(f"{name}_corrected")})  # fmt: skip
    return tiles


def _metric_table(report: MultiLabelReport) -> dict[str, Any]:
    rows: list[Sequence[Any]] = [
        (MEANINGS[name][0], e.value, e.low, e.high) for name, e in report.metrics.items() if name in MEANINGS
    ]
    rows += [
        (side_label(side, name), e.value, e.low, e.high)
        for side, found in report.groups.items()
        for name, e in found.items()
    ]
    columns = [
        ("name", "number", "text"),
        ("value", "value", "share"),
        ("low", "from", "share"),
        ("high", "to", "share"),
    ]
    return listing_table("numbers", columns, rows)


def _significant(comparison: MultiLabelComparison) -> str:
    def names(rows: Any) -> str:
        listed = ", ".join(f"{r['name']} ({100 * r['delta']:+.1f})".replace("-", "−") for r in rows[:5])
        return listed + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")

    parts = [
        f"Labels that {verb} significantly: {names(rows)}." if len(rows) else f"No label {verb} significantly."
        for verb, rows in (("improved", comparison.improved), ("got worse", comparison.worsened))
    ]
    return " ".join(parts)


def _kind(record: Any) -> str:
    if not record["significant"]:
        return "not significant"
    return "improved" if record["delta"] > 0 else "got worse"


def _clean(value: Any) -> float | None:
    return round(float(value), 7) if math.isfinite(value) else None
