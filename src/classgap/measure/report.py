"""What an audit returns: :class:`AuditReport`, and the :class:`Estimate` every number in it is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import classgap
from classgap.measure.confusion import Confusion
from classgap.measure.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from classgap.measure.bounds import Bounds
    from classgap.measure.calibration import Calibration
    from classgap.measure.diagnosis import Diagnosis
    from classgap.measure.geometry import Geometry
    from classgap.measure.margins import Margins

SCHEMA_VERSION = 1
HEADLINES = ("overall", "balanced", "easy", "medium", "hard", "worst", "worst_decile", "gap")


@dataclass(frozen=True)
class Estimate:
    """A number with its interval: ``low <= value <= high``, all nan when there is nothing to estimate from."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Homogeneity:
    """Test of "all classes have the same accuracy": a small ``p_value`` says the gap is not sampling noise."""

    statistic: float
    p_value: float
    method: str


@dataclass(frozen=True, eq=False)
class Samples:
    """The arrays an audit was made from; labels are class indices. Absent inputs are None."""

    y_true: NDArray[np.int64]
    y_pred: NDArray[np.int64]
    scores: NDArray[np.floating[Any]] | None = None
    scores_kind: str | None = None
    features: NDArray[np.floating[Any]] | None = None
    weight: NDArray[np.floating[Any]] | None = None
    bias: NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Which classes fail, and whether it is real. Made by :func:`classgap.audit`; views are methods.

    Attributes:
        classes: Class names; index ``k`` means ``classes[k]`` everywhere.
        confusion: The K×K count matrix.
        metrics: Every aggregate by name (:data:`classgap.measure.metrics.METRICS` explains each).
        groups: ``groups[ranking][group]``: mean class accuracy of a group of classes. Rankings are ``own``, ``cross``
            and, where given, ``reference`` and ``frequency`` (:data:`classgap.measure.groups.RANKINGS`).
        per_class: Structured array, one record a class: ``name, support, accuracy, low, high, precision, f1, group`` and
            whatever the scores, features and head allow.
        homogeneity: Whether the differences between classes exceed sampling noise.
        verdict: The same in one sentence.
        samples: The arrays audited; None when only counts were given.
        notes: What a reader must know, e.g. that a class has no samples.
    """

    classes: tuple[str, ...]
    num_samples: int
    confidence: float
    seed: int
    confusion: Confusion
    metrics: Mapping[str, Estimate]
    groups: Mapping[str, Mapping[str, Estimate]]
    per_class: NDArray[np.void]
    homogeneity: Homogeneity
    verdict: str
    margins: Margins | None = None
    calibration: Calibration | None = None
    geometry: Geometry | None = None
    bounds: Bounds | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    samples: Samples | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def overall(self) -> Estimate:
        """Share of samples that are right."""
        return self.metrics["overall"]

    @property
    def balanced(self) -> Estimate:
        """Mean class accuracy."""
        return self.metrics["balanced"]

    @property
    def easy(self) -> Estimate:
        """Mean accuracy of the best third of classes, by their accuracy here (own ranking)."""
        return self.metrics["easy"]

    @property
    def medium(self) -> Estimate:
        """Mean accuracy of the middle third (own ranking)."""
        return self.metrics["medium"]

    @property
    def hard(self) -> Estimate:
        """Mean accuracy of the worst third (own ranking)."""
        return self.metrics["hard"]

    @property
    def worst(self) -> Estimate:
        """Lowest class accuracy, as observed; ``metrics["worst_corrected"]`` removes the luck of being lowest."""
        return self.metrics["worst"]

    @property
    def worst_decile(self) -> Estimate:
        """Mean accuracy of the worst tenth of classes."""
        return self.metrics["worst_decile"]

    @property
    def gap(self) -> Estimate:
        """Highest minus lowest class accuracy, as observed; ``metrics["gap_corrected"]`` removes sampling noise."""
        return self.metrics["gap"]
