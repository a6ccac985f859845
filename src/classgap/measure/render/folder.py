"""Write the report folder: page, Markdown, JSON, figures, and the lists of samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgap.predictions.export import write_table
from classgap.writing import replacing_entries, write

if TYPE_CHECKING:
    import polars as pl

    from classgap.measure.audit_report import AuditReport
    from classgap.measure.gate import Measured

WRITTEN = ("figures", "mistakes.csv", "mislabelled.csv", "report.md", "report.json", "report.html")


def write_report(
    result: Measured,
    folder: Path,
    source: str = "",
    more: Mapping[str, Any] | None = None,
    *,
    below: float = 0.1,
) -> None:
    """Write ``report.html``, ``report.md``, ``report.json`` and ``figures/`` (PNG and SVG) into ``folder``.

    For an audit whose samples are known also ``mistakes.csv``, and with scores ``mislabelled.csv``. An earlier report there is
    replaced, all files at once.

    Args:
        source: Name of the measured files, for the title of the page.
        more: Further charts by name.
        below: Limit of the suspected labels, see :meth:`AuditReport.mislabelled`.
    """
    from classgap.measure.comparison import Comparison
    from classgap.measure.multi_label_compare import MultiLabelComparison
    from classgap.measure.multi_label_report import MultiLabelReport
    from classgap.measure.render import html, multi_label, plot

    with replacing_entries(folder, WRITTEN) as temporary:
        page = temporary / "report.html"
        charts: dict[str, Any] = dict(more or {})
        if isinstance(result, MultiLabelReport):
            charts |= multi_label.label_figures(result)
            multi_label.render_labels(result, page, source=source, charts=charts)
        elif isinstance(result, MultiLabelComparison):
            charts |= multi_label.comparison_figures(result)
            multi_label.render_label_comparison(result, page, source=source, charts=charts)
        elif isinstance(result, Comparison):
            charts |= plot.figures(result)
            html.render_comparison(result, page, source=source, charts=charts)
        else:
            charts |= plot.figures(result)
            html.render_audit(result, page, source=source, charts=charts, below=below)
            _write_samples(result, temporary, below)
        write(temporary / "report.md", result.to_markdown())
        write(temporary / "report.json", json.dumps(result.to_dict(), indent=2))
        for name, chart in charts.items():
            for ending in ("png", "svg"):
                plot.save(chart, temporary / "figures" / f"{name}.{ending}")


def _write_samples(report: AuditReport, folder: Path, below: float) -> None:
    """Every mistake, and every label that is probably wrong, as CSV."""
    if report.samples is None:
        return
    write_table(_rounded(report.mistakes(n=None)), folder / "mistakes.csv")
    if report.samples.scores is not None:
        write_table(_rounded(report.mislabelled(below)), folder / "mislabelled.csv")


def _rounded(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with probabilities rounded to four decimals."""
    import polars.selectors as cs

    return frame.with_columns(cs.float().round(4))
