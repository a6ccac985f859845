"""Figures of an audit or a comparison, one function each, as Altair charts; :func:`save` writes PNG or SVG.

    from classgap.measure.render import plot
    plot.save(plot.accuracy_by_class(report), "accuracy.png")

Every chart works for 3 classes and for 1000: few classes are listed by name, many classes are drawn by rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import altair as alt
import numpy as np

from classgap.checks import InputError, one_of
from classgap.measure.diagnostics.geometry.embedding import Projection, embed
from classgap.measure.diagnostics.margins import HISTOGRAM_BINS
from classgap.measure.render.chart_parts import Records, inline, sized, unit_axis
from classgap.measure.render.curves import precision_recall, threshold_curve
from classgap.writing import write

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Comparison

Theme = Literal["light", "dark"]

# Blue and orange are distinguishable with every kind of colour vision and on both backgrounds.
GROUPS = {"easy": "#3f8fd2", "medium": "#8f9aa6", "hard": "#e8703a"}
CHANGES = {"improved": "#2f9e77", "got worse": "#d8476b", "not significant": "#8f9aa6"}
NAMED_CLASSES = 45
DRAWN_CLASSES, DRAWN_ENDS = 2000, 200  # more classes are thinned out, but for those at either end
_PERCENT = ".0%"
_PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# The place for text in a picture file is measured when it is written, so its fonts must have the same widths everywhere.
_FILE_FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"


def theme_config(theme: Theme, font: str = _PAGE_FONT) -> dict[str, Any]:
    """Vega-Lite configuration of a theme, for the page and for picture files."""
    ink, faint, grid = ("#1d232b", "#5c6773", "#e4e8ec") if theme == "light" else ("#e8ecf1", "#9aa6b3", "#2c343d")
    text = {"font": font, "labelFont": font, "titleFont": font}
    return {
        "background": "transparent",
        "font": font,
        "view": {"stroke": None},
        "axis": text
        | {
            "labelColor": faint, "titleColor": faint, "gridColor": grid, "domainColor": grid, "tickColor": grid,
            "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12, "labelLimit": 150,
            "labelOverlap": "greedy", "labelSeparation": 6, "labelFlush": False,
        },
        "legend": text
        | {
            "labelColor": ink, "titleColor": faint, "labelFontSize": 12, "titleFontWeight": "normal", "orient": "top",
            "symbolBaseFillColor": faint, "columns": 4,
        },
        "title": {"color": ink, "subtitleColor": faint, "font": font, "anchor": "start", "fontSize": 14},
        "text": {"color": ink, "font": font},
        "rule": {"color": faint},
    }  # fmt: skip


def save(chart: alt.TopLevelMixin, path: Path | str, *, theme: Theme = "light") -> Path:
    """Write a chart as PNG (twice the screen resolution) or SVG, without a browser."""
    path = Path(path)
    one_of("theme", theme, ("light", "dark"))
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"path must end in .png or .svg, got {path.name!r}")
    import vl_convert

    config = theme_config(theme, _FILE_FONT) | {"background": "#ffffff" if theme == "light" else "#14181d"}
    spec = chart.to_dict() | {"config": config}
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    if path.suffix == ".png":
        return write(path, vl_convert.vegalite_to_png(spec, vl_version=version, scale=2))
    return write(path, vl_convert.vegalite_to_svg(spec, vl_version=version))


def figures(result: AuditReport | Comparison) -> dict[str, alt.TopLevelMixin]:
    """Every figure for which the result has data, by name."""
    from classgap.measure.comparison import Comparison

    if isinstance(result, Comparison):
        return {"dumbbells": dumbbells(result), "before_after": before_after(result)}
    made: dict[str, alt.TopLevelMixin | None] = {
        "accuracy_by_class": accuracy_by_class(result),
        "worst_pairs": worst_pairs(result),
        "spread_accuracy": spread_accuracy(result),
        "margins": margins(result),
        "max_distances": max_distances(result),
        "reliability": reliability(result),
        "embedding": embedding(result),
        "threshold_curve": threshold_curve(result),
        "precision_recall": precision_recall(result),
    }
    return {name: chart for name, chart in made.items() if chart is not None}


# ---------------------------------------------------------------- audit


def accuracy_by_class(report: AuditReport) -> alt.TopLevelMixin:
    """Accuracy of every class with its interval, best class first; coloured by third."""
    rows = _class_rows(report, ("support",))
    rows.sort(key=lambda row: -row["accuracy"])
    for rank, row in enumerate(rows, 1):
        row["rank"] = rank
    total, rows = len(rows), _thinned(rows)
    base = alt.Chart(inline(rows))
    listed = len(rows) <= NAMED_CLASSES
    if listed:
        place = alt.Y("class:N", sort=None, title=None)
        value, low, high = "accuracy", alt.X("low:Q", title="accuracy", **unit_axis()), alt.X2("high:Q")
        intervals = base.mark_rule(strokeWidth=2, opacity=0.55).encode(place, low, high)
        points = base.mark_circle(size=80, opacity=1).encode(place, alt.X(f"{value}:Q"))
    else:
        across = alt.X("rank:Q", title="classes, best first", scale=alt.Scale(domain=[0, total + 1], nice=False))
        up = alt.Y("low:Q", title="accuracy", **unit_axis())
        width = max(0.6, min(4.0, 500 / len(rows)))
        intervals = base.mark_rule(strokeWidth=width, opacity=0.45).encode(across, up, alt.Y2("high:Q"))
        points = base.mark_circle(size=max(10, min(46, 5000 / len(rows))), opacity=1).encode(
            across, alt.Y("accuracy:Q")
        )
    colour, tip = _group_colour(), _tooltip(accuracy="accuracy", low="interval from", high="to", support="samples")
    mean = alt.Chart(inline([{"mean": _clean(report.balanced.value)}])).mark_rule(strokeDash=[4, 4])
    mean = mean.encode(alt.X("mean:Q") if listed else alt.Y("mean:Q"))
    chart = alt.layer(mean, intervals.encode(colour, tooltip=tip), points.encode(colour, tooltip=tip))
    return sized(chart, height=18 * len(rows) + 10 if listed else 320)


def worst_pairs(report: AuditReport, limit: int = 24) -> alt.TopLevelMixin | None:
    """Confusion among the classes of the most frequent confusions, as share of the true class; without the diagonal."""
    order: list[int] = []
    for pair in _pair_indices(report, 4 * limit):
        for k in pair:
            if k not in order and len(order) < limit:
                order.append(k)
    if not order:
        return None
    block = _block(report, order)
    support = np.maximum(report.per_class["support"][order], 1)
    names = [report.classes[k] for k in order]
    rows = [
        {"true": names[i], "predicted": names[j], "row": i, "column": j, "count": int(block[i, j]),
         "share": round(float(block[i, j] / support[i]), 4)}
        for i in range(len(order))
        for j in range(len(order))
        if i != j
    ]  # fmt: skip
    # Sorted by a number: with a list of names, Vega-Lite would write the names into an expression.
    across, down = alt.EncodingSortField("column", "min"), alt.EncodingSortField("row", "min")
    axis = alt.Axis(labelAngle=-50, orient="top", labelLimit=90)
    chart = alt.Chart(inline(rows)).mark_rect(cornerRadius=2).encode(
        alt.X("predicted:N", sort=across, axis=axis, title="predicted"),
        alt.Y("true:N", sort=down, title="true"),
        alt.Color("share:Q", scale=alt.Scale(range=["#e8703a14", "#e8703a"], domainMin=0),
                  legend=alt.Legend(title="share of the true class", format=_PERCENT, gradientLength=140)),
        tooltip=[alt.Tooltip("true:N"), alt.Tooltip("predicted:N"), alt.Tooltip("share:Q", format=".1%"), "count:Q"],
    )  # fmt: skip
    # the last name, which is written aslant, reaches beyond the chart
    padding = {"left": 5, "top": 5, "right": 45, "bottom": 5}
    return sized(chart, height=max(120, 20 * len(order))).properties(padding=padding)


def spread_accuracy(report: AuditReport) -> alt.TopLevelMixin | None:
    """Spread of a class's features against its accuracy; None without features."""
    if "spread" not in (report.per_class.dtype.names or ()):
        return None
    rows = [row for row in _class_rows(report, ("spread", "support")) if row["spread"] is not None]
    if not rows:
        return None
    rows = _thinned(sorted(rows, key=lambda row: -row["accuracy"]))
    colour, tip = _group_colour(), _tooltip(accuracy="accuracy", spread="spread", support="samples")
    points = alt.Chart(inline(rows)).mark_circle(size=max(20, min(90, 9000 / len(rows))), opacity=0.85)
    points = points.encode(
        alt.X("spread:Q", title="spread of the class's features ‖s‖", scale=alt.Scale(zero=False)),
        alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format=_PERCENT), scale=alt.Scale(zero=False, domainMax=1)),
        colour, tooltip=tip,
    )  # fmt: skip
    trend = (
        alt.Chart(inline(rows))
        .transform_regression("spread", "accuracy")
        .mark_line(strokeDash=[4, 4], color="#8f9aa6", clip=True)
    )
    layers = [points] if len(rows) < 3 else [trend.encode(x="spread:Q", y="accuracy:Q"), points]
    return sized(alt.layer(*layers), height=300)


def margins(report: AuditReport) -> alt.TopLevelMixin | None:
    """Distribution of the logit margin in each third of classes; None without scores."""
    if report.margins is None:
        return None
    found = report.margins.logit
    rows = _distributions(report, "margin", found.edges, found.counts)
    zero = alt.Chart(inline([{"margin": 0}])).mark_rule(strokeDash=[4, 4]).encode(x="margin:Q")
    return sized(alt.layer(_areas(rows, "margin", "logit margin"), zero), height=260)


def max_distances(report: AuditReport) -> alt.TopLevelMixin | None:
    """Distribution of each sample's largest distance within its class, in each third of classes; None without features."""
    if report.geometry is None or report.samples is None or not report.geometry.spread.largest_norm:
        return None
    spread = report.geometry.spread
    distance = spread.max_distance / spread.largest_norm
    edges = np.linspace(0.0, max(float(distance.max()), 1e-6), HISTOGRAM_BINS + 1)
    place = np.clip(np.searchsorted(edges, distance, side="right") - 1, 0, HISTOGRAM_BINS - 1)
    counts = np.zeros((report.num_classes, HISTOGRAM_BINS), dtype=np.int64)
    np.add.at(counts, (report.samples.y_true, place), 1)
    rows = _distributions(report, "distance", edges, counts)
    return sized(_areas(rows, "distance", "largest distance within the class (relative)"), height=260)


def _distributions(report: AuditReport, key: str, edges: Any, counts: Any) -> Records:
    """Histograms ``counts`` (K, bins) of the classes, summed over each third, as shares of its samples."""
    middle = (edges[:-1] + edges[1:]) / 2
    rows: Records = []
    for group in GROUPS:
        total = counts[report.per_class["group"] == group].sum(axis=0)
        if total.sum():
            shares = total / total.sum()
            rows += [{"group": group, key: round(float(m), 4), "share": round(float(s), 5)}
                     for m, s in zip(middle, shares, strict=True)]  # fmt: skip
    return rows


def _areas(rows: Records, key: str, title: str) -> Any:
    return alt.Chart(inline(rows)).mark_area(interpolate="monotone", line={"strokeWidth": 2}, fillOpacity=0.16).encode(
        alt.X(f"{key}:Q", title=title),
        alt.Y("share:Q", title="share of the group's samples", stack=None, axis=alt.Axis(format=_PERCENT)),
        _group_colour(), tooltip=[alt.Tooltip("group:N"), alt.Tooltip(f"{key}:Q", format=".2f"),
                                  alt.Tooltip("share:Q", format=".1%")],
    )  # fmt: skip


def reliability(report: AuditReport) -> alt.TopLevelMixin | None:
    """Accuracy against confidence; the model is over-confident below the diagonal. None without probabilities."""
    found = report.calibration
    if found is None:
        return None
    rows = [
        {"confidence": round(float(c), 4), "accuracy": round(float(a), 4), "samples": int(n)}
        for c, a, n in zip(found.bin_confidence, found.bin_accuracy, found.bin_counts, strict=True)
        if n
    ]
    diagonal = alt.Chart(inline([{"x": 0, "y": 0}, {"x": 1, "y": 1}])).mark_line(strokeDash=[4, 4], color="#8f9aa6")
    base = alt.Chart(inline(rows)).encode(
        alt.X("confidence:Q", title="confidence", **unit_axis()), alt.Y("accuracy:Q", title="accuracy", **unit_axis())
    )
    points = base.mark_circle(opacity=1, color=GROUPS["easy"]).encode(
        alt.Size("samples:Q", scale=alt.Scale(range=[20, 420]), legend=None),
        tooltip=[alt.Tooltip("confidence:Q", format=".1%"), alt.Tooltip("accuracy:Q", format=".1%"), "samples:Q"],
    )
    line = base.mark_line(color=GROUPS["easy"], opacity=0.6)
    return sized(alt.layer(diagonal.encode(alt.X("x:Q"), alt.Y("y:Q")), line, points), height=300)


def embedding(report: AuditReport, *, method: Projection = "tsne") -> alt.TopLevelMixin | None:
    """The worst classes and their most frequent errors in two dimensions; crosses are errors. None without features."""
    found = embed(report, method=method)
    if found is None or report.samples is None:
        return None
    y_true, y_pred = report.samples.y_true[found.rows], report.samples.y_pred[found.rows]
    rows = [
        {"x": round(float(x), 2), "y": round(float(y), 2), "class": report.classes[t], "predicted": report.classes[p],
         "outcome": "right" if t == p else "wrong"}
        for (x, y), t, p in zip(found.position, y_true, y_pred, strict=True)
    ]  # fmt: skip
    hidden = alt.Axis(labels=False, ticks=False, grid=False, domain=False, title=None)
    names = [report.classes[k] for k in found.classes]
    chart = alt.Chart(inline(rows)).mark_point(filled=True, size=46, opacity=0.8).encode(
        alt.X("x:Q", axis=hidden, scale=alt.Scale(zero=False)), alt.Y("y:Q", axis=hidden, scale=alt.Scale(zero=False)),
        alt.Color("class:N", scale=alt.Scale(domain=names, scheme="tableau10"),
                  legend=alt.Legend(title=None, labelLimit=135)),
        alt.Shape("outcome:N", scale=alt.Scale(domain=["right", "wrong"], range=["circle", "cross"]), legend=None),
        tooltip=[alt.Tooltip("class:N", title="true"), alt.Tooltip("predicted:N"), alt.Tooltip("outcome:N")],
    )  # fmt: skip
    return sized(chart, height=420)


# ---------------------------------------------------------------- comparison


def dumbbells(comparison: Comparison, limit: int = NAMED_CLASSES) -> alt.TopLevelMixin:
    """Accuracy before and after of each class, largest gain first; with many classes only the largest changes."""
    rows = _change_rows(comparison)
    if len(rows) > limit:
        rows = rows[: limit // 2] + rows[-(limit - limit // 2) :]
    base = alt.Chart(inline(rows))
    place = alt.Y("class:N", sort=None, title=None)
    start, end = alt.X("before:Q", title="accuracy", **unit_axis()), alt.X2("after:Q")
    colour, tip = _change_colour(), _change_tooltip()
    bar = base.mark_rule(strokeWidth=3, opacity=0.6).encode(place, start, end, colour, tooltip=tip)
    before = base.mark_point(size=60, filled=False, strokeWidth=1.6).encode(place, start, colour, tooltip=tip)
    after = base.mark_circle(size=95, opacity=1).encode(place, alt.X("after:Q"), colour, tooltip=tip)
    return sized(alt.layer(bar, before, after), height=18 * len(rows) + 10)


def before_after(comparison: Comparison) -> alt.TopLevelMixin:
    """Every class as a point: accuracy before against after; a class above the diagonal improved."""
    rows = _thinned(_change_rows(comparison))
    ends = [row[side] for row in rows for side in ("before", "after")]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    diagonal = alt.Chart(inline([{"x": low, "y": low}, {"x": high, "y": high}])).mark_line(
        strokeDash=[4, 4], color="#8f9aa6"
    )
    points = alt.Chart(inline(rows)).mark_circle(size=max(20, min(90, 9000 / max(len(rows), 1))), opacity=0.85).encode(
        alt.X("before:Q", title="accuracy before", axis=alt.Axis(format=_PERCENT), scale=alt.Scale(zero=False)),
        alt.Y("after:Q", title="accuracy after", axis=alt.Axis(format=_PERCENT), scale=alt.Scale(zero=False)),
        _change_colour(), tooltip=_change_tooltip(),
    )  # fmt: skip
    return sized(alt.layer(diagonal.encode(alt.X("x:Q"), alt.Y("y:Q")), points), height=340)


def _thinned(rows: Records) -> Records:
    """At most :data:`DRAWN_CLASSES` of the rows: those at either end, and evenly spaced ones between."""
    if len(rows) <= DRAWN_CLASSES:
        return rows
    middle = np.linspace(DRAWN_ENDS, len(rows) - DRAWN_ENDS - 1, DRAWN_CLASSES - 2 * DRAWN_ENDS).astype(int)
    kept = np.concatenate([np.arange(DRAWN_ENDS), middle, np.arange(len(rows) - DRAWN_ENDS, len(rows))])
    return [rows[i] for i in kept]


def drawn_sentence(num_classes: int) -> str:
    """Which classes a figure with one mark per class shows; empty if it shows all."""
    if num_classes <= DRAWN_CLASSES:
        return ""
    return (
        f" {DRAWN_CLASSES:,} of {num_classes:,} classes are drawn: the first and last {DRAWN_ENDS} in order, and evenly spaced "
        "ones between."
    )


def _change_rows(comparison: Comparison) -> Records:
    rows: Records = []
    for record in comparison.per_class:
        if math.isnan(record["delta"]):
            continue
        direction = "improved" if record["delta"] > 0 else "got worse"
        rows.append(
            {"class": str(record["name"]), "change": direction if record["significant"] else "not significant"}
            | {key: _clean(record[key]) for key in ("before", "after", "delta", "low", "high", "q_value")}
        )
    return sorted(rows, key=lambda row: -row["delta"])


def _change_colour() -> alt.Color:
    scale = alt.Scale(domain=list(CHANGES), range=list(CHANGES.values()))
    return alt.Color("change:N", scale=scale, legend=alt.Legend(title=None))


def _change_tooltip() -> list[alt.Tooltip]:
    shown = {"before": ".1%", "after": ".1%", "delta": "+.1%", "low": "+.1%", "high": "+.1%", "q_value": ".3g"}
    titles = {"delta": "change", "low": "interval from", "high": "to", "q_value": "q-value"}
    return [alt.Tooltip("class:N")] + [
        alt.Tooltip(f"{key}:Q", format=form, title=titles.get(key, key)) for key, form in shown.items()
    ]


# ---------------------------------------------------------------- shared


def _clean(value: Any) -> float | None:
    number = float(value)
    return round(number, 7) if math.isfinite(number) else None


def _class_rows(report: AuditReport, extra: Sequence[str]) -> Records:
    """One record per class with samples (of some weight)."""
    return [
        {"class": str(record["name"]), "group": str(record["group"])}
        | {key: _clean(record[key]) for key in ("accuracy", "low", "high", *extra)}
        for record in report.per_class
        if record["accuracy"] == record["accuracy"]
    ]


def _group_colour() -> alt.Color:
    scale = alt.Scale(domain=list(GROUPS), range=list(GROUPS.values()))
    return alt.Color("group:N", scale=scale, legend=alt.Legend(title=None))


def _tooltip(**titles: str) -> list[alt.Tooltip]:
    forms: Mapping[str, str] = {"support": ",d", "spread": ".3f"}
    return [alt.Tooltip("class:N"), alt.Tooltip("group:N")] + [
        alt.Tooltip(f"{key}:Q", title=title, format=forms.get(key, ".1%")) for key, title in titles.items()
    ]


def _pair_indices(report: AuditReport, count: int) -> list[tuple[int, int]]:
    return [(int(pair.true), int(pair.predicted)) for pair in report.confusion.worst_pairs(count)]


def _block(report: AuditReport, order: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    block: Any = report.confusion.counts[list(order)][:, list(order)]
    return np.asarray(block.toarray() if hasattr(block, "toarray") else block)
