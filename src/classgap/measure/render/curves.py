"""Curves of an audit with scores: accuracy by threshold (two classes), precision by recall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from classgap.measure.render.chart_parts import Records, inline, sized, unit_axis

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport


def threshold_curve(report: AuditReport) -> alt.TopLevelMixin | None:
    """Accuracy of both classes by threshold; None unless there are two classes and scores."""
    found = report.threshold
    if found is None:
        return None
    names = {"positive": found.positive, "negative": found.negative}
    rows: Records = [
        {"class": name, "threshold": float(row["threshold"]), "accuracy": float(row[side])}
        for side, name in names.items()
        for row in found.curve
        if row[side] == row[side]
    ]
    lines = alt.Chart(inline(rows)).mark_line(interpolate="step-after", strokeWidth=2)
    lines = lines.encode(
        alt.X("threshold:Q", title=f"threshold of the probability of {found.positive}", **unit_axis()),
        alt.Y("accuracy:Q", title="accuracy of the class", **unit_axis()),
        alt.Color("class:N", title=None, scale=alt.Scale(domain=list(names.values()), range=["#e8703a", "#3f8fd2"])),
        tooltip=["class:N", alt.Tooltip("threshold:Q", format=".3f"), alt.Tooltip("accuracy:Q", format=".1%")],
    )
    if found.used != found.used:
        return sized(lines, height=260)
    used = alt.Chart(inline([{"threshold": found.used}])).mark_rule(strokeDash=[4, 4]).encode(alt.X("threshold:Q"))
    return sized(alt.layer(used, lines), height=260)


def precision_recall(report: AuditReport) -> alt.TopLevelMixin | None:
    """Precision by recall of the classes with the lowest average precision; None without scores."""
    found = report.ranking
    if found is None or not found.curves:
        return None
    rows: Records = [
        {
            "class": f"{report.classes[k]} ({100 * found.average_precision[k]:.0f} %)",
            "recall": float(r),
            "precision": float(p),
        }
        for k, (recall, precision) in found.curves.items()
        for r, p in zip(recall, precision, strict=True)
    ]
    order = list(dict.fromkeys(row["class"] for row in rows))
    lines = alt.Chart(inline(rows)).mark_line(strokeWidth=2)
    return sized(
        lines.encode(
            alt.X("recall:Q", title="recall (accuracy of the class)", **unit_axis()),
            alt.Y("precision:Q", title="precision", **unit_axis()),
            alt.Color(
                "class:N",
                title="average precision",
                sort=order,
                scale=alt.Scale(scheme="tableau10"),
                legend=alt.Legend(columns=2, labelLimit=170),
            ),
            order="recall:Q",
            tooltip=["class:N", alt.Tooltip("recall:Q", format=".1%"), alt.Tooltip("precision:Q", format=".1%")],
        ),
        height=280,
    )
