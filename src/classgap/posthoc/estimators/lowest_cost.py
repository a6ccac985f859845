"""Decisions of lowest expected cost: errors that cost more are avoided, at the price of others."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from classgap.checks import InputError, as_numpy, float_matrix, one_of
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.scaling import TemperatureScaling, VectorScaling
from classgap.posthoc.held_out import Array, HeldOut
from classgap.predictions.side_files import cost_in_order

_CALIBRATIONS = {"temperature": TemperatureScaling, "vector": VectorScaling}


def check_cost(cost: Any, num_classes: int) -> Array:
    """``cost`` as a ``(K, K)`` matrix: rows true classes, columns predicted ones; a right prediction must be the cheapest."""
    matrix = float_matrix("cost", as_numpy(cost, "cost"), rows=num_classes, columns=num_classes).astype(np.float64)
    own = np.diag(matrix)[:, None]
    if (matrix < own).any():
        row = int(np.argmax((matrix < own).any(1)))
        raise InputError(
            f"cost must be lowest for the right prediction, but in row {row} an error costs less than no error; rows are true "
            "classes, columns predicted ones"
        )
    if (matrix == own).all():
        raise InputError("cost must be higher for at least one error than for no error, got equal costs everywhere")
    return matrix


class LowestCost(PostHocMethod):
    r"""Predict the class of lowest expected cost, :math:`\arg\min_j \sum_i p_i C_{ij}`, by calibrated probabilities :math:`p`.

    With two classes this is a threshold: the positive class is predicted if its probability is at least
    :math:`C_{01} / (C_{01} + C_{10})`, if right predictions cost nothing. With costs :math:`C_{ij} = c_i` that depend on the true
    class alone, it is one weight per class.

    Args:
        cost: ``(K, K)``; ``cost[i][j]`` is the cost of predicting class j for a sample of class i.
        calibration: How the probabilities are calibrated on the held-out samples: ``"temperature"`` or ``"vector"`` scaling.
    Attributes:
        cost_, scale_, offset_: The checked costs, and the calibration ``softmax(scale_ * scores + offset_)``.
    """

    learned: ClassVar = {"cost_": "KK", "scale_": "K", "offset_": "K"}
    cost_: Array
    scale_: Array
    offset_: Array

    def __init__(self, cost: ArrayLike | None = None, calibration: str = "temperature") -> None:
        self.cost = cost
        self.calibration = calibration

    def _fit(self, held_out: HeldOut) -> None:
        one_of("calibration", self.calibration, _CALIBRATIONS)
        if self.cost is None:
            raise InputError("LowestCost needs cost=, a (K, K) matrix: rows true classes, columns predicted ones")
        self.cost_ = check_cost(cost_in_order(self.cost, tuple(map(str, self.classes_))), held_out.num_classes)
        calibrated = _CALIBRATIONS[self.calibration]()
        calibrated._fit(held_out)
        self.scale_, self.offset_ = calibrated.scale_, calibrated.offset_

    def _transform(self, scores: Array | None, features: Array | None) -> Array:
        """Minus the expected cost of each prediction."""
        if scores is None:
            raise InputError("LowestCost needs scores (n, K)")
        probabilities = softmax(scores.astype(np.float64) * self.scale_ + self.offset_, axis=1)
        return np.asarray(-probabilities @ self.cost_)
