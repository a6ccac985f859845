"""Multi-label data: one binary problem per label."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from classgap import audit, audit_labels
from classgap.checks import InputError

RNG = np.random.default_rng(0)
TRUE = RNG.random((800, 5)) < [0.5, 0.3, 0.2, 0.1, 0.05]
SCORES = 1 / (1 + np.exp(-(3 * TRUE - 1.5 - np.array([0, 0, 2.0, 0, 0]) + RNG.normal(size=TRUE.shape))))


def test_matches_scikit_learn():
    report = audit_labels(TRUE, scores=SCORES, label_names=list("abcde"))
    order = [list("abcde").index(name) for name in report.per_label["name"]]
    predicted = SCORES >= 0.5
    for column, score in (("recall", recall_score), ("precision", precision_score), ("f1", f1_score)):
        assert report.per_label[column] == pytest.approx(score(TRUE, predicted, average=None)[order])
    assert report.per_label["auc"] == pytest.approx(roc_auc_score(TRUE, SCORES, average=None)[order])
    assert report.per_label["average_precision"] == pytest.approx(
        average_precision_score(TRUE, SCORES, average=None)[order]
    )
    assert report.per_label["specificity"] == pytest.approx(recall_score(~TRUE, ~predicted, average=None)[order])
    assert report.per_label["name"][0] == "c"
    assert report.verdict.startswith("The gap is real")
    assert report.metrics["worst"].value == report.per_label["recall"][0]
    assert json.dumps(report.to_dict())
    assert "| c |" in report.to_markdown()
    assert "c" in repr(report)
    assert report.to_pandas().loc["c", "support"] == TRUE[:, 2].sum()


def test_thresholds_per_label():
    one = audit_labels(TRUE, scores=SCORES, threshold=[0.5, 0.5, 0.1, 0.5, 0.5])
    other = audit_labels(TRUE, SCORES >= [0.5, 0.5, 0.1, 0.5, 0.5])
    assert one.per_label["recall"].tolist() == other.per_label["recall"].tolist()


def test_equal_labels_are_not_called_different():
    """Labels of one sample are right or wrong together."""
    rng = np.random.default_rng(1)
    real = 0
    for _ in range(60):
        true = rng.random((200, 8)) < 0.3
        right = rng.random((200, 8)) < np.where(rng.random((200, 1)) < 0.5, 0.95, 0.5)
        real += audit_labels(true, true == right).homogeneity.p_value < 0.05
    assert real <= 7


def test_unusable():
    with pytest.raises(InputError, match="y_true must be a matrix of 0 and 1"):
        audit_labels([0, 1, 2], [0, 1, 2])
    with pytest.raises(InputError, match="y_true must be a matrix of 0 and 1"):
        audit_labels([[0, 2]], [[0, 1]])
    with pytest.raises(InputError, match="pass y_pred, or scores"):
        audit_labels(TRUE)
    with pytest.raises(InputError, match="y_pred must have the shape of y_true"):
        audit_labels(TRUE, TRUE[:, :2])
    with pytest.raises(InputError, match="label_names must be 5 different names"):
        audit_labels(TRUE, TRUE, label_names=["a"])
    with pytest.raises(InputError, match="threshold must be one number, or 5 numbers"):
        audit_labels(TRUE, scores=SCORES, threshold=[0.5, 0.5])
    with pytest.raises(InputError, match="only zeros"):
        audit_labels(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"argmax\(axis=1\), for multi-label data use classgap.audit_labels"):
        audit(TRUE, TRUE)
