"""Multi-label data: one binary problem per label, measured with the same statistics as classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap import checks
from classgap.arrays import divide
from classgap.measure.audit_report import Estimate, Homogeneity
from classgap.measure.diagnostics.ranking import auc_interval, average_precision, roc_area
from classgap.measure.multi_label_report import MultiLabelReport
from classgap.measure.render.plain import confidence_level, p_value, percent, structured
from classgap.measure.statistics.estimating import estimate_metrics
from classgap.measure.statistics.f1 import LabelCounts, mean_f1
from classgap.measure.statistics.intervals import wilson
from classgap.measure.statistics.noise import homogeneity
from classgap.predictions import Columns
from classgap.predictions.multi_label import MultiLabelPredictions, Thresholds, as_label_predictions

METRICS = ("balanced", "hard", "hard_corrected", "worst", "worst_corrected", "worst_decile", "gap", "gap_corrected")
NOTHING_FOUND = (
    "No label is predicted correctly for any sample: check that the columns and rows of both belong together."
)
_FEW = 10


def audit_labels(
    y_true: Any,
    y_pred: ArrayLike | None = None,
    *,
    scores: ArrayLike | None = None,
    scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
    threshold: Thresholds | None = None,
    label_names: Sequence[str] | None = None,
    ids: ArrayLike | None = None,
    columns: Columns | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> MultiLabelReport:
    """Audit multi-label predictions: every label is a binary problem of its own.

    Two questions are asked of every label, each with the statistics of class accuracies: how many of the samples that have it
    are found (recall), and how many of the samples that are predicted to have it do have it (precision).

    Args:
        y_true: ``(n, L)`` of 0 and 1: whether a sample has a label; or an object that holds all inputs: a
            :class:`~classgap.MultiLabelPredictions`, the path of a prediction file, or a table.
        y_pred: ``(n, L)`` of 0 and 1: whether it is predicted; by default where the probability reaches the threshold.
        scores: ``(n, L)`` probabilities or logits of the labels.
        scores_kind: Kind of the scores. ``"auto"``: logits if a value lies outside [0, 1] (± 0.001), otherwise probabilities.
        threshold: Probability from which a label is predicted, also for logits: one number, one per label, or by name. By default
            0.5, or the predictions that are given.
        label_names: Names of the labels, in the order of the columns.
        ids: Sample ids.
        columns: Names of the columns of a file or table, see :meth:`MultiLabelPredictions.read`.
        confidence: Confidence level of the intervals.
        seed: Random seed.
    Example:
        >>> report = audit_labels([[1, 0], [1, 1], [0, 1]], [[1, 0], [1, 0], [0, 0]], label_names=["red", "blue"])
        >>> report.per_label["name"].tolist(), report.per_label["recall"].tolist()
        (['blue', 'red'], [0.0, 1.0])
    """
    checks.fraction("confidence", confidence)
    checks.whole("seed", seed, low=0)
    found = as_label_predictions(
        y_true,
        y_pred,
        scores=scores,
        scores_kind=scores_kind,
        threshold=threshold,
        label_names=label_names,
        ids=ids,
        columns=columns,
    )
    counts = LabelCounts.gather(found.y_true, found.y_pred)
    if not counts.support.any():
        raise checks.InputError("y_true must have at least one sample with a label, got only zeros")
    rng = np.random.default_rng(seed)
    per_label = structured(_columns(found, counts, confidence))
    recall = _side(counts.hits, counts.support, confidence, rng)
    precision = _side(counts.hits, np.where(counts.support > 0, counts.said, 0), confidence, rng)
    means = {
        name: Estimate(*mean_f1(found.y_true, found.y_pred, confidence, micro=name == "micro_f1"))
        for name in ("macro_f1", "micro_f1")
    }
    order = np.argsort(per_label["f1"], kind="stable")  # nan last
    return MultiLabelReport(
        labels=found.labels,
        num_samples=found.num_samples,
        confidence=confidence,
        seed=seed,
        per_label=per_label[order],
        metrics=means | recall[0],
        groups={"recall": recall[0], "precision": precision[0]},
        homogeneity=recall[1],
        precision_homogeneity=precision[1],
        verdict=_verdict(found, recall, precision, means["micro_f1"], confidence),
        samples=found,
        notes=(*found.notes, *_notes(found, counts)),
    )


Side = tuple[dict[str, Estimate], Homogeneity]


def _side(hits: NDArray[Any], size: NDArray[Any], confidence: float, rng: np.random.Generator) -> Side:
    """Aggregates of one share per label, and the test that it is the same for all labels."""
    present = size > 0
    if not present.any():
        nothing = Estimate(*[float("nan")] * 3)
        return dict.fromkeys(METRICS, nothing), Homogeneity(0.0, 1.0, "no variation to test")
    found = estimate_metrics(hits, size, confidence=confidence, draws=1000, rng=rng)
    test = Homogeneity(*homogeneity(hits[present], size[present], rng))
    return {name: found.metrics[name] for name in METRICS}, test


def _columns(found: MultiLabelPredictions, counts: LabelCounts, confidence: float) -> dict[str, NDArray[Any]]:
    support, said, hits = counts.support, counts.said, counts.hits
    rest = found.num_samples - support
    specificity = divide(rest - (said - hits), rest)
    columns: dict[str, NDArray[Any]] = {"name": np.array(found.labels), "support": support, "predicted": said}
    for name, share, size in (
        ("recall", counts.recall, support),
        ("precision", counts.precision, said),
        ("specificity", specificity, rest),
    ):
        low, high = wilson(share, size, confidence)
        columns |= {name: share, f"{name}_low": low, f"{name}_high": high}
    low, high = counts.interval(confidence)
    columns |= {"f1": counts.f1, "f1_low": low, "f1_high": high}
    if found.thresholds is not None:
        columns["threshold"] = found.thresholds
    if found.scores is not None:
        columns |= _areas(found.y_true, found.scores, confidence)
    return columns


def _areas(true: NDArray[np.bool_], scores: NDArray[Any], confidence: float) -> dict[str, NDArray[Any]]:
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


def _verdict(found: MultiLabelPredictions, recall: Side, precision: Side, micro: Estimate, confidence: float) -> str:
    """Recall first, then precision: a model that predicts every label of every sample has a perfect recall."""
    if micro.value == 0:
        return NOTHING_FOUND
    sentences = [_sentence(name, side, confidence) for name, side in (("recall", recall), ("precision", precision))]
    real = [name for name, side in (("recall", recall), ("precision", precision)) if side[1].p_value < 1 - confidence]
    title = {
        2: "Labels really differ in recall and precision",
        1: f"Labels really differ in {real[0] if real else ''}",
        0: "The differences between labels may be sampling noise",
    }[len(real)]
    return f"{title}: {sentences[0]}; {sentences[1]}."


def _sentence(name: str, side: Side, confidence: float) -> str:
    metrics, test = side
    if test.method == "no variation to test":
        value = metrics["balanced"].value
        return (
            f"no label is predicted, so there is no {name}"
            if np.isnan(value)
            else f"every label has a {name} of {percent(value)}"
        )
    gap, true_gap = metrics["gap"], metrics["gap_corrected"]
    return (
        f"the observed gap in {name} is {percent(gap.value)}, the lowest {name} {percent(metrics['worst'].value)}; without "
        f"sampling noise the gap is {percent(true_gap.low)} to {percent(true_gap.high)} ({confidence_level(confidence)} "
        f"interval, {p_value(test.p_value)})"
    )


def _notes(found: MultiLabelPredictions, counts: LabelCounts) -> list[str]:
    labels = np.array(found.labels, dtype=object)
    present = counts.support > 0
    kinds = (
        (~present, "no samples; recall, precision and F1 are nan, and averages exclude {them}"),
        (present & (counts.said == 0), "samples but {are} never predicted; the precision is nan"),
        (
            present & (counts.said == found.num_samples),
            "been predicted for every sample, so a recall of 100 % says nothing",
        ),
        (counts.support == found.num_samples, "no sample without the label, so the specificity and the AUC are nan"),
    )
    notes = []
    for chosen, text in kinds:
        names = labels[chosen]
        if len(names):
            shown = ", ".join(map(repr, names[:5])) + (" …" if len(names) > 5 else "")
            one = len(names) == 1
            who = f"label {shown} has" if one else f"{len(names)} labels ({shown}) have"
            notes.append(f"{who} {text.format(them='it' if one else 'them', are='is' if one else 'are')}")
    few = int((present & (counts.support < _FEW)).sum())
    if few:
        notes.append(
            f"{few} label{'s have' if few > 1 else ' has'} fewer than {_FEW} samples and therefore wide intervals"
        )
    if found.num_labels > 1:
        notes.append(
            "the labels of one sample are correlated: intervals of macro and micro F1 take this into account; the tests of equal "
            "recall and precision treat the labels as independent, which makes them cautious if labels are right or wrong "
            "together"
        )
    return notes
