"""The frontier: what each method gains on the hard third against what it costs overall."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import altair as alt

    from classgap.posthoc._repair import Repair


def frontier(result: Repair, overall: str = "balanced") -> alt.TopLevelMixin:
    """Hard third against overall, on the samples set aside: the gap dial's strengths as a line, the other methods as points."""
    import altair as alt

    dial = {candidate.label: strength for strength, candidate in result.frontier}
    rows = [
        {
            "method": label,
            "short": f"s={dial[label]:g}" if label in dial else label,
            "kind": "chosen" if label == result.chosen else "gap dial" if label in dial else "other methods",
            "strength": dial.get(label),
            "overall": 100 * candidate.report.metrics[overall].delta.value,
            "hard": 100 * candidate.report.metrics["hard"].delta.value,
            "low": 100 * candidate.report.metrics["hard"].delta.low,
            "high": 100 * candidate.report.metrics["hard"].delta.high,
        }
        for label, candidate in result.candidates.items()
    ]
    x = alt.X("overall:Q", title="change overall, points", scale=alt.Scale(zero=False, nice=True))
    title = "change of the hard third, points"
    y = alt.Y("hard:Q", title=title)
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=["chosen", "gap dial", "other methods"], range=["#2f9e77", "#e8703a", "#8f9aa6"]),
    )
    base = alt.Chart(alt.InlineData(values=rows))
    line = base.transform_filter("datum.strength != null").mark_line(color="#e8703a", opacity=0.5)
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x, y, colour, tooltip=["method:N", "overall:Q", "hard:Q", "low:Q", "high:Q"]
    )
    intervals = base.mark_rule(opacity=0.3).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"), colour)
    names = base.mark_text(align="left", dx=7, fontSize=10).encode(x, y, text="short:N")
    chart: alt.TopLevelMixin = alt.layer(
        intervals, line.encode(x, y, order="strength:Q"), points, names, width=560, height=380
    )
    return chart
