"""``compare_labels``: which labels improved or got worse between two multi-label models, with significance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.measure.audit_report import Estimate
from classgap.measure.comparison import Change, Verdict
from classgap.measure.label_views import LabelViews, Table
from classgap.measure.multi_label_report import MEANINGS
from classgap.measure.render import notebook
from classgap.measure.render.plain import confidence_level, percent, points, structured
from classgap.measure.statistics.f1 import LabelCounts, f1_changes, mean_f1, mean_f1_change
from classgap.measure.statistics.false_discovery import benjamini_hochberg
from classgap.measure.verdict import ONE_RUN
from classgap.predictions import Columns
from classgap.predictions.multi_label import Thresholds, align_labels, as_label_predictions

if TYPE_CHECKING:
    from classgap.predictions.multi_label import MultiLabelPredictions

TITLES = {
    "better": "Better, no loss detected",
    "traded": "Better on average, worse on some labels",
    "some_better": "Some labels improved, no significant change on average",
    "mixed": "Some labels improved, others got worse",
    "some_worse": "Some labels got worse, no significant change on average",
    "worse": "Worse",
    "noise": "No significant change",
}
METHOD = "exact exchange of before and after per label (mid-p), Benjamini-Hochberg correction over labels"


@dataclass(frozen=True, eq=False)
class MultiLabelComparison(LabelViews):
    """Which labels improved or got worse. Created by :func:`classgap.compare_labels`; methods are views of it.

    Attributes:
        labels: Names of the labels.
        metrics: ``macro_f1`` and ``micro_f1`` before, after, and their difference.
        per_label: Structured array, one record per label, largest loss of F1 first: ``name, support``; F1 ``before`` and
            ``after``, ``delta`` with its interval ``low, high``; ``p_value``, ``q_value`` and ``significant`` (q-value at most
            ``1 - confidence``, and the interval excludes 0); ``recall_before, recall_after, precision_before, precision_after``.
        verdict: What follows from them.
    """

    labels: tuple[str, ...]
    num_samples: int
    confidence: float
    metrics: Mapping[str, Change]
    per_label: NDArray[np.void]
    verdict: Verdict
    notes: tuple[str, ...] = ()

    @property
    def improved(self) -> NDArray[np.void]:
        """Labels whose F1 improved significantly, largest gain first."""
        return self.per_label[self.per_label["significant"] & (self.per_label["delta"] > 0)][::-1]

    @property
    def worsened(self) -> NDArray[np.void]:
        """Labels whose F1 got worse significantly, largest loss first."""
        return self.per_label[self.per_label["significant"] & (self.per_label["delta"] < 0)]

    def __repr__(self) -> str:
        mean = f"macro F1 {_change(self.metrics['macro_f1'].delta)} points"
        return f"<MultiLabelComparison: {self.verdict.title}; {self.size}; {mean}>"

    def _repr_html_(self) -> str:
        tables = [
            ("F1", self.headings(), self.headline_rows()),
            ("Labels with a significant change", self.label_headings(), self.label_rows(10, changed=True)),
        ]
        return notebook.block("Label comparison", self.size, self.verdict.sentence, tables, self.notes)

    def headings(self) -> tuple[str, ...]:
        return ("", "before", "after", "change", f"{confidence_level(self.confidence)} interval")

    def headline_rows(self) -> list[tuple[str, ...]]:
        """Macro and micro F1 as text."""
        return [
            (MEANINGS[name][0], percent(c.before.value), percent(c.after.value), points(c.delta.value),
             f"{points(c.delta.low)} … {points(c.delta.high)}")
            for name, c in self.metrics.items()
        ]  # fmt: skip

    def label_headings(self) -> tuple[str, ...]:
        return (
            "label",
            "samples",
            "F1 before",
            "after",
            "change",
            f"{confidence_level(self.confidence)} interval",
            "q",
            "recall",
            "precision",
        )

    def label_rows(self, count: int, *, changed: bool = False) -> list[tuple[str, ...]]:
        """Labels with the largest changes of F1 as text, largest first; with ``changed`` only significant ones."""
        rows = self.per_label[~np.isnan(self.per_label["delta"])]
        rows = rows[rows["significant"]] if changed else rows
        rows = rows[np.argsort(-np.abs(rows["delta"]), kind="stable")[:count]]
        return [
            (str(r["name"]), f"{r['support']:,}", percent(r["before"]), percent(r["after"]), points(r["delta"]),
             f"{points(r['low'])} … {points(r['high'])}", f"{r['q_value']:.2g}",
             f"{percent(r['recall_before'])} → {percent(r['recall_after'])}",
             f"{percent(r['precision_before'])} → {percent(r['precision_after'])}")
            for r in rows
        ]  # fmt: skip

    def summary(self, labels: int) -> tuple[str, str, Table, Table]:
        largest = "Labels with the largest changes of F1", self.label_headings(), self.label_rows(labels)
        return "Label comparison", self.verdict.sentence, ("F1", self.headings(), self.headline_rows()), largest

    def content(self) -> dict[str, Any]:
        return {
            "verdict": asdict(self.verdict),
            "method": METHOD,
            "metrics": {name: asdict(change) for name, change in self.metrics.items()},
            "groups": {},
        }


def compare_labels(
    before: Any,
    after: Any,
    *,
    columns: Columns | None = None,
    threshold: Thresholds | None = None,
    common: bool = False,
    confidence: float = 0.95,
) -> MultiLabelComparison:
    """Which labels improved or got worse between two multi-label models, with significance.

    Labels are compared by F1, since a lower threshold alone raises every recall.

    Args:
        before, after: :class:`~classgap.MultiLabelPredictions`, prediction files (as paths) or tables of the same samples. Rows
            are matched by ``columns.id`` if it is given, otherwise by their order.
        columns: Names of the columns of files and tables, see :meth:`MultiLabelPredictions.read`.
        threshold: Probability from which a label is predicted, for files and tables with scores; by default the predictions in
            them, or 0.5.
        common: Compare only the samples that both have, matched by ``columns.id``.
        confidence: Confidence level of the intervals; ``1 - confidence`` is the false discovery rate of significant labels.
    Example:
        >>> from classgap import MultiLabelPredictions
        >>> y = [[1, 0], [1, 1], [0, 1], [0, 0]] * 20
        >>> old, new = [[1, 0], [1, 0], [0, 0], [0, 0]] * 20, y
        >>> found = compare_labels(*(MultiLabelPredictions.from_arrays(y, predicted) for predicted in (old, new)))
        >>> found.verdict.kind, found.per_label["delta"].tolist()
        ('better', [0.0, 1.0])
    """
    checks.fraction("confidence", confidence)
    given: dict[str, Any] = {"columns": columns, "threshold": threshold}
    sides = []
    for side in (before, after):
        if isinstance(side, (list, tuple)):
            raise checks.InputError(
                "compare_labels takes one run per side, got a sequence; compare the runs one by one, or pass arrays as "
                "MultiLabelPredictions.from_arrays(y_true, y_pred)"
            )
        known = type(side).__name__ == "MultiLabelPredictions"
        sides.append(as_label_predictions(side, **({} if known else given)))
    old, new = align_labels(sides[0], sides[1], common=common)
    per_label = structured(_columns(old, new, confidence))
    metrics = {name: _metric(old, new, confidence, name) for name in MEANINGS}
    absent = [name for name, count in zip(old.labels, old.y_true.sum(0), strict=True) if count == 0]
    notes = [
        "one run per side: the intervals include the choice of test samples, but not the variation between training seeds"
    ]
    if absent:
        shown = ", ".join(map(repr, absent[:5])) + (" …" if len(absent) > 5 else "")
        notes.append(f"{len(absent)} label{'s' * (len(absent) > 1)} without samples cannot be compared: {shown}")
    order = np.argsort(per_label["delta"], kind="stable")
    strict = (1 + confidence) / 2  # Bonferroni correction: the mean and the labels are two questions
    sure = Estimate(*mean_f1_change(old.y_true, old.y_pred, new.y_pred, strict))
    verdict = _judge(metrics["macro_f1"].delta, sure, per_label, 1 - strict)
    return MultiLabelComparison(
        old.labels, old.num_samples, confidence, metrics, per_label[order], verdict, tuple(notes)
    )


def _metric(old: MultiLabelPredictions, new: MultiLabelPredictions, confidence: float, name: str) -> Change:
    micro = name == "micro_f1"
    levels = [Estimate(*mean_f1(side.y_true, side.y_pred, confidence, micro=micro)) for side in (old, new)]
    delta = mean_f1_change(old.y_true, old.y_pred, new.y_pred, confidence, micro=micro)
    return Change(levels[0], levels[1], Estimate(*delta))


def _columns(old: MultiLabelPredictions, new: MultiLabelPredictions, confidence: float) -> dict[str, NDArray[Any]]:
    found = f1_changes(old.y_true, old.y_pred, new.y_pred, confidence)
    q_value = benjamini_hochberg(found.p_value)
    columns: dict[str, NDArray[Any]] = {"name": np.array(old.labels), "support": old.y_true.sum(0)}
    columns |= {key: getattr(found, key) for key in ("before", "after", "delta", "low", "high", "p_value")}
    excludes = (found.low > 0) | (found.high < 0)  # of a rare label the interval can be wider than the test suggests
    columns |= {"q_value": q_value, "significant": (q_value <= 1 - confidence) & excludes}
    for name, side in (("before", old), ("after", new)):
        counts = LabelCounts.gather(side.y_true, side.y_pred)
        columns |= {f"recall_{name}": counts.recall, f"precision_{name}": counts.precision}
    for name, side in (("before", old), ("after", new)):
        if side.thresholds is not None:
            columns[f"threshold_{name}"] = side.thresholds
    return columns


def _judge(macro: Estimate, sure: Estimate, per_label: NDArray[np.void], level: float) -> Verdict:
    """One of :data:`TITLES`.

    Args:
        sure: The change of macro F1 with the wider interval that decides.
        level: Largest q-value of a label that decides.
    """
    decisive = per_label["significant"] & (per_label["q_value"] <= level)
    gained, lost = (per_label[decisive & (s * per_label["delta"] > 0)] for s in (1, -1))
    if sure.low > 0:
        kind = "traded" if len(lost) else "better"
    elif sure.high < 0:
        kind = "worse"
    elif len(gained) and len(lost):
        kind = "mixed"
    else:
        kind = "some_better" if len(gained) else "some_worse" if len(lost) else "noise"
    decided = len(gained) + len(lost)
    gained, lost = (per_label[per_label["significant"] & (s * per_label["delta"] > 0)] for s in (1, -1))
    losses = tuple(f"label {str(r['name'])!r} {_change(r)} (q = {r['q_value']:.2g})" for r in lost[:3])
    tally = (
        f"{len(gained)} label{'' if len(gained) == 1 else 's'} improved and {len(lost)} got worse significantly"
        if len(gained) + len(lost)
        else "no single label changed significantly"
    )
    if len(gained) + len(lost) and not decided:
        tally += " (not after Bonferroni correction, 2 tests)"
    headline = f"{TITLES[kind]} {ONE_RUN}"
    doubt = sure.low <= 0 <= sure.high and not macro.low <= 0 <= macro.high
    mean = f"macro F1 {_change(macro)} points" + (
        " (not significant after Bonferroni correction, 2 tests)" if doubt else ""
    )
    parts = [mean, *losses, tally]
    return Verdict(kind, TITLES[kind], f"{headline}: {'; '.join(parts)}.", losses, headline)


def _change(found: Any) -> str:
    value, low, high = (
        (found.value, found.low, found.high)
        if isinstance(found, Estimate)
        else (found["delta"], found["low"], found["high"])
    )
    return f"{points(value)} [{points(low)}, {points(high)}]"
