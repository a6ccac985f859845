"""Two classes with one score per sample: the score of the positive class becomes two columns, a threshold decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.checks import InputError, did_you_mean

if TYPE_CHECKING:
    from classgap.predictions.predictions import Predictions

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
    if kind == "logits" or not inside:
        return np.column_stack([np.zeros_like(values), values])
    values = checks.clipped(values)
    return np.column_stack([1 - values, values])


def two_names(
    labels: Sequence[NDArray[Any]], names: Sequence[str] | None, title: str
) -> tuple[Sequence[str] | None, tuple[str, ...]]:
    """Names of the negative and the positive class (None for labels 0 and 1), and a note about them."""
    if names is not None:
        return names, ()
    found = sorted({str(label) for column in labels for label in np.unique(column).tolist()})
    if set(found) <= _NUMBERS:
        return None, ()
    if len(found) != 2:
        seen = ", ".join(map(repr, found[:5])) + (" …" if len(found) > 5 else "")
        raise InputError(
            f"{title} is one score per sample, which is for two classes, but the labels are {seen}; give one score column per "
            "class, or the two class names (negative, positive) with --names or class_names"
        )
    note = (
        f"{title} is taken as the score of class {found[1]!r}; if it is that of {found[0]!r}, pass positive={found[0]!r} "
        f"(--positive {found[0]})"
    )
    return found, (note,)


def at_threshold(predictions: Predictions, threshold: float, positive: str | None) -> Predictions:
    """See :meth:`Predictions.at_threshold`."""
    checks.number("threshold", threshold, low=0, high=1)
    scores = predictions.scores
    if scores is None or scores.shape[1] != 2:
        what = "no scores" if scores is None else f"{scores.shape[1]} classes"
        raise InputError(
            f"threshold and positive need the scores of two classes, got {what}; name the score column with scores= (--scores)"
        )
    if positive is not None and positive not in predictions.classes:
        raise InputError(did_you_mean(positive, predictions.classes, what="class for positive"))
    index = 1 if positive is None else predictions.classes.index(positive)
    given = predictions.positive
    if given is not None and given != index:  # the one column of the file is the score of the other class
        scores = scores[:, ::-1]
    chance = positive_probability(scores, predictions.scores_kind, index)
    predicted = np.where(chance >= threshold, index, 1 - index)
    notes = tuple(note for note in predictions.notes if "taken as the score of class" not in note or positive is None)
    return replace(
        predictions,
        scores=scores,
        y_pred=predicted.astype(np.int64),
        positive=None if given is None else index,
        threshold=threshold,
        notes=notes,
    )


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
    arrays: Mapping[str, NDArray[Any]], kind: str, names: Sequence[str] | None, title: str
) -> tuple[dict[str, NDArray[Any]], Sequence[str] | None, tuple[str, ...]]:
    """Arrays with two score columns instead of one, the class names, and notes."""
    labels = [arrays[role] for role in ("y_true", "y_pred") if role in arrays]
    names, notes = two_names(labels, names, title)
    return {**arrays, "scores": two_columns(arrays["scores"], kind, title)}, names, notes
