"""How many more test samples a class needs, and what its interval would be with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints
from classgap.measure.render.plain import structured
from classgap.measure.statistics.intervals import wilson, z_value


def half_width(share: Float64s, size: Float64s | Ints, confidence: float) -> Float64s:
    """Half the length of Wilson's interval; nan where ``size`` is 0."""
    low, high = wilson(share, size, confidence)
    return np.asarray((high - low) / 2)


def samples_for(share: Float64s, wanted: float, confidence: float) -> Float64s:
    """Number of samples at which Wilson's interval of this share has the half-width ``wanted``, rounded up.

    Example:
        >>> samples_for(np.array([0.5, 0.9]), 0.05, 0.95)
        array([381., 141.])
    """
    z2 = z_value(confidence) ** 2
    # (n + z²)² h² = z² (n p q + z² / 4), solved for n
    middle = 2 * z2 - z2 * share * (1 - share) / wanted**2
    constant = z2**2 - z2**2 / (4 * wanted**2)
    return np.asarray(np.ceil(np.maximum(-middle / 2 + np.sqrt(np.maximum(middle**2 / 4 - constant, 0)), 0)))


def plan(
    name: NDArray[Any], accuracy: Float64s, support: Ints, *, wanted: float, more: int, confidence: float
) -> NDArray[np.void]:
    """One record per class with samples, the widest interval first.

    ``half_width`` is that of the present interval and ``half_width_with_more`` the expected one with ``more`` further samples;
    ``needed`` is the number of further samples for a half-width of ``wanted`` at the observed accuracy, and ``needed_at_most``
    the same at the accuracy within the present interval that needs most.
    """
    present = support > 0
    name, accuracy, support = name[present], accuracy[present], support[present]
    low, high = wilson(accuracy, support, confidence)
    worst = np.clip(0.5, low, high)
    total = [samples_for(share, wanted, confidence) for share in (accuracy, worst)]
    records = structured({
        "name": name, "support": support, "accuracy": accuracy, "half_width": (high - low) / 2,
        "half_width_with_more": half_width(accuracy, support + more, confidence),
        "needed": np.maximum(total[0] - support, 0).astype(np.int64),
        "needed_at_most": np.maximum(total[1] - support, 0).astype(np.int64),
    })  # fmt: skip
    return records[np.argsort(-records["half_width"], kind="stable")]
