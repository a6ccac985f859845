"""classgap.audit as a caller meets it: right numbers, and a sentence for wrong input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

import classgap
from classgap import Predictions
from classgap.checks import InputError
from classgap.measure import AuditReport, Estimate, diagnosing
from classgap.measure.diagnostics import margins
from classgap.measure.statistics.metrics import METRICS
from classgap.predictions import Confusion
from reference import geometry as geometry_reference
from reference import metrics as reference


def predictions(num_classes=9, size=900, seed=0, low=0.5, high=0.95):
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, num_classes, size)
    right = rng.random(size) < np.linspace(high, low, num_classes)[y_true]
    return y_true, np.where(right, y_true, (y_true + rng.integers(1, num_classes, size)) % num_classes)


def audit(*args, **kwargs) -> AuditReport:
    return classgap.audit(*args, **{"n_boot": 100, **kwargs})


def every_estimate(report: AuditReport) -> list[Estimate]:
    return [*report.metrics.values(), *(e for group in report.groups.values() for e in group.values())]


def test_numbers_match_sklearn_and_reference():
    y_true, y_pred = predictions()
    report = audit(y_true, y_pred)
    assert report.overall.value == pytest.approx((y_true == y_pred).mean())
    assert report.balanced.value == pytest.approx(balanced_accuracy_score(y_true, y_pred))
    for name, value in reference.metrics(reference.class_accuracies(y_true, y_pred, 9)).items():
        assert report.metrics[name].value == pytest.approx(value), name
    assert set(METRICS) <= set(report.metrics)


@settings(max_examples=40)
@example([(0, 0), (0, 1), (1, 1)], 0.5)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.floats(0.5, 0.99))
def test_whatever_comes_intervals_hold_their_value(pairs, confidence):
    y_true, y_pred = np.array(pairs).T
    report = audit(y_true, y_pred, class_names=list("abcde"), confidence=confidence)
    for estimate in every_estimate(report):
        if np.isnan(estimate.value):
            assert np.isnan(estimate.low)
            assert np.isnan(estimate.high)
        else:
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert report.per_class["support"].sum() == len(y_true)
    json.dumps(report.to_dict(), allow_nan=False)


def test_string_integer_and_boolean_labels():
    names = np.array(["ant", "bee", "cat"])
    y_true, y_pred = predictions(3, 90)
    by_index = audit(y_true, y_pred, class_names=names)
    by_name = audit(names[y_true], names[y_pred])
    mixed = audit(names[y_true].astype(object), y_pred.astype(float), class_names=list(names))
    for other in (by_name, mixed):
        assert other.classes == by_index.classes == ("ant", "bee", "cat")
        np.testing.assert_array_equal(other.confusion.counts, by_index.confusion.counts)
    sparse_ids = audit(y_true * 100 + 7, y_pred * 100 + 7)
    assert sparse_ids.classes == ("7", "107", "207")
    boolean = audit(y_true > 0, y_pred > 0)
    assert boolean.classes == ("False", "True")
    assert boolean.overall.value == pytest.approx(((y_true > 0) == (y_pred > 0)).mean())


def test_absent_class_is_nan_skipped_and_noted():
    y_true, y_pred = predictions(3, 90)
    report = audit(y_true, y_pred, class_names=["a", "b", "c", "ghost"])
    row = report.per_class[3]
    assert row["support"] == 0
    assert np.isnan([row["accuracy"], row["low"], row["high"], row["f1"]]).all()
    assert row["group"] == ""
    assert report.balanced.value == pytest.approx(balanced_accuracy_score(y_true, y_pred))
    assert any("'ghost'" in note and "no samples" in note for note in report.notes)
    assert report.to_dict()["per_class"][3]["accuracy"] is None


def test_class_that_is_only_ever_predicted():
    report = audit([0, 0, 1], [0, 5, 1])
    assert report.classes == ("0", "1", "5")
    assert report.per_class["support"].tolist() == [2, 1, 0]
    assert report.worst.value == 0.5


def test_single_class_and_two_classes():
    one = audit(["a", "a"], ["a", "a"])
    assert one.overall.value == one.easy.value == 1
    assert np.isnan(one.hard.value)
    assert "no gap" in one.verdict
    two = audit([0, 0, 1, 1], [0, 0, 1, 0])
    assert (two.easy.value, two.hard.value) == (1.0, 0.5)
    assert np.isnan(two.medium.value)
    assert any("thirds of the classes are not meaningful" in note for note in two.notes)


def test_verdict_tells_noise_from_gap():
    equal = audit(*predictions(10, 2000, low=0.7, high=0.7))
    unequal = audit(*predictions(10, 2000))
    assert "may be sampling noise" in equal.verdict
    assert equal.homogeneity.p_value > 0.05
    assert "gap is real" in unequal.verdict
    assert unequal.homogeneity.p_value < 0.001
    assert equal.metrics["gap_corrected"].value < equal.gap.value


def test_rankings():
    y_true, y_pred = predictions(9, 900)
    report = audit(y_true, y_pred, reference=np.arange(9), train_counts=[500] * 3 + [50] * 3 + [5] * 3)
    accuracy = report.per_class["accuracy"]
    assert report.groups["own"]["hard"] == report.hard
    assert report.groups["reference"]["easy"].value == pytest.approx(accuracy[6:].mean())
    assert report.groups["reference"]["hard"].value == pytest.approx(accuracy[:3].mean())
    assert report.groups["frequency"]["few"].value == pytest.approx(accuracy[6:].mean())
    assert report.groups["cross"]["hard"].value > report.hard.value
    assert report.per_class["train_count"].tolist() == [500] * 3 + [50] * 3 + [5] * 3
    again = audit(y_true, y_pred, reference=report)
    assert again.groups["reference"]["hard"].value == pytest.approx(report.hard.value)
    empty = audit(y_true, y_pred, train_counts=[500] * 9)
    assert np.isnan(empty.groups["frequency"]["few"].value)


def test_remainder_goes_where_asked():
    y_true, y_pred = predictions(10, 1000)
    accuracies = reference.class_accuracies(y_true, y_pred, 10)
    for remainder in ("first", "last"):
        report = audit(y_true, y_pred, remainder=remainder)
        assert report.hard.value == pytest.approx(reference.metrics(accuracies, remainder)["hard"])


def test_scores_decide_predictions_and_give_more():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 8))
    y_true = rng.integers(0, 8, 300)
    logits[np.arange(300), y_true] += 1
    report = audit(y_true, scores=logits)
    assert report.overall.value == pytest.approx((logits.argmax(1) == y_true).mean())
    top5 = np.array([y in np.argsort(-row)[:5] for y, row in zip(y_true, logits, strict=True)])
    np.testing.assert_allclose(report.per_class["top5"], [top5[y_true == k].mean() for k in range(8)])
    assert report.samples.scores_kind == "logits"
    assert report.margins is not None
    assert report.calibration is not None
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    same = audit(y_true, scores=softmax.astype(np.float32))
    assert same.samples.scores_kind == "probabilities"
    assert same.overall == report.overall
    other = audit(y_true, (y_true + 1) % 8, scores=logits)
    assert other.overall.value == 0
    assert any("highest score" in note for note in other.notes)


def test_constant_scores_get_top5_by_chance():
    report = audit(np.arange(10), scores=np.zeros((10, 10)), scores_kind="logits")
    np.testing.assert_allclose(report.per_class["top5"], 0.5)


def test_features_and_head():
    rng = np.random.default_rng(0)
    y_true = np.repeat(np.arange(4), 40)
    weight, bias = rng.normal(size=(4, 6)), rng.normal(size=4)
    features = weight[y_true] + rng.normal(size=(160, 6))
    logits = features @ weight.T + bias

    class Layer:
        pass

    layer = Layer()
    layer.weight, layer.bias = weight, bias
    reports = [audit(y_true, scores=logits, features=features, head=h) for h in (weight, (weight, bias), layer)]
    assert all(r.geometry is not None and r.bounds is not None for r in reports)
    assert reports[0].samples.bias is None
    np.testing.assert_array_equal(reports[1].samples.bias, reports[2].samples.bias)
    alone = audit(y_true, scores=logits, features=features)
    assert alone.geometry is not None
    assert alone.bounds is None


def test_margins_by_third_are_table_4():
    rng = np.random.default_rng(0)
    y_true = np.repeat(np.arange(8), rng.integers(20, 60, 8))
    weight = rng.normal(size=(8, 6))
    features = weight[y_true] + rng.normal(size=(len(y_true), 6)) * (0.5 + 0.2 * y_true[:, None])
    scores = features @ weight.T
    report = audit(y_true, scores=scores, features=features, head=weight)
    levels = report.margin_levels
    expected = geometry_reference.margins_by_third(scores, y_true, weight)
    assert list(levels.output) == ["average", "easy", "medium", "hard"]
    np.testing.assert_allclose([*(e.value for e in levels.output.values()), levels.classifier], expected)
    assert all(e.low < e.value < e.high for e in levels.output.values())
    tree = json.loads(json.dumps(report.to_dict(), allow_nan=False))["margin_levels"]
    assert tree["output"]["hard"]["value"] == pytest.approx(expected[3])
    assert tree["classifier"] == pytest.approx(expected[4])
    row = next(line for line in report.to_markdown().splitlines() if line.startswith("| mean output margin"))
    assert row == "| mean output margin | " + " | ".join(f"{v:.3f}" for v in expected[:4]) + f" | {expected[4]:.1f}° |"
    # what is missing is nan, or nothing at all
    assert np.isnan(audit(y_true, scores=scores).margin_levels.classifier)
    assert "| – |" in audit(y_true, scores=scores).to_markdown()
    without = audit(y_true, scores.argmax(1), features=features, head=weight).margin_levels
    assert np.isnan(without.output["hard"].value)
    assert without.classifier == levels.classifier
    assert audit(y_true, scores.argmax(1)).margin_levels is None
    assert audit(y_true, scores.argmax(1)).to_dict()["margin_levels"] is None


def test_interval_of_an_output_margin_covers():
    """The average over 4 classes of unequal size, 400 draws: the interval of 90 % holds the truth in about 90 % of them."""
    rng = np.random.default_rng(1)
    sizes, held = [30, 60, 90, 120], 0
    y_true = np.repeat(np.arange(4), sizes)
    many = np.repeat(np.arange(4), 20_000)

    def logits(y):
        return rng.normal(size=(len(y), 4)) + 1.5 * np.eye(4)[y]

    truth = margins.describe(logits(many), many, 4, kind="logits").output.mean.mean()
    for _ in range(400):
        found = {"margins": margins.describe(logits(y_true), y_true, 4, kind="logits"), "geometry": None}
        average = diagnosing.margin_levels(np.array([0, 0, 1, 2]), np.array(sizes), found, 0.9).output["average"]
        held += average.low < truth < average.high
    assert 0.85 < held / 400 < 0.94


def test_counts_alone_give_the_same_report():
    y_true, y_pred = predictions()
    full = audit(y_true, y_pred)
    for counts in (full.confusion.counts, Confusion.from_codes(y_true, y_pred, 9)):
        streamed = audit(Predictions.from_counts(counts), n_boot=100)
        assert streamed.samples is None
        assert streamed.metrics == full.metrics
        assert streamed.groups == full.groups
        np.testing.assert_array_equal(streamed.per_class, full.per_class)


def test_thousands_of_classes():
    rng = np.random.default_rng(0)
    y_true = rng.integers(0, 3000, 30_000)
    y_pred = np.where(rng.random(30_000) < 0.8, y_true, rng.integers(0, 3000, 30_000))
    report = audit(y_true, y_pred, class_names=[f"c{k}" for k in range(3000)])
    assert not isinstance(report.confusion.counts, np.ndarray)
    assert report.metrics["gap_corrected"].value < report.gap.value


def test_same_seed_same_report():
    y_true, y_pred = predictions()
    assert audit(y_true, y_pred, seed=4).metrics == audit(y_true, y_pred, seed=4).metrics
    assert audit(y_true, y_pred, seed=4).metrics != audit(y_true, y_pred, seed=5).metrics


def test_views():
    y_true, y_pred = predictions(4, 200)
    report = audit(y_true, y_pred, class_names=["a|b", "<script>", "c", "d"])
    tree = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    for name in ("overall", "easy", "medium", "hard", "worst", "gap"):
        assert set(tree[name]) == {"value", "low", "high"}
    assert tree["num_classes"] == 4
    assert tree["per_class"][0]["name"] == "a|b"
    assert tree["confused_pairs"][0]["true"] in report.classes
    assert tree["margins"] is None
    text = report.to_markdown()
    assert report.verdict in text
    assert "a\\|b" in text
    assert "<script>" not in text
    frame = report.to_pandas()
    assert frame.index.tolist() == list(report.classes)
    assert frame.loc["c", "accuracy"] == report.per_class["accuracy"][2]
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"
    assert float(report.overall) == report.overall.value


def test_torch_tensors_are_welcome():
    torch = pytest.importorskip("torch")
    y_true, y_pred = predictions(3, 60)
    logits = torch.nn.functional.one_hot(torch.tensor(y_pred), 3).float().mul(3).requires_grad_()
    report = audit(torch.tensor(y_true), scores=logits.bfloat16())
    assert report.overall.value == pytest.approx((y_true == y_pred).mean())


GOOD = [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y_true": GOOD}, "pass y_pred, or scores"),
        ({"y_true": [], "y_pred": []}, "y_true is empty"),
        ({"y_true": GOOD, "y_pred": [0, 1]}, "y_pred must have one entry per sample like y_true, 4, got 2"),
        ({"y_true": np.eye(4), "y_pred": GOOD}, r"one-hot labels pass their argmax"),
        ({"y_true": np.zeros((1, 2, 3)), "y_pred": GOOD}, "vector of labels"),
        ({"y_true": [0, 1, np.nan, 1], "y_pred": GOOD}, r"missing labels \(row 2\)"),
        ({"y_true": ["a", None, "b", "a"], "y_pred": ["a"] * 4}, r"missing labels \(row 1\)"),
        ({"y_true": np.array(["a", 1, "b", "a"], object), "y_pred": ["a"] * 4}, "mixes labels of the types int, str"),
        (
            {"y_true": [0, 1], "y_pred": [0, -(2**63) - 1]},
            "y_pred holds whole numbers of more than 64 bits; pass such labels",
        ),
        ({"y_true": np.array(["2020"] * 4, "M8[Y]"), "y_pred": GOOD}, "class indices, names or booleans"),
        ({"y_true": [0.5, 1, 2, 1], "y_pred": GOOD}, "fraction 0.5"),
        ({"y_true": GOOD, "y_pred": GOOD, "class_names": ["a", "b"]}, "2 class names"),
        ({"y_true": GOOD, "y_pred": GOOD, "class_names": ["a", "b", "a"]}, "'a' occurs twice"),
        ({"y_true": GOOD, "y_pred": GOOD, "class_names": "abc"}, "single string 'abc'"),
        ({"y_true": ["a", "b", "x", "a"], "y_pred": ["a"] * 4, "class_names": ["a", "b"]}, "'x'"),
        ({"y_true": ["a", "b", "b", "a"], "y_pred": [0, 1, 0, 1]}, "names"),
        ({"y_true": ["a", "b", "b", "a"], "scores": np.eye(4)[:, :2] * 9}, "class names"),
        ({"y_true": GOOD, "scores": np.eye(3)}, "scores must have one entry per sample"),
        ({"y_true": GOOD, "scores": np.eye(4)[:, :2]}, "sum to 1"),
        ({"y_true": GOOD, "scores": 9 * np.eye(4)[:, :2]}, "scores have 2 columns"),
        ({"y_true": GOOD, "scores": np.full((4, 3), 0.9)}, "scores_kind='logits'"),
        ({"y_true": GOOD, "scores": np.eye(4) * 9, "scores_kind": "probabilities"}, "probabilities in"),
        ({"y_true": GOOD, "scores": np.eye(4), "scores_kind": "logit"}, "did you mean 'logits'"),
        ({"y_true": GOOD, "scores": np.full((4, 3), np.nan)}, "nan or infinite"),
        ({"y_true": GOOD, "scores": [1, 2, 3, 4]}, "one score per sample, which is for two classes"),
        ({"y_true": GOOD, "y_pred": GOOD, "class_names": ["a", "b", "c"], "scores": np.eye(4)}, "score"),
        ({"y_true": GOOD, "y_pred": GOOD, "features": np.ones((3, 2))}, "features must have one entry per sample"),
        ({"y_true": GOOD, "y_pred": GOOD, "head": np.ones((3, 2))}, "head also needs features"),
        ({"y_true": GOOD, "y_pred": GOOD, "features": np.ones((4, 2)), "head": np.ones((3, 5))}, "weight"),
        ({"y_true": GOOD, "y_pred": GOOD, "train_counts": [1, 2]}, "2"),
        ({"y_true": GOOD, "y_pred": GOOD, "train_counts": {"0": 3}}, "2 of 3 are missing .*'1'"),
        ({"y_true": GOOD, "y_pred": GOOD, "train_counts": [1, -2, 3]}, "≥ 0"),
        ({"y_true": GOOD, "y_pred": GOOD, "confidence": 95}, "confidence must be a number between 0 and 1"),
        ({"y_true": GOOD, "y_pred": GOOD, "n_boot": 10}, "n_boot must be a whole number from 100 to 1,000,000"),
        ({"y_true": GOOD, "y_pred": GOOD, "seed": -1}, "seed must be"),
        ({"y_true": GOOD, "y_pred": GOOD, "remainder": "frist"}, "did you mean 'first'"),
        ({"y_true": GOOD, "y_pred": GOOD, "few": 50, "many": 10}, "few must not exceed many"),
        ({"y_true": GOOD, "y_pred": GOOD, "reference": [1, 2]}, "reference must be 3 numbers"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, message):
    with pytest.raises(InputError, match=message):
        audit(**arguments)


def test_reference_report_on_other_classes():
    other = audit(["x", "y"], ["x", "y"])
    with pytest.raises(InputError, match="must be a report on the same classes"):
        audit(GOOD, GOOD, reference=other)


def test_bad_counts_get_a_sentence():
    with pytest.raises(InputError, match="at least one sample"):
        Predictions.from_counts(np.zeros((2, 2), int))
    with pytest.raises(InputError, match="one name per row of counts, 2, got 1"):
        Predictions.from_counts([[1, 0], [0, 1]], ["a"])
    with pytest.raises(InputError, match="occurs twice"):
        Predictions.from_counts([[1, 0], [0, 1]], ["a", "a"])
