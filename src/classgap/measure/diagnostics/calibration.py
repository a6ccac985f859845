"""Expected calibration error (ECE), overall and per class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints, class_means, divide, group_sums, row_blocks


@dataclass(frozen=True, eq=False)
class Calibration:
    r"""Expected calibration errors :math:`\sum_b \frac{n_b}{n} |\mathrm{acc}_b - \mathrm{conf}_b|`; empty bins contribute 0.

    Attributes:
        ece: Confidence of the prediction against accuracy, equal-width bins.
        adaptive_ece: ECE with bins of equal numbers of samples.
        per_true_class: ``(K,)`` ECE over the samples *of* class k only. Since it conditions on the label, even a calibrated
            model does not reach 0.
        classwise: ``(K,)`` calibration error of the probability *of* class k over all samples; 0 for a calibrated model.
        overconfidence: ``(K,)`` mean confidence minus accuracy over the samples of class k.
        edges: ``(bins + 1,)`` equal-width edges; bin b holds confidences in ``(edges[b], edges[b + 1]]``.
        bin_counts, bin_accuracy, bin_confidence: ``(bins,)`` the reliability diagram.
    """

    ece: float
    adaptive_ece: float
    per_true_class: Float64s
    classwise: Float64s
    overconfidence: Float64s
    edges: Float64s
    bin_counts: Ints
    bin_accuracy: Float64s
    bin_confidence: Float64s

    def columns(self) -> dict[str, Float64s]:
        """Columns of the per-class table of the audit."""
        return {
            "ece": self.per_true_class,
            "classwise_ece": self.classwise,
            "overconfidence": self.overconfidence,
        }

    def summary(self) -> dict[str, float]:
        """Overall errors, and means over classes."""
        return {
            "ece": self.ece,
            "adaptive_ece": self.adaptive_ece,
            "per_true_class_ece": float(np.nanmean(self.per_true_class)),
            "classwise_ece": float(np.nanmean(self.classwise)),
        }


def describe(probabilities: Floats, y_true: Ints, *, bins: int = 15) -> Calibration:
    """Calibration of ``probabilities`` (``(n, K)``, rows sum to 1), computed in blocks of rows.

    ECE is biased upwards for few samples; compare classes with similar numbers of samples.

    Example:
        >>> import numpy as np
        >>> describe(np.eye(3), np.arange(3)).ece
        0.0
    """
    checks.number("bins", bins, low=1)
    probabilities = checks.float_matrix("probabilities", probabilities)
    num_classes = probabilities.shape[1]
    y_true = checks.class_indices("y_true", y_true, num_classes, rows=len(probabilities))
    checks.probabilities("probabilities", probabilities)

    confidence, correct = _top_label(probabilities, y_true)
    place = _equal_width(confidence, bins)
    totals = _Bins.gather(place, confidence, correct, bins)
    per_class = _Bins.gather(y_true * bins + place, confidence, correct, num_classes * bins)
    return Calibration(
        ece=float(totals.error(groups=1)[0]),
        adaptive_ece=expected_calibration_error(confidence, correct, bins=bins, adaptive=True),
        per_true_class=per_class.error(groups=num_classes),
        classwise=_classwise(probabilities, y_true, bins),
        overconfidence=class_means(confidence - correct, y_true, num_classes),
        edges=np.linspace(0.0, 1.0, bins + 1),
        bin_counts=totals.counts,
        bin_accuracy=divide(totals.hits, totals.counts),
        bin_confidence=divide(totals.mass, totals.counts),
    )


def expected_calibration_error(confidence: Floats, correct: Floats, *, bins: int = 15, adaptive: bool = False) -> float:
    """ECE of given confidences in [0, 1] against 0/1 outcomes.

    Args:
        adaptive: Use bins of equal numbers of samples instead of equal width.
    """
    if len(confidence) == 0:
        return float("nan")
    if adaptive:
        place = np.empty(len(confidence), np.int64)
        place[np.argsort(confidence, kind="stable")] = np.arange(len(confidence)) * bins // len(confidence)
    else:
        place = _equal_width(confidence, bins)
    return float(_Bins.gather(place, confidence, correct, bins).error(groups=1)[0])


def softmax(logits: Floats) -> Floats:
    """Row-wise softmax, computed in float64 blocks and returned as float32."""
    result = np.empty(logits.shape, np.float32)
    for block in row_blocks(*logits.shape):
        values = logits[block].astype(np.float64)
        np.exp(values - values.max(axis=1, keepdims=True), out=values)
        result[block] = values / values.sum(axis=1, keepdims=True)
    return result


@dataclass(frozen=True, eq=False)
class _Bins:
    """Per bin: number of samples, sum of confidences, number of correct predictions."""

    counts: Ints
    mass: Float64s
    hits: Float64s

    @classmethod
    def gather(cls, place: Ints, confidence: Floats, correct: Floats, size: int) -> _Bins:
        return cls(
            np.bincount(place, minlength=size),
            group_sums(confidence, place, size),
            group_sums(correct, place, size),
        )

    def error(self, groups: int) -> Float64s:
        """ECE of each of ``groups`` consecutive blocks of bins; nan for a block without samples."""
        gaps = np.abs(self.hits - self.mass).reshape(groups, -1).sum(axis=1)
        return divide(gaps, self.counts.reshape(groups, -1).sum(axis=1))


def _equal_width(confidence: Floats, bins: int) -> Ints:
    """Index of the bin ``(b / bins, (b + 1) / bins]`` of each confidence; 0 belongs to the first bin."""
    return np.clip(np.ceil(np.asarray(confidence, np.float64) * bins).astype(np.int64) - 1, 0, bins - 1)


def _top_label(probabilities: Floats, y_true: Ints) -> tuple[Float64s, Float64s]:
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities[np.arange(len(probabilities)), predicted].astype(np.float64)
    return confidence, (predicted == y_true).astype(np.float64)


def _classwise(probabilities: Floats, y_true: Ints, bins: int) -> Float64s:
    """Binary calibration error of each column over all samples; nan for a class without samples."""
    num_rows, num_classes = probabilities.shape
    offset = np.arange(num_classes) * bins
    mass, hits = np.zeros(num_classes * bins), np.zeros(num_classes * bins)
    for block in row_blocks(num_rows, num_classes):
        values = probabilities[block].astype(np.float64)
        place = _equal_width(values, bins) + offset
        mass += group_sums(values.ravel(), place.ravel(), len(mass))
        own = place[np.arange(len(values)), y_true[block]]
        hits += np.bincount(own, minlength=len(hits))
    error = np.abs(hits - mass).reshape(num_classes, bins).sum(axis=1) / num_rows
    return np.where(np.bincount(y_true, minlength=num_classes) > 0, error, np.nan)
