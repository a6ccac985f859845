"""Correction of p-values for the number of tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s


def benjamini_hochberg(p_value: Float64s) -> Float64s:
    """p-values after Benjamini-Hochberg correction: selecting those at most q gives a false discovery rate of at most q.

    nan stays nan.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, np.nan, 0.03])).round(3)
        array([0.03, 0.04,  nan, 0.04])
    """
    adjusted = np.full(len(p_value), np.nan)
    tested = np.flatnonzero(~np.isnan(p_value))
    order: NDArray[np.int64] = tested[np.argsort(p_value[tested])]
    ratio = p_value[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum(1, np.minimum.accumulate(ratio[::-1])[::-1])
    return adjusted
