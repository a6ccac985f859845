"""Scores for scikit-learn: ``GridSearchCV(model, grid, scoring=hard_third)``. No torch.

``hard_third``, ``worst_class`` and ``gap`` are scorers, which take a fitted classifier, ``X`` and ``y``. The functions whose
names end in ``_score`` take true and predicted labels, and optionally sample weights. Post-hoc corrections for pipelines and
searches are :class:`classgap.posthoc.PostHocClassifier`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import make_scorer

from classgap.checks import InputError, float_vector, label_vector
from classgap.integrations.scalars import class_counts, class_scalars


def hard_third_score(y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean accuracy of the third of the classes with the lowest accuracy.

    Example:
        >>> hard_third_score([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 0])
        0.5
    """
    return _scalars(y_true, y_pred, sample_weight)["hard"]


def worst_class_score(y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Lowest accuracy of a class.

    Example:
        >>> worst_class_score(["a", "a", "b", "b"], ["a", "b", "b", "b"])
        0.5
    """
    return _scalars(y_true, y_pred, sample_weight)["worst"]


def gap_score(y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Highest minus lowest accuracy of a class; smaller is better.

    Example:
        >>> gap_score(["a", "a", "b", "b"], ["a", "b", "b", "b"])
        0.5
    """
    return _scalars(y_true, y_pred, sample_weight)["gap"]


hard_third = make_scorer(hard_third_score)
worst_class = make_scorer(worst_class_score)
gap = make_scorer(gap_score, greater_is_better=False)
"""The negative gap, because scikit-learn maximises scores."""

SCORERS: dict[str, Any] = {"hard_third": hard_third, "worst_class": worst_class, "gap": gap}
"""For ``cross_validate(model, X, y, scoring=SCORERS)``."""


def _scalars(y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None) -> dict[str, float]:
    true, predicted = label_vector("y_true", y_true), label_vector("y_pred", y_pred)
    if len(true) != len(predicted):
        raise InputError(f"y_pred must have one label for each of the {len(true)} true labels, got {len(predicted)}")
    classes, codes = np.unique(true, return_inverse=True)
    right = np.asarray(true == predicted)
    if len({labels.dtype.kind if labels.dtype.kind in "US" else "number" for labels in (true, predicted)}) > 1:
        raise InputError(f"y_true and y_pred must hold labels of the same type, got {true.dtype} and {predicted.dtype}")
    # What was predicted instead does not matter for the accuracy of a class.
    if sample_weight is None:
        return class_scalars(*class_counts(codes, np.where(right, codes, -1), len(classes)))
    weight = float_vector("sample_weight", sample_weight, length=len(true))
    if weight.min() < 0 or weight.max() == 0:
        raise InputError(f"sample_weight must be at least 0 and not all 0, got a smallest weight of {weight.min():g}")
    hits, total = (np.bincount(codes, weights=w, minlength=len(classes)) for w in (weight * right, weight))
    return class_scalars(hits, total)
