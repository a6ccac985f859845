"""Why is this class hard: causes named from evidence beyond chance, each with its number and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from classgap import checks
from classgap.arrays import Float64s, Floats, Ints
from classgap.measure.diagnostics.causes import signals
from classgap.measure.diagnostics.causes.signals import Cause, CauseKind, Outcome, Signal, percent
from classgap.measure.diagnostics.geometry.summary import Geometry
from classgap.measure.diagnostics.margins import ScoreKind

__all__ = ["Cause", "CauseKind", "Diagnosis", "diagnose"]


@dataclass(frozen=True)
class Diagnosis:
    """A hard class and its causes, what to look at first in front; none when nothing stands out beyond chance.

    Attributes:
        sentence: The causes' sentences together, or why there is no clear cause.
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

    Each cause is tested for every class. It is named where Benjamini-Hochberg over the classes keeps its false discovery rate
    at ``level`` divided by the number of causes tested, *and* the effect is large enough to matter. So where nothing is to be
    found, a report names anything at all with probability of at most ``level``, and no cause hides behind the strong evidence
    for another. A signal is an association: a remedy is worth trying, not certain to help.

    Args:
        counts: ``(K, K)`` confusion counts, rows true, columns predicted; dense or SciPy sparse.
        y_true, scores: Labels and scores of data the model was not trained on, for suspected wrong labels.
        geometry: For scatter and crowding.
        train_counts: ``(K,)`` training samples a class, for scarcity.
    """
    names = tuple(class_names)
    outcome = Outcome.of(counts, names)
    _check(outcome, hard, train_counts)
    tests = _evidence(outcome, y_true, scores, kind, geometry, train_counts)
    named = {
        cause: test.material & (test.p_values <= _discovery_threshold(test.p_values, level / len(tests)))
        for cause, test in tests.items()
    }
    return tuple(
        _diagnosis(int(k), outcome, [test.cause(int(k)) for cause, test in tests.items() if named[cause][k]])
        for k in hard
    )


def _check(outcome: Outcome, hard: Sequence[int] | Ints, train_counts: Ints | None) -> None:
    num_classes = len(outcome.names)
    if outcome.off_diagonal.shape != (num_classes, num_classes):
        raise checks.InputError(
            f"counts must have shape {(num_classes, num_classes)} for {num_classes} class names, "
            f"got {outcome.off_diagonal.shape}"
        )
    checks.class_indices("hard", np.asarray(hard, dtype=np.int64), num_classes, rows=len(hard))
    if train_counts is not None:
        checks.float_vector("train_counts", train_counts, length=num_classes)


def _evidence(
    outcome: Outcome,
    y_true: Ints | None,
    scores: Floats | None,
    kind: ScoreKind | None,
    geometry: Geometry | None,
    train_counts: Ints | None,
) -> Mapping[CauseKind, Signal]:
    """All tests the input allows, what to look at first in front."""
    tests: dict[CauseKind, Signal] = {}
    if scores is not None:
        if y_true is None or kind is None:
            raise checks.InputError("scores need y_true and kind ('logits' or 'probabilities') beside them")
        from classgap.measure.diagnostics.causes.mislabelled import wrong_labels

        scores = checks.float_matrix("scores", scores, rows=len(y_true), columns=len(outcome.names))
        y_true = checks.class_indices("y_true", y_true, len(outcome.names), rows=len(scores))
        tests["mislabelled"] = wrong_labels(scores, y_true, outcome.names, kind)
    if train_counts is not None:
        tests["few_samples"] = signals.scarcity(outcome, np.asarray(train_counts))
    tests["confused"] = signals.confusion(outcome)
    tests["underpredicted"] = signals.under_prediction(outcome)
    if geometry is not None:
        tests["crowded"] = signals.crowding(outcome, geometry)
        tests["scattered"] = signals.scatter(outcome, geometry.spread)
    return tests


def _discovery_threshold(p_values: Float64s, level: float) -> float:
    """Largest p-value Benjamini-Hochberg accepts, or -1 when it accepts none."""
    ordered = np.sort(p_values[~np.isnan(p_values)])
    accepted = ordered[ordered <= level * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)]
    return float(accepted[-1]) if len(accepted) else -1.0


def _diagnosis(k: int, outcome: Outcome, causes: list[Cause]) -> Diagnosis:
    sentence = " ".join(cause.sentence for cause in causes) or _no_cause(k, outcome)
    return Diagnosis(k, outcome.names[k], tuple(causes), sentence)


def _no_cause(k: int, outcome: Outcome) -> str:
    from scipy.stats import binom

    support, correct, errors = int(outcome.support[k]), int(outcome.correct[k]), int(outcome.errors[k])
    if support == 0:
        return "No samples to judge from."
    mean = float(np.nanmean(outcome.accuracy))
    if binom.cdf(correct, support, mean) > 0.05:
        return (
            f"No clear cause: its accuracy of {percent(correct / support)} on {support} samples is within sampling noise of "
            f"the mean class ({percent(mean)})."
        )
    reached = outcome.off_diagonal[[k]].nnz
    return (
        f"No clear cause: its {errors} errors fall on {reached} classes, and nothing tested stands out beyond chance."
    )
