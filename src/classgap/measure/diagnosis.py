"""Why is this class hard: causes named from evidence beyond chance, each with its number and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from classgap.measure.classwise import Floats, Ints
from classgap.measure.geometry import Geometry
from classgap.measure.margins import ScoreKind

CauseKind = Literal["confused", "underpredicted", "scattered", "few_samples", "mislabelled", "crowded"]


@dataclass(frozen=True)
class Cause:
    """One reason a class is hard.

    Attributes:
        kind: Short code of the cause.
        number: The evidence: a share, a ratio or a count, as the sentence says.
        p_value: Chance of evidence this strong if the cause were absent, before the allowance for testing many classes.
        sentence: The evidence in plain English.
        remedy: What classgap offers against it.
        classes: Other classes involved, most important first.
        samples: Rows to look at (suspected wrong labels), most suspicious first.
    """

    kind: CauseKind
    number: float
    p_value: float
    sentence: str
    remedy: str
    classes: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """A hard class and its causes, strongest evidence first; none when nothing stands out beyond chance."""

    class_index: int
    name: str
    causes: tuple[Cause, ...]
    sentence: str


def diagnose(
    counts: Any,
    hard: Sequence[int] | Ints,
    class_names: Sequence[str],
    *,
    y_true: Ints | None = None,
    scores: Floats | None = None,
    kind: ScoreKind | None = None,
    geometry: Geometry | None = None,
    train_counts: Ints | None = None,
    level: float = 0.05,
) -> tuple[Diagnosis, ...]:
    """Diagnoses of the ``hard`` classes (their indices), in that order, from the confusion ``counts``.

    Args:
        counts: ``(K, K)`` confusion counts, rows true, columns predicted; dense or SciPy sparse.
    """
    raise NotImplementedError
