"""Losses: ``loss = criterion(logits, target, features=phi)``. One family per file; every public class is exported here."""

from classgap.losses._base import ClassLoss
from classgap.losses._basic import CrossEntropyLoss

__all__ = ["ClassLoss", "CrossEntropyLoss"]
