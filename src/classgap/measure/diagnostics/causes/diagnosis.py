"""Causes of the low accuracy of hard classes: only those with significant evidence, each with a number and remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from classgap import checks
from classgap.arrays import Floats, Ints
from classgap.measure.diagnostics.causes import signals
from classgap.measure.diagnostics.causes.signals import Cause, CauseKind, ClassErrors, Signal
from classgap.measure.diagnostics.geometry.summary import Geometry
from classgap.measure.diagnostics.margins import ScoreKind
from classgap.measure.render.plain import percent
from classgap.measure.statistics.false_discovery import benjamini_hochberg

__all__ = ["Cause", "CauseKind", "Diagnosis", "diagnose"]


@dataclass(frozen=True)
class Diagnosis:
    """A hard class and its causes, the most important first; empty if there is no significant evidence for a cause.

    Attributes:
        sentence: The sentences of all causes, or why there is no clear cause.
    """

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
    """Diagnoses of the ``hard`` classes (their indices), in that order.

    Each cause is tested for every class. It is named if it is significant after Benjamini-Hochberg correction over the classes,
    at a false discovery rate of ``level`` divided by the number of tested causes, *and* if the effect is large enough to matter.
    So if no class has any cause, the probability that a report names one is at most ``level``, and the evidence for one cause
    does not affect another. The evidence is an association: a remedy is worth trying but not certain to help.

    Args:
        counts: ``(K, K)`` confusion counts, rows true, columns predicted; dense or SciPy sparse.
        y_true, scores: Labels and scores of data that the model was not trained on, for ``mislabelled``.
        geometry: For ``scattered`` and ``crowded``.
        train_counts: ``(K,)`` training samples per class, for ``few_samples``.
    """
    names = tuple(class_names)
    table = ClassErrors.of(counts, names)
    _check(table, hard, train_counts)
    tests = _evidence(table, y_true, scores, kind, geometry, train_counts)
    named = {
        cause: test.material & (benjamini_hochberg(test.p_values) <= level / len(tests))
        for cause, test in tests.items()
    }
    return tuple(
        _diagnosis(int(k), table, [test.cause(int(k)) for cause, test in tests.items() if named[cause][k]])
        for k in hard
    )


def _check(table: ClassErrors, hard: Sequence[int] | Ints, train_counts: Ints | None) -> None:
    num_classes = len(table.names)
    if table.off_diagonal.shape != (num_classes, num_classes):
        raise checks.InputError(
            f"counts must have shape {(num_classes, num_classes)} for {num_classes} class names, "
            f"got {table.off_diagonal.shape}"
        )
    checks.class_indices("hard", np.asarray(hard, dtype=np.int64), num_classes, rows=len(hard))
    if train_counts is not None:
        checks.float_vector("train_counts", train_counts, length=num_classes)


def _evidence(
    table: ClassErrors,
    y_true: Ints | None,
    scores: Floats | None,
    kind: ScoreKind | None,
    geometry: Geometry | None,
    train_counts: Ints | None,
) -> Mapping[CauseKind, Signal]:
    """All tests that the input allows, the most important first."""
    tests: dict[CauseKind, Signal] = {}
    if scores is not None:
        if y_true is None or kind is None:
            raise checks.InputError("scores also need y_true and kind ('logits' or 'probabilities')")
        from classgap.measure.diagnostics.causes.mislabelled import wrong_labels

        scores = checks.float_matrix("scores", scores, rows=len(y_true), columns=len(table.names))
        y_true = checks.class_indices("y_true", y_true, len(table.names), rows=len(scores))
        tests["mislabelled"] = wrong_labels(scores, y_true, table.names, kind)
    if train_counts is not None:
        tests["few_samples"] = signals.scarcity(table, np.asarray(train_counts))
    tests["confused"] = signals.confusion(table)
    tests["underpredicted"] = signals.under_prediction(table)
    if geometry is not None:
        tests["crowded"] = signals.crowding(table, geometry)
        tests["scattered"] = signals.scatter(table, geometry.spread)
    return tests


def _diagnosis(k: int, table: ClassErrors, causes: list[Cause]) -> Diagnosis:
    sentence = " ".join(cause.sentence for cause in causes) or _no_cause(k, table)
    return Diagnosis(k, table.names[k], tuple(causes), sentence)


def _no_cause(k: int, table: ClassErrors) -> str:
    from scipy.special import bdtr

    support, correct, errors = int(table.support[k]), int(table.correct[k]), int(table.errors[k])
    if support == 0:
        return "The class has no samples."
    mean = table.mean_accuracy
    if bdtr(correct, support, mean) > 0.05:
        return (
            f"No clear cause: its accuracy of {percent(correct / support)} on {support} samples does not differ significantly "
            f"from the mean class accuracy ({percent(mean)})."
        )
    reached = int(np.diff(table.off_diagonal.indptr[k : k + 2])[0])
    return f"No clear cause: its {errors} errors are spread over {reached} classes, and no tested cause is significant."
