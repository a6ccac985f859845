"""Write the report folder: page, Markdown, JSON, figures, and the lists of samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Comparison


def write_report(
    result: AuditReport | Comparison, folder: Path, source: str = "", more: Mapping[str, Any] | None = None
) -> None:
    """Write ``report.html``, ``report.md``, ``report.json`` and ``figures/`` (PNG and SVG) into ``folder``.

    For an audit whose samples are known also ``mistakes.csv``, and with scores ``mislabelled.csv``.

    Args:
        source: Name of the measured files, for the title of the page.
        more: Further charts by name.
    """
    from classgap.measure.comparison import Comparison
    from classgap.measure.render import html, plot

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    charts = {**plot.figures(result), **(more or {})}
    if isinstance(result, Comparison):
        html.render_comparison(result, folder / "report.html", source=source, charts=charts)
    else:
        html.render_audit(result, folder / "report.html", source=source, charts=charts)
        _write_samples(result, folder)
    (folder / "report.md").write_text(result.to_markdown(), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(result.to_dict(), indent=2), encoding="utf-8")
    for name, chart in charts.items():
        for ending in ("png", "svg"):
            plot.save(chart, folder / "figures" / f"{name}.{ending}")


def _write_samples(report: AuditReport, folder: Path) -> None:
    """Every mistake, and every label that is probably wrong, as CSV."""
    if report.samples is None:
        return
    report.mistakes(n=None).write_csv(folder / "mistakes.csv", float_precision=4)
    if report.samples.scores is not None:
        report.mislabelled().write_csv(folder / "mislabelled.csv", float_precision=4)
