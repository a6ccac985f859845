"""``fix(cost=…)``: methods that decide by expected cost, their measured cost, and the choice by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from classgap.measure.audit_report import Estimate
from classgap.measure.statistics.intervals import z_value
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.lowest_cost import LowestCost
from classgap.posthoc.held_out import Array

RULE = "lowest_cost"
_FEWEST = 10  # changed predictions below which no interval of a cost is narrow enough to trust


@dataclass(frozen=True, eq=False)
class Costs:
    """Mean cost per sample of the uncorrected predictions and of each method.

    Attributes:
        matrix: ``(K, K)``: rows true classes, columns predicted ones.
        before: Mean cost of the uncorrected predictions on the samples set aside.
        selection: By label: cross-fitted difference to the uncorrected predictions on the samples for fitting.
        report: By label: the same on the samples set aside.
    """

    matrix: Array
    before: float
    selection: Mapping[str, Estimate]
    report: Mapping[str, Estimate]

    @property
    def chosen(self) -> str | None:
        """The method with the lowest cross-fitted cost; None if all cost more than no correction."""
        best = min(self.selection, key=lambda label: self.selection[label].value)
        return best if self.selection[best].value < 0 else None


def cost_methods(matrix: Array) -> dict[str, PostHocMethod]:
    """The methods that are compared."""
    return {f"lowest_cost({name})": LowestCost(matrix.tolist(), name) for name in ("temperature", "vector")}


def cost_difference(matrix: Array, y: Array, before: Array, after: Array, confidence: float = 0.95) -> Estimate:
    """Mean paired difference of the costs with its interval.

    The variance counts one more sample with the largest difference that a change of prediction can make. With fewer than 10
    changed predictions, the interval is as wide as this largest difference allows for 10 samples.
    """
    difference = matrix[y, after] - matrix[y, before]
    value, largest = float(difference.mean()), float(np.ptp(matrix))
    squares = float(((difference - value) ** 2).sum()) + largest**2
    changed = int((before != after).sum())
    if changed < _FEWEST:
        squares = max(squares, _FEWEST * largest**2)
    half = z_value(confidence) * float(np.sqrt(squares)) / len(y)
    return Estimate(value, value - half, value + half)


def measure_costs(
    matrix: Array,
    fitting: tuple[Array, Array, Mapping[str, Array]],
    reporting: tuple[Array, Array, Mapping[str, Array]],
) -> Costs:
    """Costs of all methods; each argument is (true, predicted before, predicted after by label)."""
    found = [
        {label: cost_difference(matrix, y, before, predicted) for label, predicted in after.items()}
        for y, before, after in (fitting, reporting)
    ]
    y, before, _ = reporting
    return Costs(matrix, float(matrix[y, before].mean()), found[0], found[1])


def cost_sentence(costs: Costs, chosen: str | None) -> str:
    """The result as text."""
    if chosen is None:
        return (
            "No method lowers the mean cost in cross-fitting, so nothing was chosen. The uncorrected predictions cost "
            f"{costs.before:.4g} per sample."
        )
    delta = costs.report[chosen]
    numbers = (
        f"mean cost per sample {costs.before:.4g} → {costs.before + delta.value:.4g}, change {delta.value:+.4g} "
        f"[{delta.low:+.4g}, {delta.high:+.4g}]"
    )
    if delta.high < 0:
        return f"Chosen by {RULE}: {chosen}. On the samples set aside: {numbers}."
    return f"No significant improvement: {RULE} chose {chosen}; on the samples set aside: {numbers}. No method was written."
