"""Audit and compare: which classes fail, whether the gap is real, why, and what changed. No torch."""

from __future__ import annotations

from classgap.measure.audit_report import AuditReport, Estimate
from classgap.measure.auditing import audit
from classgap.measure.comparing import compare, compare_counts
from classgap.measure.comparison import Change, Comparison, Verdict
from classgap.measure.learning import LearningCurve, learning_curve
from classgap.measure.multi_label import MultiLabelReport, audit_labels

__all__ = [
    "AuditReport",
    "Change",
    "Comparison",
    "Estimate",
    "LearningCurve",
    "MultiLabelReport",
    "Verdict",
    "audit",
    "audit_labels",
    "compare",
    "compare_counts",
    "learning_curve",
]
