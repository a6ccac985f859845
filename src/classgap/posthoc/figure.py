"""Figure: change of the classes that were hard before against change of the overall accuracy, for every method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

    from classgap.posthoc.fix_report import FixReport

_DIAL = "#e8703a"


def frontier(result: FixReport) -> alt.TopLevelMixin:
    """Classes that were hard before (cross-fitted) against overall accuracy, on the samples set aside.

    The gap dial is a line; a ring marks the chosen method.
    """
    import altair as alt

    rows = _rows(result)
    title = "change of the classes that were hard before, points"
    x = alt.X("overall:Q", title="change of the overall accuracy, points", scale=alt.Scale(zero=False, nice=True))
    y = alt.Y("hard:Q", title=title)
    families = ["gap_dial", *sorted({row["family"] for row in rows} - {"gap_dial"})]
    others = ["#3f8fd2", "#2f9e77", "#8f6bc8", "#d8476b", "#b08d2e", "#5c6773", "#46b3c1", "#a0522d", "#6b8e23"]
    colour = alt.Color(
        "family:N", title=None, legend=alt.Legend(columns=3), scale=alt.Scale(domain=families, range=[_DIAL, *others])
    )
    base = alt.Chart(alt.InlineData(values=rows))
    line = base.transform_filter("datum.strength != null").mark_line(color=_DIAL, opacity=0.5)
    whiskers = base.mark_rule(opacity=0.25).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"))
    tooltip = [alt.Tooltip(f"{name}:Q", format="+.1f") for name in ("overall", "hard", "low", "high")]
    points = base.mark_point(filled=True, size=70, opacity=1).encode(x, y, colour, tooltip=["method:N", *tooltip])
    ring = base.transform_filter("datum.chosen").mark_point(size=260, strokeWidth=2, color="#1d232b").encode(x, y)
    names = base.transform_filter("datum.strength != null").mark_text(align="left", dx=9, fontSize=10)
    chart: alt.TopLevelMixin = alt.layer(
        whiskers,
        line.encode(x, y, order="strength:Q"),
        points,
        ring,
        names.encode(x, y, text="short:N"),
        width=560,
        height=380,
    )
    return chart


def _rows(result: FixReport) -> list[dict[str, Any]]:
    dial = {candidate.label: strength for strength, candidate in result.frontier}
    ends = {*list(dial)[:1], *list(dial)[-1:]}  # labels of the strengths between them would overlap
    rows = []
    for label, candidate in result.candidates.items():
        hard, whole = candidate.report.groups["cross"]["hard"].delta, candidate.report.metrics[result.overall].delta
        rows.append(
            {
                "method": label,
                "family": label.split("(")[0],
                "chosen": label == result.chosen,
                "strength": dial.get(label),
                "short": f"s = {dial[label]:g}" if label in ends else "",
                "overall": 100 * whole.value,
                "hard": 100 * hard.value,
                "low": 100 * hard.low,
                "high": 100 * hard.high,
            }
        )
    return rows
