"""Geometry of features and of the head, for audits with features."""

from classgap.measure.diagnostics.geometry.summary import Geometry, describe

__all__ = ["Geometry", "describe"]
