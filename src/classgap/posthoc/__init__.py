"""Reduce the gap of a trained model without training it again: estimators on stored scores. No torch.

    marc = MARC().fit(val_scores, y_val, class_counts=counts, weight_norms=norms)
    y_pred = marc.predict(test_scores)
    marc.fold(model.fc)                       # no extra cost at inference

Fit on held-out or out-of-fold scores, never on scores of the training samples.
"""

from __future__ import annotations

from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.classifier import PostHocClassifier
from classgap.posthoc.estimators.crt import CRT
from classgap.posthoc.estimators.disalign import DisAlign
from classgap.posthoc.estimators.gap_dial import FrontierPoint, GapDial
from classgap.posthoc.estimators.logit_adjustment import LogitAdjustment
from classgap.posthoc.estimators.lowest_cost import LowestCost
from classgap.posthoc.estimators.marc import MARC
from classgap.posthoc.estimators.norms import LWS, TauNorm
from classgap.posthoc.estimators.scaling import MatrixScaling, TemperatureScaling, VectorScaling
from classgap.posthoc.files import load, save
from classgap.posthoc.fix_report import FixReport
from classgap.posthoc.fixing import fix
from classgap.posthoc.fixing_labels import MultiLabelFix, fix_labels
from classgap.posthoc.label_thresholds import LabelThresholds
from classgap.posthoc.prediction_sets import PredictionSets
from classgap.posthoc.selection import RULES

__all__ = [
    "CRT",
    "LWS",
    "MARC",
    "RULES",
    "DisAlign",
    "FixReport",
    "FrontierPoint",
    "GapDial",
    "LabelThresholds",
    "LogitAdjustment",
    "LowestCost",
    "MatrixScaling",
    "MultiLabelFix",
    "PostHocClassifier",
    "PostHocMethod",
    "PredictionSets",
    "TauNorm",
    "TemperatureScaling",
    "VectorScaling",
    "fix",
    "fix_labels",
    "load",
    "save",
]
