"""What an audit derives from scores, features and confusions: sections, columns, causes and notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide, row_blocks
from classgap.measure.audit_report import Estimate, MarginLevels
from classgap.measure.diagnostics import bounds, calibration, geometry, margins, prediction_sets, ranking
from classgap.measure.diagnostics import threshold as threshold_table
from classgap.measure.diagnostics.causes import diagnosis
from classgap.measure.statistics.groups import THIRDS
from classgap.measure.statistics.intervals import z_value
from classgap.predictions import Confusion, Predictions

_CURVES = 6  # curves of precision and recall in the page


def top5(scores: NDArray[Any], y_true: Ints, support: Ints) -> Float64s:
    """Share of each class whose true score is among the five highest; ties count as if resolved at random."""
    return divide(top5_hits(scores, y_true, len(support)), support)


def top5_hits(scores: NDArray[Any], y_true: Ints, num_classes: int) -> Float64s:
    """Samples of each class whose true score is among the five highest."""
    hits = np.zeros(num_classes)
    for rows in row_blocks(len(y_true), scores.shape[1]):
        block, labels = scores[rows], y_true[rows]
        own = np.take_along_axis(block, labels[:, None], axis=1)
        higher, equal = (block > own).sum(1), (block == own).sum(1)
        hits += np.bincount(labels, weights=np.clip((5 - higher) / equal, 0, 1), minlength=num_classes)
    return hits


def score_sections(samples: Predictions | None, num_classes: int, confidence: float, seed: int) -> dict[str, Any]:
    """Margins, calibration, curves and sets from scores; geometry and bounds from features; None where there are none."""
    sections: dict[str, Any] = dict.fromkeys(
        ("margins", "calibration", "ranking", "prediction_sets", "geometry", "bounds")
    )
    if samples is None:
        return sections
    if samples.scores is not None:
        kind: Any = samples.scores_kind
        given = kind == "probabilities"
        probabilities = samples.scores if given else calibration.softmax(samples.scores)
        losses = None if given else calibration.losses_of(samples.scores, samples.y_true)
        sections["margins"] = margins.describe(samples.scores, samples.y_true, num_classes, kind=kind)
        sections["calibration"] = calibration.describe(probabilities, samples.y_true, losses=losses)
        rng = np.random.default_rng(seed)
        sections["prediction_sets"] = prediction_sets.describe(
            probabilities, samples.y_true, num_classes, confidence, rng
        )
        if samples.scores.size <= ranking.MAX_ENTRIES:
            order = probabilities if given else ranking.log_odds(samples.scores)
            sections["ranking"] = ranking.describe(order, samples.y_true, num_classes, confidence, _CURVES)
    if samples.features is not None:
        sections["geometry"] = geometry.describe(
            samples.features,
            samples.y_true,
            num_classes,
            weight=samples.weight,
            bias=samples.bias,
            margin_norms=samples.margin_norms,
            logits=samples.scores if samples.scores_kind == "logits" else None,
        )
        if samples.weight is not None:
            sections["bounds"] = bounds.describe(samples.features, samples.y_true, samples.weight, samples.bias)
    return sections


def threshold_of(samples: Predictions | None, confidence: float) -> threshold_table.Threshold | None:
    """Accuracy of both classes by threshold; None unless there are two classes with samples, and scores."""
    if samples is None or samples.scores is None or samples.num_classes != 2 or len(np.unique(samples.y_true)) < 2:
        return None
    positive = 1 if samples.positive is None else samples.positive
    kind = str(samples.scores_kind)
    return threshold_table.describe(
        samples.scores,
        kind,
        samples.y_true,
        samples.classes,
        positive=positive,
        used=samples.threshold,
        confidence=confidence,
    )


def margin_levels(group: Ints, support: Ints, sections: Mapping[str, Any], confidence: float) -> MarginLevels | None:
    """Output margins of all classes and of each third, and the smallest angle of the head (MR² Table 4)."""
    found: margins.Margins | None = sections["margins"]
    head = None if sections["geometry"] is None else sections["geometry"].head
    if found is None and head is None:
        return None
    output = {}
    for name, member in {"average": group >= 0, **{third: group == i for i, third in enumerate(THIRDS)}}.items():
        value = half = float("nan")
        if found is not None and member.any():
            variance = found.output.variance[member] / np.maximum(support[member] - 1, 1)
            value = float(found.output.mean[member].mean())
            half = z_value(confidence) * float(np.sqrt(variance.sum())) / int(member.sum())
        output[name] = Estimate(value, float(np.maximum(value - half, -1.0)), float(np.minimum(value + half, 1.0)))
    return MarginLevels(output, float("nan") if head is None else head.angles.margin)


def diagnoses(
    confusion: Confusion,
    classes: tuple[str, ...],
    group: Ints,
    samples: Predictions | None,
    shape: geometry.Geometry | None,
    train_counts: Ints | None,
) -> tuple[diagnosis.Diagnosis, ...]:
    """Causes of the hard classes, the hardest first."""
    hard = np.flatnonzero(group == 2)
    hard = hard[np.argsort(confusion.accuracy[hard], kind="stable")]
    return diagnosis.diagnose(
        confusion.counts,
        hard,
        classes,
        y_true=None if samples is None else samples.y_true,
        scores=None if samples is None else samples.scores,
        kind=None if samples is None else samples.scores_kind,
        geometry=shape,
        train_counts=train_counts,
    )


def inverted(samples: Predictions | None, found: ranking.Ranking | None) -> list[str]:
    """A note if the one score of two classes ranks them the wrong way round."""
    if samples is None or samples.positive is None or not samples.one_score or found is None:
        return []
    if not found.auc_high[samples.positive] < 0.5:
        return []
    positive, other = samples.classes[samples.positive], samples.classes[1 - samples.positive]
    return [
        f"the score of {positive!r} is higher for samples of {other!r} (area under the ROC curve "
        f"{found.auc[samples.positive]:.2f}); is it the score of {other!r}? then pass positive={other!r} (--positive {other})"
    ]
