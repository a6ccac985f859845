"""Losses: ``loss = criterion(logits, target, features=phi)``. One family per file; every public class is exported here."""

from classgap.losses._base import ClassLoss
from classgap.losses._basic import CrossEntropyLoss
from classgap.losses._mr2 import MR2Loss, gamma_margin_cross_entropy, margins_from_moments, representation_margin
from classgap.losses._pairs import within_class_pull

__all__ = [
    "ClassLoss",
    "CrossEntropyLoss",
    "MR2Loss",
    "gamma_margin_cross_entropy",
    "margins_from_moments",
    "representation_margin",
    "within_class_pull",
]
