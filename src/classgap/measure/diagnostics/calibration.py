"""Expected calibration error (ECE), overall and per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints, divide, group_sums, row_blocks


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
        log_loss: ``(K,)`` mean negative logarithm of the probability of the true class, over the samples of class k; from
            logits without rounding to probabilities. Given probabilities of 0 are read as the smallest normal number of their
            type.
        brier: ``(K,)`` mean squared distance of the probabilities from the true class, 0 to 2, over the samples of class k.
        support: ``(K,)`` samples of each class.
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
    log_loss: Float64s
    brier: Float64s
    support: Ints

    def columns(self) -> dict[str, Float64s]:
        """Columns of the per-class table of the audit."""
        return {
            "ece": self.per_true_class,
            "classwise_ece": self.classwise,
            "overconfidence": self.overconfidence,
            "log_loss": self.log_loss,
            "brier": self.brier,
        }

    def summary(self) -> dict[str, float]:
        """Overall errors, and means over classes."""
        return {
            "ece": self.ece,
            "adaptive_ece": self.adaptive_ece,
            "per_true_class_ece": float(np.nanmean(self.per_true_class)),
            "classwise_ece": float(np.nanmean(self.classwise)),
            "log_loss": float(np.nansum(self.log_loss * self.support) / self.support.sum()),
            "brier": float(np.nansum(self.brier * self.support) / self.support.sum()),
        }


def describe(probabilities: Floats, y_true: Ints, *, losses: Float64s | None = None, bins: int = 15) -> Calibration:
    """Calibration of ``probabilities`` (``(n, K)``, rows sum to 1), computed in blocks of rows.

    ECE is biased upwards for few samples; compare classes with similar numbers of samples.

    Args:
        losses: ``(n,)`` log-loss of every sample where it is known from logits (:func:`losses_of`).
    Example:
        >>> import numpy as np
        >>> describe(np.eye(3), np.arange(3)).ece
        0.0
    """
    checks.number("bins", bins, low=1)
    probabilities = checks.float_matrix("probabilities", probabilities)
    num_classes = probabilities.shape[1]
    y_true = checks.class_indices("y_true", y_true, num_classes, rows=len(probabilities))
    probabilities = checks.probabilities("probabilities", probabilities)
    sums = CalibrationSums(num_classes, bins)
    confidence, correct = sums.add(probabilities, y_true, losses)
    return sums.result(expected_calibration_error(confidence, correct, bins=bins, adaptive=True))


class CalibrationSums:
    """What calibration needs of all samples, as sums over batches of them; only the adaptive ECE needs their order."""

    def __init__(self, num_classes: int, bins: int = 15) -> None:
        self.num_classes, self.bins = num_classes, bins
        self.per_class = _Bins(*np.zeros((3, num_classes * bins)))
        self.columns = _Bins(*np.zeros((3, num_classes * bins)))
        self.log_loss, self.brier = np.zeros(num_classes), np.zeros(num_classes)

    def add(self, probabilities: Floats, y_true: Ints, losses: Float64s | None) -> tuple[Float64s, Float64s]:
        """Add samples, with their ``losses`` if these are known from logits; returns the confidence of each sample, and 1 where
        the class with the highest probability is right."""
        confidence, correct = _top_label(probabilities, y_true)
        place = y_true * self.bins + _equal_width(confidence, self.bins)
        self.per_class += _Bins.gather(place, confidence, correct, len(self.per_class.counts))
        tiny = np.finfo(probabilities.dtype).tiny
        for block in row_blocks(*probabilities.shape):
            values, labels = probabilities[block].astype(np.float64), y_true[block]
            own = values[np.arange(len(values)), labels]
            self.columns += _column_bins(values, labels, self.bins)
            loss = -np.log(np.maximum(own, tiny)) if losses is None else losses[block]
            self.log_loss += group_sums(loss, labels, self.num_classes)
            self.brier += group_sums((values**2).sum(axis=1) - 2 * own + 1, labels, self.num_classes)
        return confidence, correct

    def result(self, adaptive_ece: float) -> Calibration:
        """The calibration of all samples added."""
        totals = self.per_class.merged(self.bins)
        support = self.per_class.counts.reshape(self.num_classes, -1).sum(1)
        excess = (self.per_class.mass - self.per_class.hits).reshape(self.num_classes, -1).sum(1)
        classwise = np.abs(self.columns.hits - self.columns.mass).reshape(self.num_classes, -1).sum(1)
        return Calibration(
            ece=float(totals.error(groups=1)[0]),
            adaptive_ece=adaptive_ece,
            per_true_class=self.per_class.error(groups=self.num_classes),
            classwise=np.where(support > 0, divide(classwise, support.sum()), np.nan),
            overconfidence=divide(excess, support),
            edges=np.linspace(0.0, 1.0, self.bins + 1),
            bin_counts=totals.counts.astype(np.int64),
            bin_accuracy=divide(totals.hits, totals.counts),
            bin_confidence=divide(totals.mass, totals.counts),
            log_loss=divide(self.log_loss, support),
            brier=divide(self.brier, support),
            support=support.astype(np.int64),
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


def losses_of(logits: Floats, y_true: Ints) -> Float64s:
    """Log-loss of every sample, also where the probability of its class is too small for a floating-point number.

    Example:
        >>> losses_of(np.array([[0.0, 500.0]]), np.array([0])).tolist()
        [500.0]
    """
    result = np.empty(len(logits))
    for block in row_blocks(*logits.shape):
        values = logits[block].astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        result[block] = np.log(np.exp(values).sum(axis=1)) - values[np.arange(len(values)), y_true[block]]
    return result


@dataclass(frozen=True, eq=False)
class _Bins:
    """Per bin: number of samples, sum of confidences, number of correct predictions."""

    counts: Any
    mass: Float64s
    hits: Float64s

    def __add__(self, other: _Bins) -> _Bins:
        return _Bins(self.counts + other.counts, self.mass + other.mass, self.hits + other.hits)

    def merged(self, bins: int) -> _Bins:
        """The same bins of all groups together."""
        return _Bins(*(values.reshape(-1, bins).sum(0) for values in (self.counts, self.mass, self.hits)))

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


def _column_bins(values: Float64s, y_true: Ints, bins: int) -> _Bins:
    """The bins of each column over all samples, for the calibration error of the probability of a class."""
    size = values.shape[1] * bins
    place = _equal_width(values, bins) + np.arange(values.shape[1]) * bins
    own = place[np.arange(len(values)), y_true]
    return _Bins(
        np.zeros(size), group_sums(values.ravel(), place.ravel(), size), group_sums(np.ones(len(own)), own, size)
    )
