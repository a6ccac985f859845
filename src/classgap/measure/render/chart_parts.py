"""Parts that all charts share."""

from __future__ import annotations

from typing import Any

import altair as alt

Records = list[dict[str, Any]]


def inline(rows: Records) -> alt.InlineData:
    """The data of a chart; Altair passes InlineData unchanged, but would reject alt.Data with more than 5000 rows."""
    return alt.InlineData(values=rows)


def unit_axis() -> dict[str, Any]:
    """Scale and axis of a share."""
    return {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format=".0%", tickCount=5)}


def sized(chart: alt.TopLevelMixin, *, height: float) -> alt.TopLevelMixin:
    """The chart at the width of the page."""
    return chart.properties(width=680, height=height)
