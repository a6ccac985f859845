"""Classifiers by name: small-image residual networks, perceptrons, and everything in timm and torchvision."""

from __future__ import annotations

from classgap.models.build import KNOWN, build_model, put_head
from classgap.models.causal import CausalNormHead
from classgap.models.experts import Experts

__all__ = ["KNOWN", "CausalNormHead", "Experts", "build_model", "put_head"]
