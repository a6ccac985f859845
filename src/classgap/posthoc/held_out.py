"""The checked input of all post-hoc methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap.checks import (
    ROUNDING_OF_SUMS,
    InputError,
    feature_matrix,
    float_matrix,
    float_vector,
    in_unit_range,
    refuse_percentages,
)
from classgap.named import column_names, columns_in_order, in_class_order
from classgap.predictions.predictions import ScoreKind
from classgap.predictions.spelling import NUMBER

Array = NDArray[Any]
_RANGE = 1e4
_LARGEST = 1e8


def check_scores(value: ArrayLike, *, columns: int | None = None) -> Array:
    """Scores as a float32 or float64 matrix; a memory map is not copied."""
    return _at_least_single(float_matrix("scores", value, columns=columns))


def check_features(value: ArrayLike, *, rows: int | None = None) -> Array:
    """Features as a float32 or float64 matrix."""
    return _at_least_single(feature_matrix(value, rows=rows))


def _at_least_single(matrix: Array) -> Array:
    return matrix.astype(np.float32) if matrix.dtype == np.float16 else matrix


def kind_of_scores(scores: Array) -> ScoreKind:
    """``"probabilities"`` if 1000 rows, spread over the matrix, lie in [0, 1] and sum to 1; otherwise ``"logits"``."""
    rows = scores[:: max(1, len(scores) // 1000)]
    inside = rows.size > 0 and in_unit_range(rows)
    if rows.size > 0 and not inside:
        refuse_percentages("scores", rows)
    return "probabilities" if inside and bool(np.abs(rows.sum(axis=1) - 1).max() <= ROUNDING_OF_SUMS) else "logits"


def as_logits(scores: Array, kind: ScoreKind) -> Array:
    """Logits unchanged, except masked ones; probabilities as their logarithms.

    A class is often masked by a score such as -1e9. Scores at least 10 000 below the largest of their row are set to 10 000 below
    it: their probability is 0 all the same, and fits do not overflow.
    """
    if kind == "probabilities":
        return np.log(np.maximum(_at_least_single(scores), 1e-12))
    smallest, largest = float(scores.min()), float(scores.max())
    if largest - smallest <= _RANGE and max(abs(smallest), abs(largest)) <= _LARGEST:
        return scores
    top = scores.max(axis=1, keepdims=True)
    if np.abs(top).max() > _LARGEST:
        raise InputError(
            f"the largest score of each row must lie between -{_LARGEST:g} and {_LARGEST:g}, got "
            f"{float(top[np.abs(top).argmax(), 0]):g}; divide all scores by a constant"
        )
    floored: Array = np.maximum(scores, top - _RANGE)
    return floored


def check_prior(prior: ArrayLike, num_classes: int) -> Array:
    """``prior`` as class frequencies that sum to one."""
    vector = float_vector("prior", prior, length=num_classes)
    if (vector < 0).any() or abs(vector.sum() - 1) > 1e-3:
        raise InputError(
            f"prior must be non-negative and sum to one, got a sum of {vector.sum():g}; pass raw counts as class_counts"
        )
    normalised: Array = vector / vector.sum()
    return normalised


def scores_in_order(scores: Any, y: ArrayLike, classes: ArrayLike | None) -> Any:
    """Scores in a table whose columns are the classes, in their order; other scores as they are."""
    if column_names(scores) is None:
        return scores
    return columns_in_order("scores", scores, label_columns(y, scores.shape[1], classes)[0])


def label_columns(y: ArrayLike, num_classes: int, classes: ArrayLike | None) -> tuple[Array, Array]:
    """Column names and, for each sample, the column of its label.

    Integers in ``[0, K)`` are columns. Other labels need ``classes`` (the column names in order); without it, all K labels must
    occur, and the columns are assumed to be in sorted order. Numbers stored as text are refused if they sort differently as text.
    """
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError(f"y must hold one label per sample, got shape {labels.shape}; did you pass one-hot labels?")
    if classes is not None:
        names = np.asarray(classes)
        if names.shape != (num_classes,) or len(np.unique(names)) != num_classes:
            raise InputError(f"classes must name each of the {num_classes} columns once, got {names!r}")
    elif labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < num_classes:
        return np.arange(num_classes), labels.astype(np.int64)
    else:
        names = np.unique(labels)
        if len(names) != num_classes:
            raise InputError(
                f"y has {len(names)} different labels but scores have {num_classes} columns; "
                "pass classes= with the name of each column"
            )
        if (turned := _sorted_otherwise(names)) is not None:
            raise InputError(
                f"y holds numbers as text, which sort differently as text ({turned[0]!r} before {turned[1]!r}), so the order "
                "of the columns is not clear; pass classes= with the name of each column"
            )
    order = np.argsort(names)
    index = order[np.searchsorted(names, labels, sorter=order).clip(0, num_classes - 1)]
    unknown = labels[names[index] != labels]
    if len(unknown):
        raise InputError(f"y holds {unknown[0]!r}, which is not among the classes; pass classes= with every name")
    return names, index.astype(np.int64)


def _sorted_otherwise(names: Array) -> tuple[str, str] | None:
    """Two neighbours in sorted text that are in the other order as numbers, if all are numbers."""
    texts = names.astype(str).tolist() if names.dtype.kind in "US" else names.tolist()
    if not all(isinstance(text, str) and NUMBER.fullmatch(text) for text in texts):
        return None
    return next(((a, b) for a, b in pairwise(texts) if float(a) > float(b)), None)


@dataclass(frozen=True)
class HeldOut:
    """Held-out scores with their labels, and facts about the model. Created by :meth:`gather`.

    Attributes:
        scores: Logits ``(n, K)`` of samples that the model was not trained on; None for methods that only use features.
        y: Column of the true class of each sample, ``(n,)`` ints.
        class_counts: Numbers of training samples per class ``(K,)``; by default the held-out counts.
        weight_norms: Norms of the rows of the last layer ``(K,)``, or None.
        bias: Bias of the last layer ``(K,)``, or None.
        features: Inputs of the last layer ``(n, d)``, or None.
    """

    scores: Array | None
    y: Array
    num_classes: int
    class_counts: Array
    weight_norms: Array | None = None
    bias: Array | None = None
    features: Array | None = None

    @property
    def support(self) -> Array:
        """Number of held-out samples per class ``(K,)``."""
        return np.bincount(self.y, minlength=self.num_classes)

    @property
    def logits(self) -> Array:
        """The scores, for methods that require them."""
        if self.scores is None:
            raise InputError("this method needs scores (n, K)")
        return self.scores

    def take(self, rows: Array) -> HeldOut:
        """These samples only."""
        return replace(
            self,
            scores=None if self.scores is None else self.scores[rows],
            y=self.y[rows],
            features=None if self.features is None else self.features[rows],
        )

    @classmethod
    def gather(
        cls,
        scores: ArrayLike | None,
        y: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        class_counts: ArrayLike | None = None,
        prior: ArrayLike | None = None,
        weight_norms: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        features: ArrayLike | None = None,
    ) -> tuple[HeldOut, Array]:
        """Check the arguments of ``fit``; also returns the names of the columns."""
        if scores is None and features is None:
            raise InputError("pass scores (n, K), or features (n, d) for a method that works on features")
        matrix = None if scores is None else check_scores(scores)
        num_classes = _count_classes(y, classes) if matrix is None else matrix.shape[1]
        if num_classes < 2:
            raise InputError(f"scores must have at least two columns, one per class, got {num_classes}")
        names, index = label_columns(y, num_classes, classes)
        if matrix is not None and len(index) != len(matrix):
            raise InputError(f"scores and y must have the same length, got {len(matrix)} and {len(index)}")
        given = {"class_counts": class_counts, "prior": prior, "weight_norms": weight_norms, "bias": bias}
        class_counts, prior, weight_norms, bias = (in_class_order(name, value, names) for name, value in given.items())
        norms = None if weight_norms is None else float_vector("weight_norms", weight_norms, length=num_classes)
        if norms is not None and (norms <= 0).any():
            raise InputError(
                f"weight_norms must be positive, but class {names[int(norms.argmin())]} has {norms.min():g}; "
                "omit weight_norms to use norms of 1 for all rows"
            )
        return cls(
            matrix,
            index,
            num_classes,
            _counts(index, num_classes, class_counts, prior),
            norms,
            None if bias is None else float_vector("bias", bias, length=num_classes),
            None if features is None else check_features(features, rows=len(index)),
        ), names


def _counts(index: Array, num_classes: int, class_counts: ArrayLike | None, prior: ArrayLike | None) -> Array:
    if class_counts is not None and prior is not None:
        raise InputError("pass class_counts or prior, not both")
    if prior is not None:
        return check_prior(prior, num_classes)
    if class_counts is None:
        return np.bincount(index, minlength=num_classes).astype(np.float64)
    counts = float_vector("class_counts", class_counts, length=num_classes)
    if (counts < 0).any() or counts.sum() == 0:
        raise InputError(f"class_counts must be non-negative and not all zero, got {counts}")
    return counts


def _count_classes(y: ArrayLike, classes: ArrayLike | None) -> int:
    if classes is not None:
        return len(np.asarray(classes))
    labels = np.asarray(y)
    if labels.dtype.kind in "iu" and labels.size and labels.min() >= 0:
        return int(labels.max()) + 1
    return len(np.unique(labels))
