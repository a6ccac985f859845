"""Where the features of each class lie, and where the head looks: for audits that are given features."""

from classgap.measure.diagnostics.geometry.summary import Geometry, describe

__all__ = ["Geometry", "describe"]
