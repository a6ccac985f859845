"""The result of an audit of multi-label data: :class:`MultiLabelReport`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.audit_report import Estimate, Homogeneity
from classgap.measure.label_views import LabelViews, Table
from classgap.measure.render import notebook
from classgap.measure.render.plain import confidence_level, percent
from classgap.measure.statistics.metrics import label

if TYPE_CHECKING:
    from classgap.predictions.multi_label import MultiLabelPredictions

SIDES = ("recall", "precision")
MEANINGS = {
    "macro_f1": ("macro F1", "mean over the labels of F1, the harmonic mean of recall and precision"),
    "micro_f1": ("micro F1", "F1 of all pairs of sample and label together; frequent labels count most"),
}


@dataclass(frozen=True, eq=False)
class MultiLabelReport(LabelViews):
    """Which labels fail, and whether they really differ. Created by :func:`classgap.audit_labels`; methods are views of it.

    Attributes:
        labels: Names of the labels.
        per_label: Structured array, one record per label, lowest F1 first: ``name, support`` (samples that have the label),
            ``predicted`` (samples predicted to have it), then each with its interval (``*_low``, ``*_high``): ``recall`` (share
            of the samples with the label that are found), ``precision`` (share of the predictions that are right),
            ``specificity`` (share of the other samples that are predicted not to have it), ``f1``; and with scores
            ``threshold``, ``auc`` and ``average_precision``. nan for a label without samples.
        metrics: ``macro_f1``, ``micro_f1``, and the aggregates of the recalls under the names of the audit of classes.
        groups: ``groups["recall"]`` and ``groups["precision"]``: aggregates over the labels, as for the accuracies of classes;
            "balanced" is the mean, "hard" the third of labels with the lowest value.
        homogeneity, precision_homogeneity: Tests of "all labels have the same recall" and "… the same precision".
        verdict: Their results in one sentence.
        samples: The audited predictions.
        notes: Remarks, e.g. that a label has no samples.
    """

    labels: tuple[str, ...]
    num_samples: int
    confidence: float
    seed: int
    per_label: NDArray[np.void]
    metrics: Mapping[str, Estimate]
    groups: Mapping[str, Mapping[str, Estimate]]
    homogeneity: Homogeneity
    precision_homogeneity: Homogeneity
    verdict: str
    samples: MultiLabelPredictions
    notes: tuple[str, ...] = ()

    @property
    def worst_label(self) -> Any:
        """The record of the label with the lowest F1."""
        return self.per_label[0]

    def __repr__(self) -> str:
        worst = self.worst_label
        numbers = (
            f"macro F1 {percent(self.metrics['macro_f1'].value)}, lowest F1 {percent(worst['f1'])} ({worst['name']})"
        )
        return f"<MultiLabelReport: {self.size}; {numbers}>"

    def _repr_html_(self) -> str:
        name, verdict, *tables = self.summary(notebook.CLASSES_SHOWN)
        return notebook.block(name, self.size, verdict, tables, self.notes)

    def headline_rows(self) -> list[tuple[str, str, str]]:
        """The main numbers as text: name, value, interval."""
        found = [(MEANINGS[name][0], self.metrics[name]) for name in MEANINGS]
        for side in SIDES:
            found += [(side_label(side, name), self.groups[side][name]) for name in ("balanced", "hard", "worst",
                      "worst_corrected", "gap", "gap_corrected")]  # fmt: skip
        return [(name, percent(e.value), _interval(e.low, e.high)) for name, e in found]

    def _label_heads(self) -> tuple[str, ...]:
        level = f"{confidence_level(self.confidence)} interval"
        return ("label", "samples", "predicted", "F1", level, "recall", level, "precision", level)

    def label_rows(self, count: int) -> list[tuple[str, ...]]:
        """The labels with the lowest F1 as text; labels without samples are left out."""
        rows = []
        for r in self.per_label[self.per_label["support"] > 0][:count]:
            cells = [str(r["name"]), f"{r['support']:,}", f"{r['predicted']:,}"]
            for name in ("f1", *SIDES):
                cells += [percent(r[name]), _interval(r[f"{name}_low"], r[f"{name}_high"])]
            rows.append(tuple(cells))
        return rows

    def summary(self, labels: int) -> tuple[str, str, Table, Table]:
        means = "Aggregates", ("", "value", f"{confidence_level(self.confidence)} interval"), self.headline_rows()
        lowest = "Labels with the lowest F1", self._label_heads(), self.label_rows(labels)
        return "Label audit", self.verdict, means, lowest

    def content(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "verdict": self.verdict,
            "homogeneity": asdict(self.homogeneity),
            "precision_homogeneity": asdict(self.precision_homogeneity),
            "metrics": {name: asdict(estimate) for name, estimate in self.metrics.items()},
            "groups": {side: {name: asdict(e) for name, e in found.items()} for side, found in self.groups.items()},
        }


def side_label(side: str, name: str) -> str:
    """Text for an aggregate of the recalls or precisions of the labels.

    Example:
        >>> side_label("recall", "worst_corrected"), side_label("precision", "balanced")
        ('lowest recall, corrected', 'mean precision')
    """
    words = {"balanced": f"mean {side}", "hard": f"{side}, worst third", "worst": f"lowest {side}", "gap": f"gap in {side}",
             "worst_decile": f"{side}, worst 10 %"}  # fmt: skip
    base = name.removesuffix("_corrected")
    return words.get(base, label(base)) + (", corrected" if base != name else "")


def _interval(low: float, high: float) -> str:
    return "–" if np.isnan(low) else f"{percent(low)} – {percent(high)}"
