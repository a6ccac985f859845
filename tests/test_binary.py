"""Two classes: one score column, thresholds, and areas under curves."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from classgap import Columns, Predictions, audit
from classgap.checks import InputError
from classgap.cli import main
from classgap.measure.diagnostics.ranking import auc_interval, average_precision, roc_area
from classgap.measure.statistics.intervals import wilson

RNG = np.random.default_rng(0)
Y = (RNG.random(400) < 0.3).astype(int)
LOGIT = RNG.normal(0, 1, 400) + 2 * Y - 1
PROB = 1 / (1 + np.exp(-LOGIT))


def test_one_score_column_is_that_of_the_second_class(tmp_path):
    names = np.array(["benign", "malignant"])[Y]
    pl.DataFrame({"label": Y, "prob": PROB}).write_csv(tmp_path / "a.csv")
    pl.DataFrame({"label": names, "p": PROB}).write_parquet(tmp_path / "b.parquet")
    np.savez(tmp_path / "c.npz", y_true=Y, scores=LOGIT)
    wanted = (PROB >= 0.5).astype(int).tolist()
    for found in (
        Predictions.read(tmp_path / "a.csv"),
        Predictions.read(tmp_path / "a.csv", Columns(scores="prob")),
        Predictions.read(tmp_path / "b.parquet", Columns(scores="p")),
        Predictions.read(tmp_path / "c.npz"),
        Predictions.from_arrays(Y, scores=PROB),
        Predictions.from_arrays(Y == 1, scores=LOGIT[:, None]),
        Predictions.from_frame(pl.DataFrame({"label": names, "probability": PROB})),
    ):
        assert found.y_pred.tolist() == wanted
        assert found.y_true.tolist() == Y.tolist()
        assert found.threshold == 0.5
        lower = found.at_threshold(0.2)
        assert lower.y_pred.tolist() == (PROB >= 0.2).astype(int).tolist()
    assert any("taken as the score of class 'malignant'" in note for note in found.notes)


def test_positive_names_the_class_of_the_score():
    names = np.array(["benign", "malignant"])[Y]
    wrong = audit(names, scores=1 - PROB)
    assert any("is it the score of 'benign'?" in note for note in wrong.notes)
    right = audit(names, scores=1 - PROB, positive="benign")
    assert right.overall.value == pytest.approx(audit(names, scores=PROB).overall.value)
    assert not any("benign" in note for note in right.notes)
    columns = np.column_stack([1 - PROB, PROB])
    both = audit(names, scores=columns, class_names=["benign", "malignant"], threshold=0.9, positive="benign")
    assert both.samples.y_pred.tolist() == np.where(1 - PROB >= 0.9, 0, 1).tolist()


def test_threshold_table():
    found = audit(Y, scores=PROB, threshold=0.3).threshold
    row = found.table[found.table["mark"] == "used here"][0]
    assert row["threshold"] == 0.3
    assert row["positive_accuracy"] == pytest.approx((PROB[Y == 1] >= 0.3).mean())
    assert row["negative_accuracy"] == pytest.approx((PROB[Y == 0] < 0.3).mean())
    assert row["precision"] == pytest.approx(Y[PROB >= 0.3].mean())
    assert row["overall"] == pytest.approx(((PROB >= 0.3) == Y).mean())
    best = found.table[found.table["mark"] == "highest balanced accuracy"][0]
    assert best["balanced"] == pytest.approx(
        max(((PROB[Y == 1] >= t).mean() + (PROB[Y == 0] < t).mean()) / 2 for t in PROB)
    )
    equal = found.table[found.table["mark"] == "equal accuracy"][0]
    assert abs(equal["positive_accuracy"] - equal["negative_accuracy"]) < 0.02
    assert audit(Y, Y).threshold is None


def test_errors_say_what_to_do(tmp_path, monkeypatch, capsys):
    with pytest.raises(
        InputError, match=r"one score per sample, which is for two classes, but the labels are 'a', 'b', 'c'"
    ):
        audit(np.array(["a", "b", "c"]), scores=np.array([0.1, 0.2, 0.3]))
    with pytest.raises(InputError, match="unknown class for positive 'malign'; did you mean"):
        audit(np.array(["benign", "malignant"])[Y], scores=PROB, positive="malign")
    with pytest.raises(InputError, match="need the scores of two classes, got no scores"):
        audit(Y, Y, threshold=0.3)
    with pytest.raises(InputError, match="need the scores of two classes, got 3 classes"):
        audit(np.zeros(4, int), scores=np.ones((4, 3)) / 3, threshold=0.3)
    with pytest.raises(InputError, match=r"threshold must be a finite number in \[0, 1\]"):
        audit(Y, scores=PROB, threshold=-1)
    with pytest.raises(InputError, match="must hold probabilities"):
        audit(Y, scores=LOGIT, scores_kind="probabilities")
    pl.DataFrame({"label": Y, "prob": PROB}).write_csv(tmp_path / "a.csv")
    monkeypatch.setattr("sys.argv", ["classgap", "audit", str(tmp_path / "a.csv"), "--threshold", "0.3"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "Accuracy of both classes by threshold" in capsys.readouterr().out


def test_areas_match_scikit_learn():
    coarse = np.round(PROB, 1)  # with ties
    for values in (PROB, coarse, np.zeros(400)):
        sides = values[Y == 1], values[Y == 0]
        assert roc_area(*sides)[0] == pytest.approx(roc_auc_score(Y, values))
        assert average_precision(*sides) == pytest.approx(average_precision_score(Y, values))
    y = RNG.integers(0, 4, 300)
    scores = RNG.normal(size=(300, 5)) + 2 * np.eye(5)[y]
    report = audit(y, scores=scores, class_names=list("abcde"))
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for k in range(4):
        assert report.per_class["auc"][k] == pytest.approx(roc_auc_score(y == k, probabilities[:, k]))
        low, high = report.per_class["average_precision_low"][k], report.per_class["average_precision_high"][k]
        assert low < report.per_class["average_precision"][k] < high
    assert np.isnan(report.per_class["auc"][4])
    assert set(report.ranking.curves) == set(range(4))


@pytest.mark.parametrize("scale", [1, 20, 1000])
def test_areas_of_logits_are_not_rounded_to_probabilities_of_0_and_1(scale):
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 300)
    logits = scale * (rng.normal(size=(300, 3)) + np.eye(3)[y])
    one = logits[:, 1] - logits[:, 0]
    binary = audit(y > 0, scores=one)
    assert binary.per_class["auc"][1] == pytest.approx(roc_auc_score(y > 0, one))
    assert binary.per_class["average_precision"][1] == pytest.approx(average_precision_score(y > 0, one))
    found = audit(y, scores=logits)
    for k in range(3):
        others = np.logaddexp(*np.delete(logits, k, axis=1).T)
        assert found.per_class["auc"][k] == pytest.approx(roc_auc_score(y == k, logits[:, k] - others))


def coverage(draw, sizes, rounds, seed=0):
    """Share of the intervals of both areas that hold the value of very many samples."""
    rng = np.random.default_rng(seed)
    many = 100_000 // sum(sizes)
    big = [draw(rng, k, size * many) for k, size in enumerate(sizes)]
    truth = roc_area(big[1], big[0])[0], average_precision(big[1], big[0])
    held = []
    for _ in range(rounds):
        negative, positive = (draw(rng, k, size) for k, size in enumerate(sizes))
        value, variance = roc_area(positive, negative)
        low, high = auc_interval(
            np.array([value]), np.array([variance]), np.array([sizes[1]]), np.array([sizes[0]]), 0.95
        )
        other_low, other_high = wilson(np.array([average_precision(positive, negative)]), np.array([sizes[1]]), 0.95)
        held.append((low[0] <= truth[0] <= high[0], other_low[0] <= truth[1] <= other_high[0]))
    return np.mean(held, axis=0)


SHAPES = {
    "normal": lambda rng, k, n: rng.normal(1.5 * k, 1, n),
    "equal": lambda rng, k, n: rng.normal(0, 1, n),
    "wide": lambda rng, k, n: rng.normal(1.5 * k, 1 + 2 * k, n),
    "two groups": lambda rng, k, n: (
        rng.normal(0, 1, n) if k == 0 else np.where(rng.random(n) < 0.3, -1, 3) + rng.normal(0, 0.5, n)
    ),
    "coarse": lambda rng, k, n: rng.binomial(4, 0.3 + 0.4 * k, n).astype(float),
    "exponential": lambda rng, k, n: rng.exponential(1 + 2 * k, n),
}


@pytest.mark.parametrize("shape", ["normal", "two groups"])
def test_intervals_of_areas_hold_in_small(shape):
    assert (coverage(SHAPES[shape], (200, 20), 100) >= 0.88).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(20, 5), (100, 10), (300, 30), (30, 30), (900, 100), (300, 300)])
@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_of_areas_hold(shape, sizes):
    assert (coverage(SHAPES[shape], sizes, 400) >= 0.92).all()


def test_area_of_one_keeps_an_interval():
    low, high = auc_interval(np.array([1.0]), np.array([0.0]), np.array([30]), np.array([30]), 0.95)
    assert 0.8 < low[0] < 0.99
    assert high[0] == 1


@pytest.mark.parametrize("value", [1.0000000000000002, 1.0000001, -1e-9, -0.0009])
def test_a_rounding_error_does_not_make_logits_of_probabilities(value):
    scores, labels = np.array([0.1, 0.9, 0.2, 0.8] * 10), np.array([0, 1] * 20)
    scores[int(value > 0)] = value
    found = Predictions.from_arrays(labels, scores=scores)
    assert found.scores_kind == "probabilities"
    assert 0 <= found.scores.min() <= found.scores.max() <= 1
    lazy = pl.LazyFrame({"label": labels, "prob": scores})
    assert audit(labels, scores=scores).overall.value == audit(lazy, sample=100).overall.value == 1
    columns = np.column_stack([1 - scores, scores])
    assert Predictions.from_arrays(labels, scores=columns).scores_kind == "probabilities"
    assert Predictions.from_arrays(labels, scores=columns).scores.max() <= 1
    assert Predictions.from_arrays(labels, scores=columns / 2).scores_kind == "logits"  # rows do not sum to 1
    assert Predictions.from_arrays(labels, scores=np.append(scores[1:], 1.01)).scores_kind == "logits"


@pytest.mark.parametrize(
    ("low", "high", "classes"),
    [
        (2, 10, ("2", "10")),
        (1.0, 2.0, ("1", "2")),
        (-1.0, 1.0, ("-1", "1")),
        ("2.0", "10.0", ("2.0", "10.0")),
        (b"a", b"b", ("a", "b")),
        (False, True, ("False", "True")),
    ],
)
def test_the_second_label_in_numeric_order_is_positive(low, high, classes):
    labels = np.where(Y, high, low)
    found = Predictions.from_arrays(labels, scores=PROB)
    assert found.classes == classes
    assert found.y_pred.tolist() == (PROB >= 0.5).astype(int).tolist()
    assert audit(labels, np.full(len(Y), low), scores=PROB).overall.value == pytest.approx(1 - Y.mean())
    if not isinstance(low, bytes):
        assert audit(pl.LazyFrame({"label": labels, "prob": PROB}), sample=100).classes == classes


@pytest.mark.parametrize("batches", [False, True])
def test_notes_and_predictions_follow_threshold_and_positive(batches):
    names = np.array(["ben", "mal"])
    given = np.where(RNG.random(400) < 0.1, 1 - Y, Y)
    table = pl.DataFrame({"label": names[Y], "pred": names[given], "prob": PROB})

    def report(**options):
        if batches:
            return audit(table.lazy(), columns=Columns(scores="prob"), sample=1000, **options)
        return audit(table, columns=Columns(scores="prob"), **options)

    own, taken, used = (given == Y).mean(), "taken as the score of class", "accuracies use y_pred"
    for options, accuracy, notes in (
        ({}, own, {taken, used}),
        ({"threshold": 0.3}, ((PROB >= 0.3) == Y).mean(), {taken}),
        ({"positive": "mal"}, own, {used}),
        ({"positive": "ben"}, own, {used}),
        ({"positive": "mal", "threshold": 0.5}, ((PROB >= 0.5) == Y).mean(), set()),
    ):
        found = report(**options)
        assert found.overall.value == pytest.approx(accuracy)
        assert {part for part in (taken, used) if any(part in note for note in found.notes)} == notes
        assert found.threshold.positive == options.get("positive", "mal")
        np.testing.assert_equal(found.threshold.used, options.get("threshold", np.nan))


def test_the_table_of_thresholds_is_that_of_the_positive_class():
    columns, names = np.column_stack([1 - PROB, PROB]), ["benign", "malignant"]
    report = audit(Y, scores=columns, class_names=names, threshold=0.9, positive="benign")
    row = report.threshold.table[report.threshold.table["mark"] == "used here"][0]
    assert report.threshold.positive == "benign"
    assert row["overall"] == pytest.approx(report.overall.value)


def test_one_score_column_of_a_table_is_not_put_in_order():
    pd = pytest.importorskip("pandas")
    names, table = np.array(["neg", "pos"])[Y], pd.DataFrame({"pos": PROB})
    found = Predictions.from_arrays(names, scores=table, class_names=["neg", "pos"])
    assert found.y_pred.tolist() == (PROB >= 0.5).astype(int).tolist()
    assert not found.notes
    for given in (["neg", "pos"], None):
        other = Predictions.from_arrays(names, scores=table.rename(columns={"pos": "neg"}), class_names=given)
        assert [note for note in other.notes if "score of class 'pos', though its column is named 'neg'" in note]
        assert not any("is taken as" in note for note in audit(other, positive="neg").notes)


def test_the_positive_class_stays_with_another_threshold() -> None:
    names = np.array(["neg", "pos"])[Y]
    expected = audit(names, scores=PROB, threshold=0.3, positive="neg").overall.value
    earlier = Predictions.from_arrays(names, scores=PROB).at_threshold(0.5, "neg")
    assert audit(earlier, threshold=0.3).overall.value == audit(earlier.at_threshold(0.3)).overall.value == expected
    rows = pl.DataFrame({"label": names, "prob": PROB}).lazy()
    batches = Predictions.from_frame(rows, batches=True).at_threshold(0.5, "neg")
    assert audit(batches, threshold=0.3).overall.value == expected
    assert audit(batches.at_threshold(0.3), positive="neg").overall.value == expected


def test_a_figure_without_a_threshold_does_not_speak_of_its_line(tmp_path):
    """The caption named a dashed line that is not drawn where the class of the higher score is predicted."""
    both = np.column_stack([1 - PROB, PROB])
    for scores, expected in ((both, False), (PROB, True)):
        audit(Y, scores=scores, n_boot=100).to_html(tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert ("The dashed line is the threshold of this report" in page) == expected
        assert ("were not made with a threshold" in page) != expected
