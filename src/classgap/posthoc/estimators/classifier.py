"""A scikit-learn classifier and a post-hoc method as one estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing, check_array, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_method_params, check_is_fitted

from classgap.checks import InputError
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.held_out import Array
from classgap.posthoc.selection import fold_numbers


class PostHocClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a classifier, and correct its scores with a post-hoc method that is fitted on out-of-fold scores.

    ``X`` goes to the classifier as it is, so it may be whatever that takes: sparse matrices, data frames, texts for a
    ``Pipeline``. A classifier that is fitted already goes in as ``sklearn.frozen.FrozenEstimator(model)``; ``X`` and ``y`` of
    ``fit`` must then be samples it was not trained on.

    Further arguments of ``fit``, such as ``sample_weight``, go to the classifier, in every fold the part of its samples. With
    ``sklearn.set_config(enable_metadata_routing=True)`` they go where ``set_fit_request`` of the classifier says.

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

    def fit(self, X: Any, y: ArrayLike, **params: Any) -> PostHocClassifier:
        """Fit the classifier on all samples and the method on out-of-fold scores; ``params`` go to ``fit`` of the classifier."""
        from classgap.posthoc.estimators.gap_dial import GapDial

        rows, labels = indexable(X, _labels(y))
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must hold at least two classes, got 1 class: {self.classes_[0]!r}")
        base = self._base()
        method = GapDial(strength=2.0, ridge=1.0) if self.method is None else self.method
        if method.uses_features:
            raise InputError(f"{type(method).__name__} works on features; PostHocClassifier corrects scores only")
        # First, because it refuses unusable X in its own words; a classifier that cannot be refitted has scores at once.
        params = self._routed(params)
        self.estimator_ = clone(base).fit(rows, labels, **_check_method_params(rows, params))
        scores = self._out_of_fold(base, rows, labels, codes, params)
        self.method_ = clone(method).fit(scores, codes)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def decision_function(self, X: Any) -> Array:
        """Corrected scores ``(n, K)``; for two classes the difference of their scores, as in scikit-learn."""
        check_is_fitted(self)
        scores: Array = self.method_.transform(_scores(self.estimator_, X, self.classes_))
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """Softmax of the corrected scores."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        probabilities: Array = softmax(scores, axis=1)
        return probabilities

    def predict(self, X: Any) -> Array:
        """The class with the largest corrected score."""
        scores = self.decision_function(X)
        predicted: Array = self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
        return predicted

    def __sklearn_tags__(self) -> Any:
        tags, base = super().__sklearn_tags__(), self.estimator
        if base is not None:
            inner = get_tags(base).input_tags
            tags.input_tags.sparse, tags.input_tags.string = inner.sparse, inner.string
            tags.input_tags.allow_nan = inner.allow_nan
        else:
            tags.input_tags.sparse = True
        return tags

    def get_metadata_routing(self) -> Any:
        """Where scikit-learn sends further arguments of ``fit``: to the classifier."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=type(self).__name__).add(estimator=self._base(), method_mapping=mapping)

    def _base(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(max_iter=1000) if self.estimator is None else self.estimator

    def _routed(self, params: dict[str, Any]) -> dict[str, Any]:
        """The arguments for ``fit`` of the classifier."""
        if not params or not get_config()["enable_metadata_routing"]:
            return params
        return dict(process_routing(self, "fit", **params).estimator.fit)

    def _out_of_fold(self, base: Any, X: Any, y: Array, codes: Array, params: dict[str, Any]) -> Array:
        if isinstance(base, FrozenEstimator):
            return _scores(self.estimator_, X, self.classes_)
        folds = max(2, min(self.folds, int(np.bincount(codes).max())))
        fold = fold_numbers(codes, folds, self.seed)
        scores = np.empty((len(codes), len(self.classes_)))
        for k in range(folds):
            inside, outside = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
            if not len(inside):
                continue
            if len(np.unique(codes[outside])) < 2:
                raise InputError(
                    f"PostHocClassifier needs two samples of at least two classes, got {len(codes)} samples"
                )
            some = _check_method_params(X, params, indices=outside)
            model = clone(base).fit(_safe_indexing(X, outside), y[outside], **some)
            scores[inside] = _scores(model, _safe_indexing(X, inside), self.classes_)
        return scores


def _labels(y: Any) -> Array:
    if y is None:
        raise InputError("PostHocClassifier requires y to be passed, but the target y is None")
    labels: Array = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=None, input_name="y")
    check_classification_targets(labels)
    return labels


def _scores_pairs(model: Any) -> bool:
    """Whether the columns are pairs of classes; three classes have as many pairs, so the number of columns does not tell."""
    while True:
        inner = model.steps[-1][1] if hasattr(model, "steps") else getattr(model, "best_estimator_", None)
        inner = model.estimator if isinstance(model, FrozenEstimator) else inner
        if inner is None:
            return getattr(model, "decision_function_shape", None) == "ovo"
        model = inner


def _scores(model: Any, X: Any, classes: Array) -> Array:
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
    if raw.shape[1] != len(model.classes_) or (raw.shape[1] == 3 and _scores_pairs(model)):
        raise InputError(
            f"{type(model).__name__} has one score per pair of classes; use its one-versus-rest form, for SVC "
            "decision_function_shape='ovr'"
        )
    if not np.isin(model.classes_, classes).all():
        unseen = next(label for label in model.classes_ if label not in classes)
        raise InputError(
            f"y must hold every class of the fitted model, got no sample of {str(unseen)!r}; fit on samples of all its classes"
        )
    scores = np.repeat(raw.min(axis=1, keepdims=True), len(classes), axis=1)
    scores[:, np.searchsorted(classes, model.classes_)] = raw
    return scores
