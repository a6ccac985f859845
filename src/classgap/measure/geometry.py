"""Geometry of features and head: spread, distances, angles, separability, neural collapse."""

from __future__ import annotations

from dataclasses import dataclass

from classgap.measure.classwise import Float64s, Floats, Ints


@dataclass(frozen=True, eq=False)
class Geometry:
    """Per-class and global geometry; nan where a class is absent or a head was not given."""

    support: Ints
    spread: Float64s

    def columns(self) -> dict[str, Float64s]:
        """Per-class columns of the audit's table."""
        return {"spread": self.spread}

    def summary(self) -> dict[str, float]:
        """Global numbers."""
        return {}


def describe(
    features: Floats,
    y_true: Ints,
    num_classes: int,
    *,
    weight: Floats | None = None,
    bias: Floats | None = None,
    seed: int = 0,
) -> Geometry:
    """Geometry of ``features`` (``(n, d)``) and, if given, of the linear head ``weight`` (``(K, d)``), ``bias``."""
    raise NotImplementedError
