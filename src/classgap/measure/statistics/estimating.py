"""Every metric of the class accuracies with its interval: observed, corrected for sampling noise, and cross-fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from classgap.arrays import Float64s, Ints
from classgap.measure.audit_report import Estimate
from classgap.measure.statistics import groups
from classgap.measure.statistics.deconvolution import corrected_values
from classgap.measure.statistics.groups import THIRDS, Remainder
from classgap.measure.statistics.intervals import wilson
from classgap.measure.statistics.metrics import CORRECTED, FROM_ACCURACY, evaluate
from classgap.measure.statistics.true_intervals import Bounds, cross_weights, true_intervals


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates of the metrics of the true accuracies; every interval is for the true value.

    Attributes:
        metrics: By name, also ``*_corrected``.
        crossed: The cross-fitted thirds.
        clean: The value of every metric, corrected for sampling noise.
    """

    metrics: dict[str, Estimate]
    crossed: dict[str, Estimate]
    clean: dict[str, float]


def estimate_metrics(
    correct: Ints,
    support: Ints,
    *,
    confidence: float,
    draws: int,
    rng: np.random.Generator,
    remainder: Remainder = "first",
) -> Estimates:
    """All estimates from the counts of the classes; classes without samples are excluded.

    The three values of a third (own ranking, corrected, cross-fitted) estimate the same true number; for the hard third, the
    first is too low and the last too high. They share one interval.

    Args:
        draws: Number of posterior draws for the ``*_corrected`` values.
    """
    present = support > 0
    correct, support = correct[present], support[present]
    values = np.clip(evaluate(correct / support, remainder=remainder), 0, 1)  # rounding may leave -1e-17
    observed = dict(zip(FROM_ACCURACY, values.tolist(), strict=True))
    fit = cross_fitted(correct, support, rng, remainder)
    bounds = true_intervals(correct, support, fit, observed, confidence=confidence, remainder=remainder)
    values = corrected_values(correct, support, FROM_ACCURACY, draws=draws, rng=rng, remainder=remainder)
    clean = dict(zip(FROM_ACCURACY, values.tolist(), strict=True))
    clean |= _consistent({name: clean[name] for name in CORRECTED}, observed)
    total = np.array([correct.sum() / support.sum()])
    low, high = wilson(total, support.sum(keepdims=True), confidence)
    metrics = {"overall": Estimate(float(total[0]), float(low[0]), float(high[0]))}
    metrics |= {name: Estimate(value, *bounds[name]) for name, value in observed.items()}
    metrics |= {f"{name}_corrected": _including(clean[name], bounds[name]) for name in CORRECTED}
    thirds = np.clip(fit.means[:3, 0], 0, 1).tolist()
    crossed = {name: _including(value, bounds[name]) for name, value in zip(THIRDS, thirds, strict=True)}
    return Estimates(metrics, crossed, clean | {"overall": metrics["overall"].value})


def estimates(names: Sequence[str], value: Float64s, low: Float64s, high: Float64s) -> dict[str, Estimate]:
    """Arrays of values and bounds as estimates by name."""
    return {n: Estimate(float(v), float(a), float(b)) for n, v, a, b in zip(names, value, low, high, strict=True)}


def cross_fitted(correct: Ints, support: Ints, rng: np.random.Generator, remainder: Remainder) -> groups.CrossFit:
    """Cross-fitted sums for :func:`~classgap.measure.statistics.true_intervals.true_intervals`."""
    number = len(support)
    right = np.repeat([1.0, 0.0], number)
    return groups.cross_fit(
        np.tile(np.arange(number), 2),
        np.concatenate([correct, support - correct]),
        right,
        right[:, None],
        number,
        rng=rng,
        weights=cross_weights(number, remainder),
    )


def _consistent(cleaned: Mapping[str, float], observed: Mapping[str, float]) -> dict[str, float]:
    """Limit corrections: no low number becomes lower, no spread wider, and no group of worst classes exceeds the mean."""
    result = {}
    for name, value in cleaned.items():
        if name in ("gap", "std"):
            result[name] = min(value, observed[name])
        else:
            result[name] = min(max(value, observed[name]), observed["balanced"])
    return result


def _including(value: float, bounds: Bounds) -> Estimate:
    if np.isnan(value):
        return Estimate(value, value, value)
    return Estimate(value, min(bounds[0], value), max(bounds[1], value))
