"""Audit and compare: which classes fail, whether the gap is real, why, and what changed. No torch."""

from __future__ import annotations

from classgap.measure.audit_report import AuditReport, Estimate
from classgap.measure.auditing import audit
from classgap.measure.comparing import compare, compare_counts
from classgap.measure.comparison import Change, Comparison, Verdict
from classgap.measure.label_views import LabelViews
from classgap.measure.learning import LearningCurve, learning_curve
from classgap.measure.multi_label import audit_labels
from classgap.measure.multi_label_compare import MultiLabelComparison, compare_labels
from classgap.measure.multi_label_report import MultiLabelReport

__all__ = [
    "AuditReport",
    "Change",
    "Comparison",
    "Estimate",
    "LabelViews",
    "LearningCurve",
    "MultiLabelComparison",
    "MultiLabelReport",
    "Verdict",
    "audit",
    "audit_labels",
    "compare",
    "compare_counts",
    "compare_labels",
    "learning_curve",
]
