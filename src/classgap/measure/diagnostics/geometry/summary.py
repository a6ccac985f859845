"""Geometry of features and head: spread, distances, angles, separability, neural collapse."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints, class_means, divide, rows_of_classes
from classgap.measure.diagnostics.geometry.angles import Angles, HeadGeometry, angles_between, describe_head
from classgap.measure.diagnostics.geometry.collapse import Collapse, neural_collapse
from classgap.measure.diagnostics.geometry.fisher import MAX_WIDTH, Fisher, fisher_separability, smallest
from classgap.measure.diagnostics.geometry.spread import ANCHORS, Spread, measure_spread
from classgap.predictions.arrays import check_head


@dataclass(frozen=True, eq=False)
class Geometry:
    """Geometry of the classes in feature space and of the head; nan for a class without samples.

    Attributes:
        spread: Means and deviations within classes.
        mean_angles: Angles between class means, measured from their common centre.
        fisher: Separability of pairs of classes (features scaled to length 1).
        collapse: Measures of neural collapse.
        head: The linear head; None without one.
        notes: Which approximations were used where exact values would take too long or be too noisy.
    """

    spread: Spread
    mean_angles: Angles
    fisher: Fisher
    collapse: Collapse
    head: HeadGeometry | None
    notes: tuple[str, ...] = ()

    def columns(self) -> dict[str, Float64s]:
        """Per-class columns of the audit's table."""
        columns = {
            "spread": self.spread.spread,
            "spread_unbiased": self.spread.spread_unbiased,
            "spread_ratio": self.spread.ratio,
            "variance_norm": self.spread.variance_norm,
            "max_distance": divide(self.spread.diameter, self.spread.largest_norm),
            "mean_max_distance": divide(self.spread.mean_max_distance, self.spread.largest_norm),
            "mr2_excess_distance": self.spread.excess_by_class,
            "fisher": self.fisher.separability,
            "nearest_fisher": smallest(self.fisher.criterion)[0],
            "boundary_error": self.fisher.boundary_error,
            "nearest_angle": self.mean_angles.nearest,
        }
        if self.head is not None:
            columns |= {
                "weight_norm": self.head.norms,
                "weight_angle": self.head.angles.nearest,
                "average_logit": self.head.average_logit,
                "average_margin": self.head.average_margin,
                "sample_angle": self.head.sample_angle[:, 0],
            }
        return columns

    def neighbours(self) -> dict[str, Ints]:
        """Index of the nearest other class of each class by each measure; -1 if there is none."""
        nearest = {"fisher": self.fisher.nearest, "mean_angle": self.mean_angles.neighbour}
        if self.head is not None:
            nearest["weight_angle"] = self.head.angles.neighbour
        return nearest

    def summary(self) -> dict[str, float]:
        """Overall numbers: means over classes, or over samples for distances."""
        summary = {
            "spread": float(np.nanmean(self.spread.spread)),
            "spread_ratio": _mean(self.spread.ratio),
            "mean_max_distance": float(divide(self.spread.max_distance.mean(), self.spread.largest_norm)),
            "mr2_excess_distance": float(self.spread.excess.mean()),
            "fisher": _mean(self.fisher.separability),
            "mean_angle": self.mean_angles.mean,
            **asdict(self.collapse),
        }
        if self.head is not None:
            summary |= {
                "classifier_margin": self.head.angles.margin,
                "classifier_margin_limit": self.head.limit,
                "weight_angle": self.head.angles.mean,
                "weight_norm": float(self.head.norms.mean()),
                "weight_norm_variation": self.head.norm_variation,
                "average_margin": _mean(self.head.average_margin),
                "sample_angle": _mean(self.head.sample_angle[:, 0]),
            }
        return summary


def _mean(values: Float64s) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def describe(
    features: Floats,
    y_true: Ints,
    num_classes: int,
    *,
    weight: Floats | None = None,
    bias: Floats | None = None,
    margin_norms: Floats | None = None,
    logits: Floats | None = None,
) -> Geometry:
    """Geometry of ``features`` (``(n, d)``) and, if given, of the linear head ``weight`` (``(K, d)``), ``bias`` (``(K,)``).

    Features are the inputs of the head in evaluation mode. Sums are float64. Memory holds one block of rows, the class means,
    one d × d matrix and K × K tables (one covariance per class only if they are small).

    Args:
        margin_norms: ``(K,)`` norms of the head's rows before MARC. The average margin is then that of MARC's eq. 8.
        logits: ``(n, K)`` calibrated logits, used with ``margin_norms``; by default the logits of the head.
    Example:
        >>> import numpy as np
        >>> g = describe(np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4), 3, weight=np.eye(3))
        >>> g.head.angles.margin, round(g.head.limit)
        (90.0, 120)
    """
    features = checks.feature_matrix(features)
    y_true = checks.class_indices("y_true", y_true, num_classes, rows=len(features))
    if weight is None and bias is not None:
        raise checks.InputError("bias also needs weight; pass both or neither")
    head = None if weight is None else check_head(weight, bias, num_classes, features.shape[1])
    norms = None if margin_norms is None else _positive_norms(margin_norms, num_classes)
    own = None
    if norms is not None and logits is not None:
        logits = checks.float_matrix("logits", logits, rows=len(features), columns=num_classes)
        own = class_means(logits[np.arange(len(y_true)), y_true], y_true, num_classes)
    rows = rows_of_classes(y_true, num_classes)
    spread = measure_spread(features, y_true, rows)
    means = spread.means
    fisher = fisher_separability(features, y_true, num_classes)
    return Geometry(
        spread=spread,
        mean_angles=angles_between(means - means[spread.support > 0].mean(axis=0)),
        fisher=fisher,
        collapse=neural_collapse(features, y_true, means, spread.spread, spread.largest_norm, head=head),
        head=None
        if head is None
        else describe_head(features, y_true, rows, means, *head, margin_norms=norms, average_logit=own),
        notes=_notes(fisher, spread.support),
    )


def _positive_norms(norms: Floats, num_classes: int) -> Float64s:
    vector = checks.float_vector("margin_norms", norms, length=num_classes)
    if vector.min() <= 0:
        raise checks.InputError(f"margin_norms must be positive, got a minimum of {vector.min():g}")
    return vector


def _notes(fisher: Fisher, support: Ints) -> tuple[str, ...]:
    notes = []
    if fisher.covariance == "pooled":
        notes.append("Fisher separability uses one covariance matrix, pooled over classes.")
    if fisher.covariance == "none":
        notes.append(
            f"Fisher separability is not computed above {MAX_WIDTH} feature dimensions; project the features first."
        )
    if support.max() > ANCHORS:
        notes.append(
            f"In classes with more than {ANCHORS} samples, largest distances are measured to the {ANCHORS} samples farthest from "
            "the class mean."
        )
    return tuple(notes)
