"""PostHocClassifier is a scikit-learn estimator like any other."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import NearestCentroid
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from classgap.checks import InputError
from classgap.posthoc import CRT, MARC, GapDial, LogitAdjustment, PostHocClassifier, TemperatureScaling


@parametrize_with_checks(
    [
        PostHocClassifier(LogisticRegression(), LogitAdjustment(), folds=3),
        PostHocClassifier(LogisticRegression(), GapDial(strength=2.0, ridge=1.0), folds=2),
    ]
)
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def imbalanced() -> tuple[np.ndarray, ...]:
    X, y = make_classification(
        1600, n_features=10, n_informative=6, n_classes=3, weights=[0.85, 0.1, 0.05], class_sep=0.8, random_state=0
    )
    names = np.array(["zebra", "ant", "mole"])[y]
    return X[:800], names[:800], X[800:], names[800:]


@pytest.mark.parametrize(
    "method", [LogitAdjustment(), MARC(), GapDial(strength=2.0, ridge=1.0)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize(
    "base", [LogisticRegression(max_iter=500), RandomForestClassifier(20, random_state=0)], ids=["logistic", "forest"]
)
def test_rare_classes_gain(imbalanced, base, method) -> None:
    X, y, X_new, y_new = imbalanced
    plain = clone(base).fit(X, y)
    model = PostHocClassifier(base, method).fit(X, y)
    np.testing.assert_array_equal(model.classes_, plain.classes_)
    np.testing.assert_allclose(model.predict_proba(X_new).sum(1), 1)
    gain = balanced_accuracy_score(y_new, model.predict(X_new)) - balanced_accuracy_score(y_new, plain.predict(X_new))
    assert gain > 0.05


def test_a_class_of_one_sample_is_survivable(imbalanced) -> None:
    X, y, X_new, _ = imbalanced
    rows = np.concatenate([np.flatnonzero(y != "mole")[:200], np.flatnonzero(y == "mole")[:1]])
    model = PostHocClassifier(LogisticRegression(max_iter=500), LogitAdjustment()).fit(X[rows], y[rows])
    assert set(model.predict(X_new)) <= set(model.classes_)


def test_what_cannot_work_is_said(imbalanced) -> None:
    X, y, _, _ = imbalanced
    with pytest.raises(InputError, match="works on features"):
        PostHocClassifier(LogisticRegression(), CRT()).fit(X, y)
    with pytest.raises(InputError, match="at least two classes"):
        PostHocClassifier(LogisticRegression(), LogitAdjustment()).fit(X[:10], np.zeros(10))
    with pytest.raises(InputError, match="one score per pair of classes"):
        PostHocClassifier(SVC(decision_function_shape="ovo"), LogitAdjustment()).fit(*_four_classes())

    class Mute(NearestCentroid):
        decision_function = predict_proba = property(lambda self: (_ for _ in ()).throw(AttributeError()))

    with pytest.raises(InputError, match="neither decision_function nor predict_proba"):
        PostHocClassifier(Mute(), LogitAdjustment()).fit(X, y)


def _four_classes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 20)
    return rng.normal(size=(80, 3)) + y[:, None], y


def test_three_classes_have_as_many_pairs_as_classes() -> None:
    from sklearn.datasets import load_iris
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import make_pipeline

    X, y = load_iris(return_X_y=True)
    pairs = make_pipeline(SVC(decision_function_shape="ovo"))
    for base in (pairs, FrozenEstimator(pairs.fit(X, y))):
        with pytest.raises(InputError, match=r"one score per pair of classes.*decision_function_shape='ovr'"):
            PostHocClassifier(base, TemperatureScaling()).fit(X, y)
    assert PostHocClassifier(SVC(), TemperatureScaling()).fit(X, y).score(X, y) > 0.95
    assert (
        PostHocClassifier(SVC(decision_function_shape="ovo"), TemperatureScaling()).fit(X[:100], y[:100]).score(X, y)
        > 0.6
    )


def test_linear_scores_without_probabilities(imbalanced) -> None:
    X, y, X_new, _ = imbalanced
    model = PostHocClassifier(Perceptron(random_state=0), MARC()).fit(X, y)
    assert model.predict(X_new).shape == (800,)
