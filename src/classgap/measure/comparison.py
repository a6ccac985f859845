"""The result of a comparison: :class:`Comparison`, with :class:`Change` entries and a :class:`Verdict`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s
from classgap.measure.audit_report import HEADLINES, PAIRS_LISTED, SCHEMA_VERSION, AuditReport, Estimate
from classgap.measure.render import notebook
from classgap.measure.render.plain import (
    columns_frame,
    confidence_level,
    deviation,
    escape,
    html_module,
    json_ready,
    markdown_table,
    percent,
    points,
    records,
)
from classgap.measure.statistics.metrics import label

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@dataclass(frozen=True)
class Change:
    """One number before and after, and the paired difference ``after - before``.

    ``before`` and ``after`` are means over the runs of a side; ``before_run_std`` and ``after_run_std`` are the standard
    deviations over these runs (divisor runs - 1), nan for a single run.
    """

    before: Estimate
    after: Estimate
    delta: Estimate
    before_run_std: float = math.nan
    after_run_std: float = math.nan


def run_std(values: Sequence[float] | Float64s) -> float:
    """Standard deviation over runs, with divisor runs - 1; nan for a single run, or none.

    Example:
        >>> round(run_std([0.5, 0.6, 0.7]), 3), run_std([0.5])
        (0.1, nan)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Verdict:
    """The result in words: ``kind`` is a short code, ``title`` a few words, ``sentence`` the result with its numbers.

    ``losses`` describes significant losses of single classes, of the worst class and of the gap; the title names them
    too. ``headline`` is the title and, with one run per side, its scope; the sentence begins with the headline.
    """

    kind: str
    title: str
    sentence: str
    losses: tuple[str, ...] = ()
    headline: str = ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Which classes improved or got worse, with significance. Created by :func:`classgap.compare`; the methods are views of it.

    Attributes:
        before, after: The compared reports, one per training seed.
        metrics: Every aggregate by name as a :class:`Change` (own ranking).
        groups: ``groups[ranking][group]`` as a :class:`Change`, for ``own``, ``reference`` (the ranking of *before*) and
            ``cross``.
        per_class: Structured array: ``name, support, before, after, delta, low, high, gained, lost, p_value, q_value,
            significant, group``. ``gained`` and ``lost`` count the samples that became correct and that became wrong (mean over
            pairs of seeds), ``q_value`` is the p-value after Benjamini-Hochberg correction, ``group`` the third before.
        method: How the p-values and intervals of the classes were computed.
    """

    classes: tuple[str, ...]
    num_samples: int
    confidence: float
    seed: int
    before: tuple[AuditReport, ...]
    after: tuple[AuditReport, ...]
    metrics: Mapping[str, Change]
    groups: Mapping[str, Mapping[str, Change]]
    per_class: NDArray[np.void]
    verdict: Verdict
    method: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return notebook.comparison_line(self)

    def _repr_html_(self) -> str:
        return notebook.comparison_html(self)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def several_runs(self) -> bool:
        """Whether a side has more than one run, so that a standard deviation over runs exists."""
        return max(len(self.before), len(self.after)) > 1

    @property
    def overall(self) -> Change:
        """Share of samples that are predicted correctly."""
        return self.metrics["overall"]

    @property
    def easy(self) -> Change:
        """Mean accuracy of the best third of classes, by the own ranking of each run."""
        return self.metrics["easy"]

    @property
    def medium(self) -> Change:
        """Mean accuracy of the middle third of classes, by the own ranking of each run."""
        return self.metrics["medium"]

    @property
    def hard(self) -> Change:
        """Mean accuracy of the worst third of classes, by the own ranking of each run."""
        return self.metrics["hard"]

    @property
    def worst(self) -> Change:
        """Lowest class accuracy."""
        return self.metrics["worst"]

    @property
    def gap(self) -> Change:
        """Highest minus lowest class accuracy."""
        return self.metrics["gap"]

    @property
    def improved(self) -> NDArray[np.void]:
        """Records of the classes that improved significantly, largest gain first."""
        rows = self.per_class[self.per_class["significant"] & (self.per_class["delta"] > 0)]
        return rows[np.argsort(-rows["delta"], kind="stable")]

    @property
    def worsened(self) -> NDArray[np.void]:
        """Records of the classes that got worse significantly, largest loss first."""
        rows = self.per_class[self.per_class["significant"] & (self.per_class["delta"] < 0)]
        return rows[np.argsort(rows["delta"], kind="stable")]

    def confusions(self, n: int | None = 20) -> pl.DataFrame:
        """Confused pairs of classes before and after, largest change first, as a polars table.

        Columns: ``true``, ``predicted``, the numbers of samples ``before`` and ``after`` (means over the runs of a side), their
        difference ``change``, and the shares of the true class ``share_before`` and ``share_after``. The changes of single
        pairs are not tested for significance.

        Args:
            n: At most this many; None means all.
        """
        import polars as pl

        from classgap.measure.confusion_changes import confusion_changes

        columns = confusion_changes(self, n)
        return pl.DataFrame(
            columns, schema={name: pl.String if name in ("true", "predicted") else pl.Float64 for name in columns}
        )

    def _confused_pairs(self, n: int) -> list[dict[str, Any]]:
        """:meth:`confusions` as plain data."""
        from classgap.measure.confusion_changes import confusion_changes

        columns = confusion_changes(self, n)
        return [dict(zip(columns, pair, strict=True)) for pair in zip(*columns.values(), strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, ready for JSON (nan is None). ``docs/audit.md`` describes every key."""
        from classgap import __version__

        tree: dict[str, Any] = json_ready(
            {
                **{name: asdict(self.metrics[name]) for name in HEADLINES},
                "schema_version": SCHEMA_VERSION,
                "classgap_version": __version__,
                "num_samples": self.num_samples,
                "num_classes": self.num_classes,
                "num_before": len(self.before),
                "num_after": len(self.after),
                "confidence": self.confidence,
                "seed": self.seed,
                "verdict": asdict(self.verdict),
                "method": self.method,
                "metrics": {name: asdict(change) for name, change in self.metrics.items()},
                "groups": {
                    ranking: {group: asdict(change) for group, change in changes.items()}
                    for ranking, changes in self.groups.items()
                },
                "per_class": records(self.per_class),
                "confused_pairs": self._confused_pairs(PAIRS_LISTED),
                "notes": list(self.notes),
            }
        )
        return tree

    def to_markdown(self, *, classes: int = 10) -> str:
        """The comparison as Markdown: verdict, changes of the main numbers, classes that changed significantly, notes."""
        rows = [(label(name), *self._cells(self.metrics[name])) for name in HEADLINES]
        crossed = [(name, *self._cells(change)) for name, change in self.groups["cross"].items()]
        stds = ("std over runs before", "after") if self.several_runs else ()
        head = ("before", "after", "change (points)", f"{confidence_level(self.confidence)} interval", *stds)
        parts = [
            f"## {escape(self.verdict.headline)}",
            escape(self.verdict.sentence),
            markdown_table(("", *head), rows),
            "**Classes that were easy, medium and hard before** (ranked and measured on different samples; used for the verdict)",
            markdown_table(("", *head), crossed),
            *self._markdown_classes("Classes that improved significantly", self.improved, classes),
            *self._markdown_classes("Classes that got worse significantly", self.worsened, classes),
            *self._markdown_confusions(classes),
        ]
        notes = "\n".join(f"- {escape(note)}" for note in (*self.notes, f"method: {self.method}"))
        runs = f"{self.num_samples:,} samples, {self.num_classes} classes"
        parts.append(f"<details><summary>Notes ({runs})</summary>\n\n{notes}\n\n</details>")
        return "\n\n".join(parts) + "\n"

    def _cells(self, change: Change) -> tuple[str, ...]:
        delta = change.delta
        interval = f"{points(delta.low)} … {points(delta.high)}"
        stds = (deviation(change.before_run_std), deviation(change.after_run_std)) if self.several_runs else ()
        return percent(change.before.value), percent(change.after.value), points(delta.value), interval, *stds

    def _markdown_classes(self, title: str, changed: NDArray[np.void], count: int) -> list[str]:
        if len(changed) == 0:
            return [f"**{title}**: none."]
        rows = [
            (
                str(r["name"]),
                str(r["support"]),
                percent(r["before"]),
                percent(r["after"]),
                points(r["delta"]),
                f"{points(r['low'])} … {points(r['high'])}",
                f"{r['q_value']:.2g}",
            )
            for r in changed[:count]
        ]
        more = f" (largest {count} of {len(changed)})" if len(changed) > count else ""
        head = ("class", "samples", "before", "after", "change", f"{confidence_level(self.confidence)} interval", "q")
        return [f"**{title}**{more}", markdown_table(head, rows)]

    def _markdown_confusions(self, count: int) -> list[str]:
        pairs = self._confused_pairs(count)
        if not pairs:
            return []
        rows = [
            (p["true"], p["predicted"], *(f"{p[key]:.10g}" for key in ("before", "after")), f"{p['change']:+.10g}")
            for p in pairs
        ]
        head = ("true", "predicted", "before", "after", "change")
        return ["**Confusions that changed most** (numbers of samples, not tested)", markdown_table(head, rows)]

    def to_pandas(self) -> pd.DataFrame:
        """The classes as a data frame with one row per class, indexed by name."""
        return columns_frame(self.per_class)

    def to_html(self, path: str | Path) -> Path:
        """Write the comparison as one self-contained HTML page and return its path."""
        html_module().render_comparison(self, path)
        return Path(path)
