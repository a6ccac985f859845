"""Which classes fail, is it real, why, and did it get better. NumPy and SciPy only; no torch."""

from __future__ import annotations

from classgap.measure.auditing import audit, audit_counts
from classgap.measure.comparing import compare, compare_counts
from classgap.measure.comparison import Change, Comparison, Verdict
from classgap.predictions.confusion import Confusion, ConfusionCounter
from classgap.measure.report import AuditReport, Estimate

__all__ = [
    "AuditReport",
    "Change",
    "Comparison",
    "Confusion",
    "ConfusionCounter",
    "Estimate",
    "Verdict",
    "audit",
    "audit_counts",
    "compare",
    "compare_counts",
]
