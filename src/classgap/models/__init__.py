"""Classifiers by name: small-image residual networks, perceptrons, and those of timm, torchvision, transformers and open_clip."""

from __future__ import annotations

from classgap.models.build import KNOWN, build_model, open_model, pixels_of, put_head
from classgap.models.built import Built
from classgap.models.causal import CausalNormHead
from classgap.models.ensemble import COMBINATIONS, ClassAffine, Combination, Ensemble
from classgap.models.experts import Experts
from classgap.models.hugging_face import save_description, text_encoder

__all__ = [
    "COMBINATIONS",
    "KNOWN",
    "Built",
    "CausalNormHead",
    "ClassAffine",
    "Combination",
    "Ensemble",
    "Experts",
    "build_model",
    "open_model",
    "pixels_of",
    "put_head",
    "save_description",
    "text_encoder",
]
