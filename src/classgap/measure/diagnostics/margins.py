"""Margins of the outputs, per sample and per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints, class_means, row_blocks, rows_of_classes

ScoreKind = Literal["logits", "probabilities"]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
HISTOGRAM_BINS = 40


@dataclass(frozen=True, eq=False)
class MarginDistribution:
    """One kind of margin: per sample, and its distribution within each class (nan for a class without samples).

    Attributes:
        samples: ``(n,)`` margin of every sample; negative means misclassified.
        mean, variance: ``(K,)`` within each class (``variance`` divides by the class's sample count).
        quantiles: ``(K, 5)`` at :data:`QUANTILES`.
        edges: ``(bins + 1,)`` edges of the bins, the same for all classes.
        counts: ``(K, bins)`` samples per bin; values beyond the outer edges are counted in the outer bins.
    """

    samples: Float64s
    mean: Float64s
    variance: Float64s
    quantiles: Float64s
    edges: Float64s
    counts: Ints


@dataclass(frozen=True, eq=False)
class Margins:
    r"""Output margins :math:`p_y - \max_{j \ne y} p_j` and logit margins :math:`z_y - \max_{j \ne y} z_j`.

    ``exact`` holds the :meth:`summary` of all samples where the distributions are those of a sample of them; the means and
    variances of the classes are then those of all samples too.
    """

    output: MarginDistribution
    logit: MarginDistribution
    exact: Mapping[str, float] | None = None

    def columns(self) -> dict[str, Float64s]:
        """Columns of the per-class table of the audit."""
        median = QUANTILES.index(0.5)
        return {
            "output_margin": self.output.mean,
            "logit_margin": self.logit.mean,
            "logit_margin_variance": self.logit.variance,
            "logit_margin_median": self.logit.quantiles[:, median],
        }

    def summary(self) -> dict[str, float]:
        """Means over samples, and over classes."""
        if self.exact is not None:
            return dict(self.exact)
        return {
            "output_margin": float(self.output.samples.mean()),
            "output_margin_balanced": float(np.nanmean(self.output.mean)),
            "logit_margin": float(self.logit.samples.mean()),
            "logit_margin_balanced": float(np.nanmean(self.logit.mean)),
            "negative_share": float((self.logit.samples < 0).mean()),
        }


def describe(scores: Floats, y_true: Ints, num_classes: int, *, kind: ScoreKind) -> Margins:
    """Margins of ``scores`` (``(n, K)``), computed in blocks of rows in float64.

    Probabilities determine logit margins too: softmax only shifts a row, so :math:`z_y - z_j = \\log p_y - \\log p_j`.
    Probabilities of exactly 0 are read as the smallest normal number of their type.

    Args:
        kind: ``"logits"`` for any real scores whose softmax is the model's output, or ``"probabilities"``.
    Example:
        >>> import numpy as np
        >>> m = describe(np.array([[0.7, 0.2, 0.1]]), np.array([0]), 3, kind="probabilities")
        >>> m.output.mean.round(3)
        array([0.5, nan, nan])
    """
    checks.one_of("kind", kind, ("logits", "probabilities"))
    scores = checks.float_matrix("scores", scores, columns=num_classes)
    y_true = checks.class_indices("y_true", y_true, num_classes, rows=len(scores))
    if num_classes < 2:
        raise checks.InputError(f"margins need at least 2 classes, got scores with {num_classes} column(s)")
    if kind == "probabilities":
        scores = checks.probabilities("scores", scores)
    output, logit = margins_of(scores, y_true, kind)
    # 99.8 % of the samples define the range, so that a few extreme margins do not push all others into one bin.
    low, high = np.quantile(logit, (0.001, 0.999))
    return Margins(
        output=_distribution(output, y_true, num_classes, low=-1.0, high=1.0),
        logit=_distribution(logit, y_true, num_classes, low=float(low), high=float(high)),
    )


def margins_of(scores: Floats, y_true: Ints, kind: ScoreKind) -> tuple[Float64s, Float64s]:
    """Output margin and logit margin of every sample."""
    output, logit = np.empty(len(scores)), np.empty(len(scores))
    tiny = np.finfo(scores.dtype).tiny
    for block in row_blocks(*scores.shape):
        values = scores[block].astype(np.float64)
        own, rival = _own_and_rival(values, y_true[block])
        if kind == "logits":
            top = np.maximum(own, rival)
            others = np.exp(values - top[:, None]).sum(axis=1)
            output[block] = (np.exp(own - top) - np.exp(rival - top)) / (np.exp(own - top) + others)
            logit[block] = own - rival
        else:
            output[block] = own - rival
            logit[block] = np.log(np.maximum(own, tiny)) - np.log(np.maximum(rival, tiny))
    return output, logit


def _own_and_rival(values: Float64s, y_true: Ints) -> tuple[Float64s, Float64s]:
    """Score of the true class, and the largest score of another class; sets the former to -inf in ``values``."""
    rows = np.arange(len(values))
    own = values[rows, y_true].copy()
    values[rows, y_true] = -np.inf
    return own, values.max(axis=1)


def _distribution(margin: Float64s, y_true: Ints, num_classes: int, *, low: float, high: float) -> MarginDistribution:
    rows = rows_of_classes(y_true, num_classes)
    if not high > low:  # all margins equal
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
    place = np.clip(((margin - low) / (high - low) * HISTOGRAM_BINS).astype(np.int64), 0, HISTOGRAM_BINS - 1)
    counts = np.bincount(y_true * HISTOGRAM_BINS + place, minlength=num_classes * HISTOGRAM_BINS)
    quantiles = np.full((num_classes, len(QUANTILES)), np.nan)
    for k, members in enumerate(rows):
        if len(members):
            quantiles[k] = np.quantile(margin[members], QUANTILES)
    mean = class_means(margin, y_true, num_classes)
    deviations = (margin - mean[y_true]) ** 2
    variance = class_means(deviations, y_true, num_classes)
    return MarginDistribution(margin, mean, variance, quantiles, edges, counts.reshape(num_classes, HISTOGRAM_BINS))
