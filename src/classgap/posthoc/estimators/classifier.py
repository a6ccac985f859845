"""A scikit-learn classifier and a post-hoc method as one estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from classgap.checks import InputError
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.held_out import Array
from classgap.posthoc.selection import fold_numbers


class PostHocClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a classifier, and correct its scores with a post-hoc method that is fitted on out-of-fold scores.

    Args:
        estimator: Any scikit-learn classifier with ``decision_function`` or ``predict_proba``; by default logistic regression.
        method: A post-hoc method that works on scores; by default :class:`GapDial` with strength 2.
        folds: Number of folds for the out-of-fold scores. A class with fewer samples is missing in the models of some folds.
        seed: Random seed of the fold assignment.
    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from classgap.posthoc import LogitAdjustment
        >>> X, y = load_iris(return_X_y=True)
        >>> model = PostHocClassifier(LogisticRegression(max_iter=1000), LogitAdjustment()).fit(X, y)
        >>> model.predict(X[:2])
        array([0, 0])
    """

    def __init__(
        self,
        estimator: Any = None,
        method: PostHocMethod | None = None,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.folds = folds
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> PostHocClassifier:
        """Fit the classifier on all samples and the method on out-of-fold scores."""
        from sklearn.linear_model import LogisticRegression

        from classgap.posthoc.estimators.gap_dial import GapDial

        rows, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must hold at least two classes, got 1 class: {self.classes_[0]!r}")
        base = LogisticRegression(max_iter=1000) if self.estimator is None else self.estimator
        method = GapDial(strength=2.0, ridge=1.0) if self.method is None else self.method
        if method.uses_features:
            raise InputError(f"{type(method).__name__} works on features; PostHocClassifier corrects scores only")
        scores = self._out_of_fold(base, rows, codes)
        self.method_ = clone(method).fit(scores, codes)
        self.estimator_ = clone(base).fit(rows, y)
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Corrected scores ``(n, K)``; for two classes the difference of their scores, as in scikit-learn."""
        check_is_fitted(self)
        rows: Array = validate_data(self, X, reset=False)
        scores: Array = self.method_.transform(_scores(self.estimator_, rows, self.classes_))
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Array:
        """Softmax of the corrected scores."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        probabilities: Array = softmax(scores, axis=1)
        return probabilities

    def predict(self, X: ArrayLike) -> Array:
        """The class with the largest corrected score."""
        scores = self.decision_function(X)
        predicted: Array = self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
        return predicted

    def _out_of_fold(self, base: Any, X: Array, codes: Array) -> Array:
        folds = max(2, min(self.folds, int(np.bincount(codes).max())))
        fold = fold_numbers(codes, folds, self.seed)
        every = np.arange(len(self.classes_))
        scores = np.empty((len(codes), len(every)))
        for k in range(folds):
            inside, outside = fold == k, fold != k
            if not inside.any():
                continue
            if len(np.unique(codes[outside])) < 2:
                raise InputError(
                    f"PostHocClassifier needs two samples of at least two classes, got {len(codes)} samples"
                )
            scores[inside] = _scores(clone(base).fit(X[outside], codes[outside]), X[inside], every)
        return scores


def _scores(model: Any, X: Array, classes: Array) -> Array:
    """Scores of all ``classes``; a class unknown to the model gets the lowest score of the sample."""
    if hasattr(model, "decision_function"):
        raw = np.asarray(model.decision_function(X), dtype=np.float64)
    elif hasattr(model, "predict_proba"):
        # a probability of 0 from a forest means few trees; without a lower bound its logarithm would dominate
        raw = np.log(np.maximum(model.predict_proba(X), 0.01 / len(model.classes_)))
    else:
        raise InputError(
            f"{type(model).__name__} has neither decision_function nor predict_proba; use a classifier that has one of them"
        )
    if raw.ndim == 1:
        raw = np.stack([-raw / 2, raw / 2], axis=1)
    if raw.shape[1] != len(model.classes_):
        raise InputError(f"{type(model).__name__} has one score per pair of classes; use its one-versus-rest form")
    scores = np.repeat(raw.min(axis=1, keepdims=True), len(classes), axis=1)
    scores[:, np.searchsorted(classes, model.classes_)] = raw
    return scores
