r"""Learning curves: the error as a function of the number of training samples, and what more samples would give.

The error of a group of classes is taken to follow :math:`e(n) = a + b\,n^{-c}` with :math:`a, b \ge 0`: it falls, ever more
slowly, towards a floor :math:`a` that no number of samples removes. Exponents from nearly 0 (a straight line in log n) to 2
(almost at the floor) are tried. Three things are uncertain, and all are in the interval of a prediction: which test samples
were drawn, which training samples and seeds, and the shape of the curve. The last one is judged by predicting the largest
size from the smaller ones: by how much this fails is added to the interval, and a quarter of the predicted gain in any case. The
interval is for the gain that a new model would show on the same test samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s
from classgap.measure.audit_report import Estimate

EXPONENTS = np.geomspace(0.02, 2.0, 40)
FEWEST_SIZES = 3
_SHAPE = 0.25  # share of the predicted gain by which its interval is widened: no curve has exactly this shape
_DRAWS = 400


@dataclass(frozen=True, eq=False)
class Curve:
    """Errors at several sizes: ``error (S,)`` at ``size (S,)``, ascending, with the covariance of their noise ``(S, S)``."""

    size: Float64s
    error: Float64s
    noise: Float64s


@dataclass(frozen=True)
class Extrapolation:
    """What a curve says about a larger number of training samples.

    Attributes:
        accuracy: Predicted accuracy at the larger size.
        gain: Predicted gain from the largest measured size to it.
        checked: Prediction of the accuracy at the largest size from the smaller ones; None with three sizes, which leave too
            few.
    """

    accuracy: Estimate
    gain: Estimate
    checked: Estimate | None


def extrapolate(curve: Curve, factor: float, confidence: float, rng: np.random.Generator) -> Extrapolation:
    """Prediction at ``factor`` times the largest size; nan for a group without classes, as a third of two classes may be."""
    if not (np.isfinite(curve.error).all() and np.isfinite(curve.noise).all()):
        unknown = Estimate(np.nan, np.nan, np.nan)
        return Extrapolation(unknown, unknown, None)
    checked, slack = None, 0.0
    if len(curve.size) > FEWEST_SIZES:
        smaller = Curve(curve.size[:-1], curve.error[:-1], curve.noise[:-1, :-1])
        checked, _ = _predict(smaller, float(curve.size[-1]), confidence, rng)
        seen = 1 - float(curve.error[-1])
        # the error of the check, scaled to the step on the logarithmic axis
        step = np.log(factor) / np.log(curve.size[-1] / curve.size[-2])
        slack = max(0.0, checked.low - seen, seen - checked.high) * max(1.0, float(step))
    accuracy, gain = _predict(curve, factor * float(curve.size[-1]), confidence, rng, slack)
    return Extrapolation(accuracy, gain, checked)


def _predict(
    curve: Curve, size: float, confidence: float, rng: np.random.Generator, slack: float = 0.0
) -> tuple[Estimate, Estimate]:
    """Accuracy at ``size``, and gain from the largest size of the curve to it, with intervals."""
    drawn = rng.multivariate_normal(np.zeros(len(curve.size)), curve.noise, size=_DRAWS, method="svd")
    errors = np.vstack([curve.error, curve.error + drawn])
    last = float(curve.size[-1])
    fitted = fit_power_law(curve.size, errors, np.sqrt(np.maximum(np.diag(curve.noise), 1e-12)), np.array([last, size]))
    gain = np.maximum(fitted[:, 0] - fitted[:, 1], 0.0)
    # what a new model would show: its training and the samples on which it differs from the last one are drawn anew
    step = float(curve.noise[-1, -1] + curve.noise[-2, -2] - 2 * curve.noise[-1, -2])
    gain[1:] += rng.normal(scale=np.sqrt(max(step, 0.0)), size=_DRAWS)
    slack += _SHAPE * float(gain[0])
    # the curve gives the gain; the level is that of the largest measured size as drawn
    return _estimate(1 - errors[:, -1] + gain, confidence, slack, low=0.0), _estimate(gain, confidence, slack, low=-1.0)


def _estimate(values: Float64s, confidence: float, slack: float, low: float) -> Estimate:
    ends = np.quantile(values[1:], [(1 - confidence) / 2, (1 + confidence) / 2])
    value = min(1.0, max(low, float(values[0])))
    return Estimate(value, max(low, min(float(ends[0]), value) - slack), min(1.0, max(float(ends[1]), value) + slack))


def fit_power_law(size: Float64s, error: Float64s, sigma: Float64s, at: Float64s) -> Float64s:
    r"""Least-squares fits of :math:`a + b n^{-c}`, :math:`a, b \ge 0`, to each row of ``error (D, S)``, evaluated ``at`` sizes.

    For each exponent the best a and b are known in closed form; the exponent with the smallest sum of squares is used.

    Example:
        >>> n = np.array([50.0, 100.0, 200.0, 400.0])
        >>> fit_power_law(n, (0.1 + 2 * n**-0.5)[None], np.ones(4), np.array([800.0])).round(2)
        array([[0.17]])
    """
    weight = 1 / sigma**2
    best, result = np.full(len(error), np.inf), np.zeros((len(error), len(at)))
    for exponent in EXPONENTS:
        x = (size / size[-1]) ** -exponent
        a, b = _line(x, error, weight)
        squares = (weight * (error - a[:, None] - b[:, None] * x) ** 2).sum(1)
        better = squares < best - 1e-12
        best = np.where(better, squares, best)
        found = a[:, None] + b[:, None] * (at / size[-1]) ** -exponent
        result = np.where(better[:, None], found, result)
    return result


def _line(x: Float64s, error: Float64s, weight: Float64s) -> tuple[Float64s, Float64s]:
    """Weighted least squares of a + b x with both at least 0, for each row."""
    total = weight.sum()
    mean, means = (weight * x).sum() / total, (error @ weight) / total
    spread = (weight * (x - mean) ** 2).sum()
    b = (error - means[:, None]) @ (weight * (x - mean)) / max(spread, 1e-300)
    a = means - b * mean
    through_zero = error @ (weight * x) / (weight * x * x).sum()
    flat: NDArray[np.bool_] = b < 0
    floorless: NDArray[np.bool_] = ~flat & (a < 0)
    return (
        np.where(flat, np.maximum(means, 0), np.where(floorless, 0.0, a)),
        np.where(flat, 0.0, np.where(floorless, through_zero, b)),
    )
