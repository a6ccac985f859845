"""Scorers, and PostHocClassifier where scikit-learn's users put a classifier."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, cross_validate, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from classgap import audit
from classgap.checks import InputError
from classgap.integrations import sklearn as scores
from classgap.posthoc import GapDial, LogitAdjustment, PostHocClassifier


def texts() -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(0)
    words = {"card": ["card", "lost", "pin"], "loan": ["loan", "rate", "pin"], "cash": ["cash", "rate", "note"]}
    y = rng.choice(list(words), 150, p=[0.7, 0.2, 0.1])
    return [" ".join(rng.choice([*words[label], "the", "my"], 5)) for label in y], y


def test_scores_are_those_of_an_audit() -> None:
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=20, C=1e-4).fit(X[:500] / 16, y[:500])
    y_pred = model.predict(X[500:] / 16)
    report = audit(y[500:], y_pred, n_boot=100)
    assert scores.hard_third_score(y[500:], y_pred) == pytest.approx(report.hard.value)
    assert scores.worst_class_score(y[500:], y_pred) == pytest.approx(report.worst.value)
    assert scores.gap_score(y[500:], y_pred) == pytest.approx(report.gap.value)
    assert scores.gap(model, X[500:] / 16, y[500:]) == -scores.gap_score(y[500:], y_pred)
    assert scores.hard_third(model, X[500:] / 16, y[500:]) == scores.hard_third_score(y[500:], y_pred)


def test_scores_take_names_and_refuse_what_cannot_be_compared() -> None:
    assert scores.worst_class_score(["a", "a", "b"], ["a", "c", "b"]) == 0.5  # "c" is no class here
    with pytest.raises(InputError, match="y_pred must have one label for each of the 3"):
        scores.gap_score([0, 1, 1], [0, 1])
    with pytest.raises(InputError, match="missing labels"):
        scores.gap_score([0, 1, np.nan], [0, 1, 1])
    with pytest.raises(InputError, match="y_true must be a vector of labels"):
        scores.gap_score(np.eye(3), [0, 1, 2])


def test_labels_of_different_types_and_negative_weights_are_refused() -> None:
    with pytest.raises(InputError, match="labels of the same type"):
        scores.hard_third_score(["0", "1", "2"], [0, 1, 2])
    assert scores.hard_third_score([True, False], [1, 0]) == 1
    with pytest.raises(InputError, match="sample_weight must be at least 0"):
        scores.hard_third_score([0, 1], [0, 1], sample_weight=[1, -1])


def test_cross_validation_and_search() -> None:
    X, y = make_classification(400, n_informative=5, n_classes=3, weights=[0.8, 0.15, 0.05], random_state=0)
    found = cross_validate(LogisticRegression(), X, y, scoring=scores.SCORERS, cv=3)
    assert (found["test_worst_class"] <= found["test_hard_third"]).all()
    assert (found["test_gap"] <= 0).all()
    model = make_pipeline(StandardScaler(), PostHocClassifier(LogisticRegression(), LogitAdjustment(), folds=3))
    grid = {"posthocclassifier__method__tau": [0.0, 1.0], "posthocclassifier__estimator__C": [0.1, 1.0]}
    search = GridSearchCV(model, grid, scoring=scores.worst_class, cv=3).fit(X, y)
    assert search.best_params_["posthocclassifier__method__tau"] == 1.0
    assert search.best_score_ > found["test_worst_class"].mean()


def test_sparse_rows_give_the_same_as_dense_ones() -> None:
    X, y = make_classification(200, n_informative=5, n_classes=3, random_state=0)
    X[np.abs(X) < 0.7] = 0
    model = PostHocClassifier(LogisticRegression(), GapDial(strength=2.0, ridge=1.0), folds=3)
    dense = clone(model).fit(X, y).predict_proba(X)
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.coo_array):
        np.testing.assert_allclose(clone(model).fit(kind(X), y).predict_proba(kind(X)), dense, atol=1e-5)


def test_texts_on_either_side_of_the_correction() -> None:
    X, y = texts()
    base = make_pipeline(TfidfVectorizer(), LogisticRegression())
    around = PostHocClassifier(base, LogitAdjustment(), folds=3).fit(X, y)  # each fold has a vocabulary of its own
    inside = make_pipeline(TfidfVectorizer(), PostHocClassifier(LogisticRegression(), LogitAdjustment(), folds=3)).fit(
        X, y
    )
    for model in (around, inside):
        assert scores.worst_class_score(y, model.predict(X)) > scores.worst_class_score(y, base.fit(X, y).predict(X))
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


def test_data_frames_keep_their_columns() -> None:
    pd = pytest.importorskip("pandas")
    X, y = make_classification(200, n_informative=5, n_classes=3, random_state=0)
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    model = PostHocClassifier(LogisticRegression(), LogitAdjustment()).fit(frame, y)
    assert model.feature_names_in_.tolist() == list(frame)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[frame.columns[::-1]])


def test_a_fitted_classifier_is_corrected_and_not_fitted_again() -> None:
    X, y = make_classification(900, n_informative=5, n_classes=3, weights=[0.8, 0.15, 0.05], random_state=0)
    y = np.array(["often", "seldom", "rare"])[y]
    X, X_new, y, y_new = train_test_split(X, y, random_state=0, stratify=y)
    fitted = LogisticRegression().fit(X[:300], y[:300])
    weights = fitted.coef_.copy()
    model = PostHocClassifier(FrozenEstimator(fitted), LogitAdjustment()).fit(X[300:], y[300:])
    assert model.estimator_.estimator is fitted
    np.testing.assert_array_equal(fitted.coef_, weights)
    by_hand = LogitAdjustment().fit(fitted.decision_function(X[300:]), np.unique(y[300:], return_inverse=True)[1])
    np.testing.assert_allclose(model.decision_function(X_new), by_hand.transform(fitted.decision_function(X_new)))
    assert scores.worst_class(model, X_new, y_new) > scores.worst_class(fitted, X_new, y_new)
    some = y[300:] != "rare"
    with pytest.raises(InputError, match="got no sample of 'rare'"):
        PostHocClassifier(FrozenEstimator(fitted), LogitAdjustment()).fit(X[300:][some], y[300:][some])


def test_sample_weights_reach_the_classifier_in_every_fold() -> None:
    """A weight of 0 equals leaving the sample out; a weight of 2 having it twice."""
    X, y = make_classification(300, n_informative=5, n_classes=3, random_state=0)
    weight = np.ones(300)
    weight[::5] = 1e-12
    model = PostHocClassifier(LogisticRegression(), LogitAdjustment(tau=0.0), folds=3)
    weighted = clone(model).fit(X, y, sample_weight=weight).decision_function(X)
    without = LogisticRegression().fit(np.delete(X, np.s_[::5], 0), np.delete(y, np.s_[::5])).decision_function(X)
    np.testing.assert_allclose(weighted - weighted.mean(1, keepdims=True), without, atol=2e-2)
    assert np.abs(weighted - clone(model).fit(X, y).decision_function(X)).max() > 0.05
    with pytest.raises(TypeError, match="no_such"):
        clone(model).fit(X, y, no_such=weight)


def test_metadata_routing_through_a_pipeline_and_a_search() -> None:
    X, y = make_classification(300, n_informative=5, n_classes=3, random_state=0)
    weight = np.where(y == 0, 5.0, 1.0)
    with config_context(enable_metadata_routing=True):
        base = LogisticRegression().set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        model = make_pipeline(scaler, PostHocClassifier(base, LogitAdjustment(), folds=3))
        scorer = make_scorer(scores.hard_third_score).set_score_request(sample_weight=True)
        grid = {"posthocclassifier__method__tau": [0.0, 1.0]}
        search = GridSearchCV(model, grid, scoring=scorer, cv=3).fit(X, y, sample_weight=weight)
        direct = clone(model).set_params(**search.best_params_).fit(X, y, sample_weight=weight)
        plain = clone(model).set_params(**search.best_params_).fit(X, y)
        np.testing.assert_array_equal(search.predict(X), direct.predict(X))
        assert (direct.decision_function(X) != plain.decision_function(X)).any()
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            PostHocClassifier(LogisticRegression(), LogitAdjustment()).fit(X, y, sample_weight=weight)


def test_weighted_scores_are_those_of_repeated_samples() -> None:
    y_true, y_pred, weight = [0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0], [1, 3, 1, 1, 2, 1]
    repeated = np.repeat(y_true, weight), np.repeat(y_pred, weight)
    for function in (scores.hard_third_score, scores.worst_class_score, scores.gap_score):
        assert function(y_true, y_pred, sample_weight=weight) == pytest.approx(function(*repeated))
