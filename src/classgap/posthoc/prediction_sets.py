"""Prediction sets with the same coverage in every class, from held-out scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from classgap.checks import InputError, float_vector, fraction, one_of, reading
from classgap.measure.diagnostics.prediction_sets import thresholds
from classgap.named import columns_in_order
from classgap.posthoc.held_out import Array, check_scores, kind_of_scores, label_columns, scores_in_order
from classgap.predictions.predictions import ScoreKind
from classgap.writing import write


class PredictionSets(BaseEstimator):  # type: ignore[misc]
    """For each sample all classes that are probable enough, so that ``coverage`` of the samples of every class are covered.

    Split conformal prediction with one threshold per class (label-conditional). The promise holds for new samples of the same
    distribution within each class, for any model, if the samples of ``fit`` were not used to train it. A class with too few
    samples (fewer than 9 at a coverage of 90 %) is in every set.

    Args:
        coverage: Share of the samples of each class whose set holds their class.
    Attributes:
        classes_: Names of the columns.
        threshold_: ``(K,)``; class k is in the set of a sample if its probability is at least ``threshold_[k]``.
    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1, 2], 200)
        >>> logits = 2 * np.eye(3)[y] + rng.normal(size=(600, 3))
        >>> sets = PredictionSets(coverage=0.9).fit(logits, y).predict(logits)
        >>> sets.shape, bool(sets[np.arange(600), y].mean() > 0.89)
        ((600, 3), True)
    """

    classes_: Array
    threshold_: Array

    def __init__(self, coverage: float = 0.9) -> None:
        self.coverage = coverage

    def fit(
        self, scores: ArrayLike, y: ArrayLike, *, classes: ArrayLike | None = None, scores_kind: ScoreKind | None = None
    ) -> PredictionSets:
        """Set the thresholds on held-out logits or probabilities ``(n, K)`` with their labels."""
        fraction("coverage", self.coverage)
        matrix = check_scores(scores_in_order(scores, y, classes))
        self.classes_, codes = label_columns(y, matrix.shape[1], classes)
        if len(codes) != len(matrix):
            raise InputError(f"y must have one label per row of scores, {len(matrix)}, got {len(codes)}")
        self.scores_kind_ = scores_kind or kind_of_scores(matrix)
        own = self._probabilities(matrix)[np.arange(len(codes)), codes]
        self.threshold_ = thresholds(own, codes, matrix.shape[1], self.coverage)
        return self

    def predict(self, scores: ArrayLike) -> Array:
        """``(n, K)`` booleans: whether a class is in the set of a sample. A set may be empty: no class is probable enough."""
        check_is_fitted(self, "threshold_")
        matrix = check_scores(columns_in_order("scores", scores, self.classes_), columns=len(self.threshold_))
        return np.asarray(self._probabilities(matrix) >= self.threshold_)

    def save(self, path: str | Path) -> Path:
        """Write the thresholds as JSON; :meth:`load` reads them back."""
        check_is_fitted(self, "threshold_")
        content = {"coverage": self.coverage, "scores_kind": self.scores_kind_, "classes": self.classes_.tolist(),
                   "threshold": self.threshold_.tolist()}  # fmt: skip
        return write(path, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> PredictionSets:
        """The thresholds that :meth:`save` wrote."""
        with reading(path, "a file of prediction sets of classgap"):
            content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            found = cls(coverage=fraction("coverage", content["coverage"]))
            found.scores_kind_ = one_of("scores_kind", content["scores_kind"], ("logits", "probabilities"))
            found.classes_ = np.asarray(content["classes"])
            found.threshold_ = float_vector("threshold", content["threshold"], length=len(found.classes_))
        return found

    def _probabilities(self, matrix: Array) -> Array:
        if self.scores_kind_ == "probabilities":
            return matrix
        return np.asarray(softmax(matrix.astype(np.float64), axis=1))
