"""Multi-label data: one binary problem per label, measured with the same statistics as classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap import checks
from classgap.arrays import divide
from classgap.measure.audit_report import SCHEMA_VERSION, Estimate, Homogeneity
from classgap.measure.diagnostics.ranking import auc_interval, average_precision, roc_area
from classgap.measure.render.plain import (
    columns_frame,
    json_ready,
    markdown_table,
    p_value,
    percent,
    records,
    structured,
)
from classgap.measure.statistics.estimating import estimate_metrics
from classgap.measure.statistics.intervals import wilson
from classgap.measure.statistics.metrics import label
from classgap.measure.statistics.noise import homogeneity

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("balanced", "hard", "hard_corrected", "worst", "worst_corrected", "worst_decile", "gap", "gap_corrected")


@dataclass(frozen=True, eq=False)
class MultiLabelReport:
    """Which labels are missed, and whether they really differ. Created by :func:`audit_labels`.

    Attributes:
        labels: Names of the labels.
        per_label: Structured array, one record per label, lowest recall first: ``name, support`` (samples that have the label),
            ``recall, low, high`` (share of them that are predicted to have it), ``specificity`` with its interval (share of the
            other samples that are predicted not to have it), ``precision, f1``, and with scores ``auc`` and
            ``average_precision`` with their intervals.
        metrics: Aggregates of the recalls, as for the accuracies of classes; "hard" is the third of labels with the lowest
            recall.
        homogeneity: Test of "all labels have the same recall".
        verdict: Its result in one sentence.
    """

    labels: tuple[str, ...]
    num_samples: int
    confidence: float
    per_label: NDArray[np.void]
    metrics: Mapping[str, Estimate]
    homogeneity: Homogeneity
    verdict: str

    def __repr__(self) -> str:
        worst = self.per_label[0]
        size = f"{len(self.labels):,} labels, {self.num_samples:,} samples"
        return f"<MultiLabelReport: {size}; lowest recall {percent(worst['recall'])} ({worst['name']}); {self.verdict}>"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON (nan is None)."""
        tree: dict[str, Any] = json_ready(
            {
                "schema_version": SCHEMA_VERSION,
                "num_samples": self.num_samples,
                "num_labels": len(self.labels),
                "confidence": self.confidence,
                "verdict": self.verdict,
                "homogeneity": asdict(self.homogeneity),
                "metrics": {name: asdict(estimate) for name, estimate in self.metrics.items()},
                "per_label": records(self.per_label),
            }
        )
        return tree

    def to_markdown(self, *, labels: int = 10) -> str:
        """Verdict, aggregates of the recalls, and the labels with the lowest recall."""
        level = f"{self.confidence:.0%} interval"
        rows = [
            (label(name).replace("class", "label"), percent(e.value), f"{percent(e.low)} – {percent(e.high)}")
            for name, e in self.metrics.items()
        ]
        worst = [
            (str(r["name"]), f"{r['support']:,}", percent(r["recall"]), f"{percent(r['low'])} – {percent(r['high'])}",
             percent(r["specificity"]), percent(r["precision"]))
            for r in self.per_label[:labels]
        ]  # fmt: skip
        parts = [
            f"## Label audit: {len(self.labels)} labels, {self.num_samples:,} samples",
            f"**{self.verdict}**",
            markdown_table(("", "recall", level), rows),
            "### Labels with the lowest recall",
            markdown_table(("label", "samples", "recall", level, "specificity", "precision"), worst),
        ]
        return "\n\n".join(parts) + "\n"

    def to_pandas(self) -> pd.DataFrame:
        """The labels as a data frame, indexed by name."""
        return columns_frame(self.per_label)


def audit_labels(
    y_true: ArrayLike,
    y_pred: ArrayLike | None = None,
    *,
    scores: ArrayLike | None = None,
    threshold: float | ArrayLike = 0.5,
    label_names: Sequence[str] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> MultiLabelReport:
    """Audit multi-label predictions: every label is a binary problem of its own.

    Args:
        y_true: ``(n, L)`` of 0 and 1: whether a sample has a label.
        y_pred: ``(n, L)`` of 0 and 1: whether it is predicted; by default where the score is at least the threshold.
        scores: ``(n, L)`` probabilities (or other scores; then pass their ``threshold``).
        threshold: One number, or one per label.
        label_names: Names of the labels, in the order of the columns.
        confidence: Confidence level of the intervals.
        seed: Random seed.
    Example:
        >>> report = audit_labels([[1, 0], [1, 1], [0, 1]], [[1, 0], [1, 0], [0, 0]], label_names=["red", "blue"])
        >>> report.per_label["name"].tolist(), report.per_label["recall"].tolist()
        (['blue', 'red'], [0.0, 1.0])
    """
    checks.fraction("confidence", confidence)
    checks.whole("seed", seed, low=0)
    true = _indicators("y_true", y_true)
    values = None
    if scores is not None:
        given = checks.as_numpy(scores)
        values = checks.float_matrix("scores", given, rows=true.shape[0], columns=true.shape[1]).astype(np.float64)
    predicted = _predicted(y_pred, values, threshold, true.shape)
    names = tuple(map(str, range(true.shape[1]) if label_names is None else label_names))
    if len(names) != true.shape[1] or len(set(names)) != len(names):
        raise checks.InputError(
            f"label_names must be {true.shape[1]} different names, one per column, got {len(names)}"
        )
    columns = _columns(true, predicted, np.array(names), confidence)
    if values is not None:
        columns |= _areas(true, values, confidence)
    rng = np.random.default_rng(seed)
    hits, support = (true & predicted).sum(0), true.sum(0)
    if not support.any():
        raise checks.InputError("y_true must have at least one sample with a label, got only zeros")
    found = estimate_metrics(hits, support, confidence=confidence, draws=1000, rng=rng)
    test = Homogeneity(*homogeneity(hits[support > 0], support[support > 0], rng))
    per_label = structured(columns)
    return MultiLabelReport(
        labels=names,
        num_samples=len(true),
        confidence=confidence,
        per_label=per_label[np.argsort(columns["recall"], kind="stable")],
        metrics={name: found.metrics[name] for name in METRICS},
        homogeneity=test,
        verdict=_verdict(found.metrics["gap"], found.metrics["gap_corrected"], test, confidence),
    )


def _indicators(name: str, value: Any) -> NDArray[np.bool_]:
    matrix = checks.as_numpy(value)
    if matrix.ndim != 2 or matrix.size == 0 or matrix.dtype.kind not in "biuf" or not np.isin(matrix, (0, 1)).all():
        raise checks.InputError(
            f"{name} must be a matrix of 0 and 1, one row per sample and one column per label, got shape {matrix.shape} of "
            f"{matrix.dtype}; for one label per sample use audit"
        )
    return matrix.astype(bool)


def _predicted(
    y_pred: Any, scores: NDArray[np.float64] | None, threshold: Any, shape: tuple[int, ...]
) -> NDArray[np.bool_]:
    if y_pred is not None:
        predicted = _indicators("y_pred", y_pred)
        if predicted.shape != shape:
            raise checks.InputError(f"y_pred must have the shape of y_true, {shape}, got {predicted.shape}")
        return predicted
    if scores is None:
        raise checks.InputError("y_true needs predictions to compare with: pass y_pred, or scores of shape (n, L)")
    limit = np.asarray(threshold, dtype=np.float64)
    if limit.shape not in ((), (shape[1],)) or not np.isfinite(limit).all():
        raise checks.InputError(
            f"threshold must be one number, or {shape[1]} numbers, one per label, got {threshold!r}"
        )
    return np.asarray(scores >= limit)


def _columns(
    true: NDArray[np.bool_], predicted: NDArray[np.bool_], names: NDArray[Any], confidence: float
) -> dict[str, NDArray[Any]]:
    hits, support, said = (true & predicted).sum(0), true.sum(0), predicted.sum(0)
    rest, spared = len(true) - support, (~true & ~predicted).sum(0)
    recall, specificity = divide(hits, support), divide(spared, rest)
    low, high = wilson(recall, support, confidence)
    other_low, other_high = wilson(specificity, rest, confidence)
    return {
        "name": names, "support": support, "recall": recall, "low": low, "high": high, "specificity": specificity,
        "specificity_low": other_low, "specificity_high": other_high, "precision": divide(hits, said),
        "f1": np.where(support > 0, divide(2 * hits, support + said), np.nan),
    }  # fmt: skip


def _areas(true: NDArray[np.bool_], scores: NDArray[np.float64], confidence: float) -> dict[str, NDArray[Any]]:
    number = true.shape[1]
    auc, variance, precision = np.full((3, number), np.nan)
    support = true.sum(0)
    for k in np.flatnonzero((support > 0) & (support < len(true))):
        sides = scores[true[:, k], k], scores[~true[:, k], k]
        (auc[k], variance[k]), precision[k] = roc_area(*sides), average_precision(*sides)
    low, high = auc_interval(auc, variance, support, len(true) - support, confidence)
    ap_low, ap_high = wilson(precision, support, confidence)
    return {"auc": auc, "auc_low": low, "auc_high": high, "average_precision": precision,
            "average_precision_low": ap_low, "average_precision_high": ap_high}  # fmt: skip


def _verdict(gap: Estimate, true_gap: Estimate, test: Homogeneity, confidence: float) -> str:
    if test.method == "no variation to test":
        return "There is no gap: every label with samples has the same recall."
    observed = f"the observed gap between the highest and the lowest recall of a label is {percent(gap.value)}"
    interval = f"{percent(true_gap.low)} to {percent(true_gap.high)} ({confidence:.0%} interval)"
    if test.p_value < 1 - confidence:
        return f"The gap is real ({p_value(test.p_value)}): {observed}; the true gap is {interval}."
    return f"The gap may be sampling noise ({p_value(test.p_value)}): {observed}; a true gap of {interval} is compatible with it."
