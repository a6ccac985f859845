"""Five labels of different frequency with scores, as arrays and as a table."""

from __future__ import annotations

import numpy as np
import polars as pl

RNG = np.random.default_rng(0)
TRUE = RNG.random((800, 5)) < [0.5, 0.3, 0.2, 0.1, 0.05]
SCORES = 1 / (1 + np.exp(-(3 * TRUE - 1.5 - np.array([0, 0, 2.0, 0, 0]) + RNG.normal(size=TRUE.shape))))


def table(**columns: object) -> pl.DataFrame:
    names = list("abcde")
    true = {columns.get("true", "true_{}").format(n): TRUE[:, k].astype(int) for k, n in enumerate(names)}  # type: ignore[attr-defined]
    scores = {columns.get("scores", "prob_{}").format(n): SCORES[:, k] for k, n in enumerate(names)}  # type: ignore[attr-defined]
    return pl.DataFrame({"file": np.arange(len(TRUE)), **dict(reversed(scores.items())), **true})
