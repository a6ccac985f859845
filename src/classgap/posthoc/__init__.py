"""Close the gap of a trained model without retraining: estimators on cached scores, no torch needed.

    marc = MARC().fit(val_scores, y_val, class_counts=counts, weight_norms=norms)
    y_pred = marc.predict(test_scores)
    marc.fold(model.fc)                       # serving costs nothing

Fit on held-out or out-of-fold scores, never on those used to train.
"""

from __future__ import annotations

from classgap.posthoc._adjust import LogitAdjustment
from classgap.posthoc._base import PostHocMethod
from classgap.posthoc._classifier import PostHocClassifier
from classgap.posthoc._crt import CRT
from classgap.posthoc._dial import FrontierPoint, GapDial
from classgap.posthoc._disalign import DisAlign
from classgap.posthoc._files import load, save
from classgap.posthoc._marc import MARC
from classgap.posthoc._norms import LWS, TauNorm
from classgap.posthoc._scaling import MatrixScaling, TemperatureScaling, VectorScaling
from classgap.posthoc._select import RULES

__all__ = [
    "CRT",
    "LWS",
    "MARC",
    "RULES",
    "DisAlign",
    "FrontierPoint",
    "GapDial",
    "LogitAdjustment",
    "MatrixScaling",
    "PostHocClassifier",
    "PostHocMethod",
    "TauNorm",
    "TemperatureScaling",
    "VectorScaling",
    "load",
    "save",
]
