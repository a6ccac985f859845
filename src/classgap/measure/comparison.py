"""What a comparison returns: :class:`Comparison`, its :class:`Change` entries and its :class:`Verdict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.report import AuditReport, Estimate


@dataclass(frozen=True)
class Change:
    """One number before and after, and the paired difference ``after - before``."""

    before: Estimate
    after: Estimate
    delta: Estimate


@dataclass(frozen=True)
class Verdict:
    """``kind`` is a short code, ``title`` a few words, ``sentence`` the finding with its numbers."""

    kind: str
    title: str
    sentence: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """Did it get better, for whom, and at whose cost. Made by :func:`classgap.compare`; views are methods.

    Attributes:
        before, after: The reports compared, one per training seed.
        metrics: Every aggregate by name as a :class:`Change` (own ranking).
        groups: ``groups[ranking][group]`` as a :class:`Change`, for ``own``, ``reference`` (the ranking of *before*) and
            ``cross``.
        per_class: Structured array: ``name, support, before, after, delta, low, high, gained, lost, p_value, q_value,
            significant, group``. ``gained``/``lost`` count samples that turned right/wrong (mean over pairs of seeds),
            ``q_value`` is the Benjamini-Hochberg adjusted p-value, ``group`` the class's third before.
        method: How per-class p-values and intervals were made.
    """

    classes: tuple[str, ...]
    num_samples: int
    confidence: float
    seed: int
    before: tuple[AuditReport, ...]
    after: tuple[AuditReport, ...]
    metrics: Mapping[str, Change]
    groups: Mapping[str, Mapping[str, Change]]
    per_class: NDArray[np.void]
    verdict: Verdict
    method: str
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __getattr__(self, name: str) -> Change:
        """``comparison.hard`` is ``comparison.metrics["hard"]``, and so on."""
        metrics: dict[str, Any] = self.__dict__.get("metrics", {})
        if name in metrics:
            return metrics[name]
        raise AttributeError(f"Comparison has no attribute {name!r}; metrics are {', '.join(metrics)}")

    @property
    def gainers(self) -> NDArray[np.void]:
        """Records of the classes that improved beyond noise, largest gain first."""
        rows = self.per_class[self.per_class["significant"] & (self.per_class["delta"] > 0)]
        return rows[np.argsort(-rows["delta"], kind="stable")]

    @property
    def payers(self) -> NDArray[np.void]:
        """Records of the classes that lost beyond noise, largest loss first."""
        rows = self.per_class[self.per_class["significant"] & (self.per_class["delta"] < 0)]
        return rows[np.argsort(rows["delta"], kind="stable")]
