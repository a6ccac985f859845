"""classgap: find the classes a classifier fails, say whether the gap is real, and close it.

``import classgap`` is light: no torch, and the measuring half is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from classgap.measure import AuditReport, Comparison, Estimate, audit, compare
    from classgap.predictions import Columns, Predictions

_LAZY = {
    **dict.fromkeys(("AuditReport", "Comparison", "Estimate", "audit", "compare"), "classgap.measure"),
    **dict.fromkeys(("Columns", "Predictions"), "classgap.predictions"),
}
__all__ = ["AuditReport", "Columns", "Comparison", "Estimate", "Predictions", "__version__", "audit", "compare"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'classgap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
