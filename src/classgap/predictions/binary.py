"""Two classes with one score per sample: the score of the positive class becomes two columns, a threshold decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.checks import InputError, did_you_mean
from classgap.predictions.spelling import distinct_labels

if TYPE_CHECKING:
    from classgap.predictions.predictions import Predictions

TAKEN = "is taken as the score of class"
_DIFFERING = "y_pred is not the class of the highest score"
_NUMBERS = {"0", "1", "0.0", "1.0"}


def is_single(scores: NDArray[Any]) -> bool:
    """Whether scores are one number per sample."""
    return scores.ndim == 1 or (scores.ndim == 2 and scores.shape[1] == 1)


def two_columns(scores: NDArray[Any], kind: str, title: str) -> NDArray[Any]:
    """``(n, 2)`` scores of the negative and the positive class from one score of the positive class.

    Example:
        >>> two_columns(np.array([0.25, 1.0]), "auto", "prob").tolist()
        [[0.75, 0.25], [0.0, 1.0]]
        >>> two_columns(np.array([-2.0, 3.0]), "auto", "logit").tolist()
        [[0.0, -2.0], [0.0, 3.0]]
    """
    values = checks.float_matrix(title, np.asarray(scores).reshape(-1, 1))[:, 0].astype(np.float64)
    inside = checks.in_unit_range(values)
    if kind == "probabilities" and not inside:
        raise InputError(
            f"{title} must hold probabilities in [0, 1], got values from {values.min():g} to {values.max():g}; "
            "pass scores_kind='logits' for logits"
        )
    if kind == "auto" and not inside:
        checks.refuse_percentages(title, values, independent=True)
    if kind == "logits" or not inside:
        return np.column_stack([np.zeros_like(values), values])
    inner = checks.clipped(values)
    return np.column_stack([1 - inner, inner])


def two_names(
    labels: Sequence[tuple[str, NDArray[Any]]], names: Sequence[str] | None, title: str
) -> tuple[Sequence[str] | None, tuple[str, ...]]:
    """Names of the negative and the positive class (None for labels 0 and 1), and a note about them.

    Args:
        labels: For each label column its title (for messages) and its distinct raw labels.
        title: Title of the score column.
    """
    if names is not None:
        return names, ()
    found = distinct_labels(labels)
    if set(found) <= _NUMBERS:
        return None, ()
    if len(found) != 2:
        seen = ", ".join(map(repr, found[:5])) + (" …" if len(found) > 5 else "")
        raise InputError(
            f"{title} is one score per sample, which is for two classes, but the labels are {seen}; give one score column per "
            "class, or the two class names (negative, positive) with --names or class_names"
        )
    note = (
        f"{title} {TAKEN} {found[1]!r}; if it is that of {found[0]!r}, pass positive={found[0]!r} "
        f"(--positive {found[0]})"
    )
    return found, (note,)


def decide(predictions: Predictions, threshold: float | None, positive: str | None) -> Predictions:
    """The predictions of two classes with the threshold and the positive class that the user gave, if any.

    What is not given stays as it was chosen earlier. Without any threshold, predictions are kept, except those from one score
    column: these have a threshold of 0.5.
    """
    if threshold is None and positive is None:
        return predictions
    if threshold is not None:
        checks.number("threshold", threshold, low=0, high=1)
    if positive is not None and positive not in predictions.classes:
        raise InputError(did_you_mean(positive, predictions.classes, what="class for positive"))
    if predictions.batches is not None:
        return _decide_later(predictions, threshold, positive)
    scores = predictions.scores
    if scores is None or scores.shape[1] != 2:
        raise _needs_two("no scores" if scores is None else f"{scores.shape[1]} classes")
    chosen = 1 if predictions.positive is None else predictions.positive
    index = chosen if positive is None else predictions.classes.index(positive)
    if predictions.one_score and predictions.positive != index:  # the one column of the file is that of the other class
        scores = scores[:, ::-1]
    limit = predictions.threshold if threshold is None else threshold
    found = replace(
        predictions, scores=scores, positive=index, threshold=limit, notes=_kept(predictions.notes, positive)
    )
    if limit is None:
        differ = float((scores.argmax(axis=1) != predictions.y_pred).mean())
        return replace(found, notes=found.notes + differing_note(differ))
    chance = positive_probability(scores, predictions.scores_kind, index)
    return replace(found, y_pred=np.where(chance >= limit, index, 1 - index).astype(np.int64))


def _decide_later(predictions: Predictions, threshold: float | None, positive: str | None) -> Predictions:
    """The same for scores that are read in batches."""
    if len(predictions.classes) != 2:
        raise _needs_two(f"{len(predictions.classes)} classes")
    assert predictions.batches is not None
    earlier = predictions.batches
    batches = replace(
        earlier,
        threshold=earlier.threshold if threshold is None else threshold,
        positive=earlier.positive if positive is None else positive,
    )
    return replace(predictions, batches=batches, notes=_kept(predictions.notes, positive))


def _needs_two(what: str) -> InputError:
    return InputError(
        f"threshold and positive need the scores of two classes, got {what}; name the score column with scores= (--scores)"
    )


def _kept(notes: tuple[str, ...], positive: str | None) -> tuple[str, ...]:
    """The notes that are still true with this positive class and other predictions."""
    false = (_DIFFERING,) if positive is None else (_DIFFERING, TAKEN)
    return tuple(note for note in notes if not any(part in note for part in false))


def differing_note(share: float) -> tuple[str, ...]:
    """A note if the predictions of this share of the samples are not those of the scores."""
    return (f"{_DIFFERING} in {share:.1%} of samples; accuracies use y_pred",) if share > 0 else ()


def positive_probability(scores: NDArray[Any], kind: str | None, index: int) -> NDArray[np.float64]:
    """Probability of class ``index`` of two."""
    if kind == "probabilities":
        return np.asarray(scores[:, index], dtype=np.float64)
    from scipy.special import expit

    return np.asarray(expit(scores[:, index].astype(np.float64) - scores[:, 1 - index]))


def single_score_column(available: Sequence[str]) -> str | None:
    """The column with a usual name for the one score of a binary classifier, if exactly one has such a name."""
    usual = ("prob", "probability", "score", "logit", "y_prob", "y_proba", "y_score", "p_hat", "pos_prob")
    found = [name for name in available if name.lower() in usual]
    return found[0] if len(found) == 1 else None


def widen(
    arrays: Mapping[str, NDArray[Any]],
    labels: Sequence[tuple[str, NDArray[Any]]],
    kind: str,
    names: Sequence[str] | None,
    title: str,
) -> tuple[dict[str, NDArray[Any]], Sequence[str] | None, tuple[str, ...]]:
    """Arrays with two score columns instead of one, the class names, and notes; ``labels`` as for :func:`two_names`."""
    names, notes = two_names(labels, names, title)
    return {**arrays, "scores": two_columns(arrays["scores"], kind, title)}, names, notes
