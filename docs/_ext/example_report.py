"""Writes the report page and the comparison page that "How to read a report" points to, from digits of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx


def write_pages(app: Sphinx) -> None:
    """Two models on the same test samples; the pages are part of the HTML site only."""
    folder = Path(app.outdir)
    if app.builder.name != "html" or (folder / "example_report.html").exists():
        return
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    import classgap

    x, y = load_digits(return_X_y=True)
    x, names = x / 16, [f"digit {k}" for k in range(10)]
    reports = []
    for strength in (0.01, 1.0):
        model = LogisticRegression(C=strength, max_iter=1000).fit(x[:600], y[:600])
        head = (model.coef_, model.intercept_)
        scores = x[600:] @ model.coef_.T + model.intercept_
        reports.append(classgap.audit(y[600:], scores=scores, features=x[600:], head=head, class_names=names))
    reports[0].to_html(folder / "example_report.html")
    classgap.compare(*reports).to_html(folder / "example_comparison.html")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
