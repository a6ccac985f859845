"""Write the report folder: page, Markdown, JSON and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgap.writing import replacing_entries, write

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Comparison

WRITTEN = ("figures", "report.md", "report.json", "report.html")


def write_report(
    result: AuditReport | Comparison, folder: Path, source: str = "", more: Mapping[str, Any] | None = None
) -> None:
    """Write ``report.html``, ``report.md``, ``report.json`` and ``figures/`` (PNG and SVG) into ``folder``.

    An earlier report there is replaced, all files at once.

    Args:
        source: Name of the measured files, for the title of the page.
        more: Further charts by name.
    """
    from classgap.measure.comparison import Comparison
    from classgap.measure.render import html, plot

    charts = {**plot.figures(result), **(more or {})}
    with replacing_entries(folder, WRITTEN) as temporary:
        if isinstance(result, Comparison):
            html.render_comparison(result, temporary / "report.html", source=source, charts=charts)
        else:
            html.render_audit(result, temporary / "report.html", source=source, charts=charts)
        write(temporary / "report.md", result.to_markdown())
        write(temporary / "report.json", json.dumps(result.to_dict(), indent=2))
        for name, chart in charts.items():
            for ending in ("png", "svg"):
                plot.save(chart, temporary / "figures" / f"{name}.{ending}")
