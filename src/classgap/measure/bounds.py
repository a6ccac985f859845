"""The papers' generalisation bounds as computable diagnostics; their values normally exceed 1 and are vacuous."""

from __future__ import annotations

from dataclasses import dataclass

from classgap.measure.classwise import Float64s, Floats, Ints


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds on the error; above 1 they say nothing about it and only compare classes or models."""

    per_class: Float64s

    def columns(self) -> dict[str, Float64s]:
        """Per-class columns of the audit's table."""
        return {"bound": self.per_class}

    def summary(self) -> dict[str, float]:
        """Global numbers."""
        return {}


def describe(
    features: Floats,
    y_true: Ints,
    weight: Floats,
    bias: Floats | None = None,
    logits: Floats | None = None,
    *,
    gamma: Floats | None = None,
    delta: float = 0.05,
) -> Bounds:
    """Bounds for the linear head ``weight`` (``(K, d)``) on ``features`` (``(n, d)``)."""
    raise NotImplementedError
