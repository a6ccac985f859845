"""Views that the audit and the comparison of multi-label data share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.audit_report import SCHEMA_VERSION
from classgap.measure.render.plain import columns_frame, escape, json_ready, markdown_table, records

if TYPE_CHECKING:
    import pandas as pd

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, headings, rows of text


class LabelViews(ABC):
    """JSON, Markdown, data frame and page of a result with one record per label."""

    labels: tuple[str, ...]
    num_samples: int
    confidence: float
    per_label: NDArray[np.void]
    notes: tuple[str, ...]

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> str:
        """Numbers of labels and samples as text."""
        return f"{self.num_labels:,} labels, {self.num_samples:,} samples"

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """The entries of the JSON that differ between results."""

    @abstractmethod
    def summary(self, labels: int) -> tuple[str, str, Table, Table]:
        """Name of the result, its verdict, the table of means, and the table of this many labels."""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, ready for JSON (nan is None)."""
        from classgap import __version__

        tree: dict[str, Any] = json_ready(
            {
                "schema_version": SCHEMA_VERSION,
                "classgap_version": __version__,
                "num_samples": self.num_samples,
                "num_labels": self.num_labels,
                "confidence": self.confidence,
                **self.content(),
                "per_label": records(self.per_label),
                "notes": list(self.notes),
            }
        )
        return tree

    def to_markdown(self, *, labels: int = 10) -> str:
        """Verdict, means, the most important labels, and notes."""
        name, verdict, (_, headings, means), (title, label_headings, rows) = self.summary(labels)
        parts = [f"## {name}: {self.size}", f"**{escape(verdict)}**", markdown_table(headings, means)]
        parts += [f"### {title}", markdown_table(label_headings, rows)]
        if self.notes:
            parts += ["### Notes", "\n".join(f"- {escape(note)}" for note in self.notes)]
        return "\n\n".join(parts) + "\n"

    def to_pandas(self) -> pd.DataFrame:
        """The labels as a data frame, indexed by name."""
        return columns_frame(self.per_label)

    def to_html(self, path: str | Path) -> Path:
        """Write the result as one self-contained HTML page and return its path."""
        from classgap.measure.render.multi_label import render

        render(self, path)
        return Path(path)
