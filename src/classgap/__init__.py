"""classgap: find the classes a classifier fails, say whether the gap is real, and close it.

One function per verb: :func:`audit`, :func:`compare`, :func:`learning_curve`, :func:`fix`, :func:`train`, :func:`predict` (and
:func:`load_run`), :func:`features`, :func:`probe`, :func:`export`, :func:`tune`, :func:`bench`. Each is loaded on first use, so
``import classgap`` is quick, and the first four never load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from classgap.measure import (
        AuditReport,
        Comparison,
        Estimate,
        LearningCurve,
        MultiLabelComparison,
        MultiLabelReport,
        audit,
        audit_labels,
        compare,
        compare_labels,
        learning_curve,
    )
    from classgap.posthoc import FixReport, MultiLabelFix, fix, fix_labels
    from classgap.predictions import Columns, MultiLabelPredictions, Predictions
    from classgap.suites import BenchReport, bench
    from classgap.training import (
        Predictor,
        ProbeReport,
        TrainConfig,
        TrainResult,
        export,
        features,
        load_run,
        predict,
        probe,
        train,
    )
    from classgap.tuning import TuneReport, tune

_LAZY = {
    **dict.fromkeys(
        ("AuditReport", "Comparison", "Estimate", "LearningCurve", "MultiLabelComparison", "MultiLabelReport"),
        "classgap.measure",
    ),
    **dict.fromkeys(("audit", "audit_labels", "compare", "compare_labels", "learning_curve"), "classgap.measure"),
    **dict.fromkeys(("FixReport", "MultiLabelFix", "fix", "fix_labels"), "classgap.posthoc"),
    **dict.fromkeys(("Columns", "MultiLabelPredictions", "Predictions"), "classgap.predictions"),
    **dict.fromkeys(("BenchReport", "bench"), "classgap.suites"),
    **dict.fromkeys(("TuneReport", "tune"), "classgap.tuning"),
    **dict.fromkeys(("Predictor", "ProbeReport", "TrainConfig", "TrainResult"), "classgap.training"),
    **dict.fromkeys(("export", "features", "load_run", "predict", "probe", "train"), "classgap.training"),
}
__all__ = [
    "AuditReport",
    "BenchReport",
    "Columns",
    "Comparison",
    "Estimate",
    "FixReport",
    "LearningCurve",
    "MultiLabelComparison",
    "MultiLabelFix",
    "MultiLabelPredictions",
    "MultiLabelReport",
    "Predictions",
    "Predictor",
    "ProbeReport",
    "TrainConfig",
    "TrainResult",
    "TuneReport",
    "__version__",
    "audit",
    "audit_labels",
    "bench",
    "compare",
    "compare_labels",
    "export",
    "features",
    "fix",
    "fix_labels",
    "learning_curve",
    "load_run",
    "predict",
    "probe",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'classgap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
