"""What holds for every post-hoc method, whatever it does; parametrised over the registry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from classgap import fix, registry
from classgap.cards import card
from classgap.checks import InputError
from classgap.posthoc import LogitAdjustment, PostHocMethod, PredictionSets, TemperatureScaling, load, save
from classgap.suites.records import read_records
from posthoc_data import Task, long_tailed_task

METHODS = {m.name: m for m in registry.methods("posthoc")}
RESULTS = Path(__file__).parents[1] / "benchmarks" / "evidence" / "posthoc" / "results.jsonl"
QUICK = {"gap_dial": {"strength": 2.0, "ridge": 1.0}}  # cross-fitting has tests of its own
FOLDABLE = [name for name in METHODS if name != "disalign"]


def build(name: str) -> PostHocMethod:
    return METHODS[name].build(**QUICK.get(name, {}))


@pytest.fixture(scope="module")
def task() -> Task:
    return long_tailed_task()


@pytest.fixture(scope="module", params=sorted(METHODS))
def fitted(request: pytest.FixtureRequest, task: Task) -> PostHocMethod:
    return build(request.param).fit(task.scores, task.y, **task.context)


def test_every_public_estimator_is_declared() -> None:
    import classgap.posthoc as public

    classes = {getattr(public, name) for name in public.__all__ if isinstance(getattr(public, name), type)}
    methods = {c for c in classes if issubclass(c, PostHocMethod) and c is not PostHocMethod}
    assert methods - {public.LowestCost} == {
        m.cls for m in METHODS.values()
    }  # LowestCost cannot be tried without costs
    assert all(m.paper and m.summary for m in METHODS.values())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_card_says_what_to_expect_and_its_figure_is_the_measured_one(name: str) -> None:
    found = card(METHODS[name])
    assert found.when_to_use
    assert found.pitfalls
    expect = " ".join(found.expect.split())
    assert "balanced data" in expect
    assert "long tail" in expect
    lines = read_records(RESULTS)
    row = {"gap_dial": "gap_dial (chosen)"}.get(name, name)
    here = [x for x in lines if (x["head"], x["task"], x["method"]) == ("linear", "long-tailed", row)]
    assert here
    stated = re.search(r"long tail about \+(\d+) (?:and \+\d+ )?points", expect)
    if stated:
        assert int(stated[1]) == pytest.approx(100 * np.mean([x["hard"]["delta"] for x in here]), abs=1)


def test_import_needs_no_torch() -> None:
    code = "import sys, classgap.posthoc; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_shapes_types_and_agreement(fitted: PostHocMethod, task: Task) -> None:
    scores = fitted.transform(task.scores, features=task.features)
    probabilities = fitted.predict_proba(task.scores, features=task.features)
    assert scores.shape == probabilities.shape == task.scores.shape
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.predict(task.scores, features=task.features), scores.argmax(axis=1))
    np.testing.assert_array_equal(fitted.classes_, np.arange(5))


def test_single_precision_stays_single(fitted: PostHocMethod, task: Task) -> None:
    single = task.scores.astype(np.float32)
    assert fitted.transform(single, features=task.features.astype(np.float32)).dtype == np.float32


def test_parameters_follow_scikit_learn(fitted: PostHocMethod) -> None:
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(np.zeros((1, 5)), features=np.zeros((1, 8)))


def test_fit_changes_no_input(fitted: PostHocMethod, task: Task) -> None:
    before = task.scores.copy(), task.features.copy()
    clone(fitted).fit(task.scores, task.y, **task.context)
    np.testing.assert_array_equal(task.scores, before[0])
    np.testing.assert_array_equal(task.features, before[1])


def test_fit_is_repeatable(fitted: PostHocMethod, task: Task) -> None:
    again = clone(fitted).fit(task.scores, task.y, **task.context)
    for name in fitted.learned:
        np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))


def test_labels_may_be_names(fitted: PostHocMethod, task: Task) -> None:
    names = np.array(["e", "b", "d", "a", "c"])  # not sorted: columns keep their order
    named = clone(fitted).fit(task.scores, names[task.y], classes=names, **task.context)
    expected = names[fitted.predict(task.scores, features=task.features)]
    np.testing.assert_array_equal(named.predict(task.scores, features=task.features), expected)


def test_pandas_objects_are_read_by_name(task: Task) -> None:
    import pandas as pd

    names, order = np.array(list("abcde")), np.array([3, 1, 4, 0, 2])
    scores, counts = pd.DataFrame(task.scores, columns=names), pd.Series(task.counts, index=names)
    expected = LogitAdjustment().fit(task.scores, names[task.y], class_counts=task.counts)
    found = LogitAdjustment().fit(scores.iloc[:, order], names[task.y], class_counts=counts.iloc[order])
    np.testing.assert_array_equal(found.offset_, expected.offset_)
    np.testing.assert_array_equal(found.predict(scores.iloc[:, order]), expected.predict(task.scores))
    sets = PredictionSets().fit(scores.iloc[:, order], names[task.y])
    np.testing.assert_array_equal(sets.predict(scores.iloc[:, order]), sets.predict(task.scores))
    with pytest.raises(InputError, match="index of class_counts must hold every class once"):
        LogitAdjustment().fit(task.scores, names[task.y], class_counts=counts.rename({"a": "x"}))
    for kind, other in ((int, float), (float, int), (float, float)):  # 3.0 is 3
        numbers = np.arange(1, 6)
        columns, counts = pd.Index(numbers.astype(other)), pd.Series(task.counts, index=numbers.astype(other))
        scores = pd.DataFrame(task.scores, columns=columns).iloc[:, order]
        found = LogitAdjustment().fit(scores, (task.y + 1).astype(kind), class_counts=counts.iloc[order])
        np.testing.assert_array_equal(found.offset_, expected.offset_)
        np.testing.assert_array_equal(found.predict(scores), np.searchsorted(names, expected.predict(task.scores)) + 1)


def test_numbers_as_text_need_the_order_of_the_columns() -> None:
    """Sorted as text, 10 comes before 2; audit takes such labels for positions."""
    y = np.tile(np.arange(11), 20)
    scores = 3 * np.eye(11)[y] + np.random.default_rng(0).normal(size=(220, 11))
    with pytest.raises(InputError, match=r"sort differently as text \('10' before '2'\).*classes="):
        TemperatureScaling().fit(scores, y.astype(str))
    names = np.arange(11).astype(str)
    assert (TemperatureScaling().fit(scores, y.astype(str), classes=names).predict(scores) == names[y]).mean() > 0.8
    scores, y = scores[y < 10, :10], y[y < 10]
    assert (TemperatureScaling().fit(scores, y.astype(str)).predict(scores) == names[y]).mean() > 0.8


@pytest.mark.parametrize("names", [["2.0", "10.0"], ["-2", "-1"], ["2e0", "1e1"]])
def test_decimals_and_negative_numbers_as_text_need_the_order_too(names: list[str]) -> None:
    y = np.tile([0, 1], 20)
    for labels in (np.array(names)[y], np.array(names, dtype=object)[y]):
        with pytest.raises(InputError, match="sort differently as text"):
            TemperatureScaling().fit(4 * np.eye(2)[y], labels)


@pytest.mark.parametrize("kind", [bool, float, np.uint8])
def test_fix_predicts_booleans_and_whole_floats_as_given(kind: type, tmp_path: Path) -> None:
    y = np.repeat([0, 1], 60).astype(kind)
    scores = 3 * np.eye(2)[y.astype(int)] + np.random.default_rng(0).normal(size=(120, 2))
    for given in (scores, scores[:, 1] - scores[:, 0]):
        method = next(iter(fix(y, scores=given, folds=2).candidates.values())).method
        for found in (method, load(save(method, tmp_path / "method"))):
            assert (found.predict(scores) == y).mean() > 0.9


def test_fix_predicts_labels_of_the_type_that_was_given(tmp_path: Path) -> None:
    y = np.repeat([0, 1, 2], 60)
    scores = 3 * np.eye(3)[y] + np.random.default_rng(0).normal(size=(180, 3))
    method = fix(y, scores=scores, folds=2).method
    save(method, tmp_path / "method")
    for one in (method, load(tmp_path / "method")):
        assert (one.predict(scores) == y).mean() > 0.8
    assert set(fix(y, scores=scores, folds=2, class_names=list("abc")).method.predict(scores)) == set("abc")
    assert set(fix(y.astype(str), scores=scores, folds=2).method.predict(scores)) == set("012")


def test_saved_and_loaded(fitted: PostHocMethod, task: Task, tmp_path) -> None:
    loaded = load(save(fitted, tmp_path / "chosen"))
    assert type(loaded) is type(fitted)
    assert loaded.get_params() == fitted.get_params()
    np.testing.assert_array_equal(
        loaded.transform(task.scores, features=task.features), fitted.transform(task.scores, features=task.features)
    )


@pytest.mark.parametrize("name", FOLDABLE)
def test_folded_head_gives_the_same_scores(name: str, task: Task) -> None:
    method = build(name).fit(task.scores, task.y, **task.context)
    weight, bias = method.fold(task.weight, task.bias)
    expected = method.transform(task.scores, features=task.features)
    np.testing.assert_allclose(task.features @ weight.T + bias, expected, atol=1e-9)


@pytest.mark.parametrize("name", FOLDABLE)
@pytest.mark.parametrize("has_bias", [True, False])
def test_fold_writes_into_a_torch_layer(name: str, has_bias: bool, task: Task) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(8, 5, bias=has_bias)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(task.weight))
        if has_bias:
            layer.bias.copy_(torch.from_numpy(task.bias))
        features = torch.from_numpy(task.features).float()
        scores = layer(features).numpy()
        context = {**task.context, "bias": task.bias if has_bias else None}
        method = build(name).fit(scores, task.y, **context)
        expected = method.predict(scores, features=task.features)
        assert method.fold(layer) is layer
        np.testing.assert_array_equal(layer(features).argmax(1).numpy(), expected)
        assert isinstance(layer.bias, torch.nn.Parameter)


def test_only_sample_dependent_methods_refuse_to_fold(task: Task) -> None:
    method = METHODS["disalign"].cls().fit(task.scores, task.y, **task.context)
    with pytest.raises(InputError, match="cannot be folded"):
        method.fold(task.weight, task.bias)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"crt", "tau_norm", "logit_adjustment"}))
def test_class_without_samples_keeps_its_column(name: str, task: Task) -> None:
    """τ-norm, logit adjustment and cRT take no class's column from its own held-out samples."""
    rows = task.y != 2
    context = {**task.context, "features": task.features[rows]}
    if name == "gap_dial":
        context["class_counts"] = np.full(5, 100)  # otherwise its prior step moves the column too
    method = build(name).fit(task.scores[rows], task.y[rows], **context)
    corrected = method.transform(task.scores, features=task.features)[:, 2]
    # a temperature is common to all classes, so it applies to this one as well
    common = {"temperature_scaling", "gap_dial"}
    factor = method.scale_[2] if name in common else 1.0
    np.testing.assert_allclose(corrected, factor * task.scores[:, 2])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_shift_of_all_scores_of_a_sample_is_harmless_to_offsets(name: str, task: Task) -> None:
    """Scores of a thousand must not overflow anywhere."""
    scores = (task.scores + 1000).astype(np.float32)
    method = build(name).fit(scores, task.y, **task.context)
    assert np.isfinite(method.predict_proba(scores, features=task.features)).all()


@pytest.mark.parametrize("name", ["marc", "disalign"])  # one on scores, one on features: the checks are shared
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.full((300, 5), np.nan)}, "nan or infinite"),
        ({"scores": np.zeros((300, 5, 1))}, "must be a numeric matrix"),
        ({"scores": np.array([["a"] * 5] * 300)}, "must be a numeric matrix"),
        ({"scores": np.zeros((299, 5))}, "same length"),
        ({"scores": np.zeros((300, 1)), "y": np.zeros(300, int)}, "at least two columns"),
        ({"scores": None, "features": None}, "pass scores"),
        ({"y": np.eye(5)[np.arange(300) % 5]}, "one-hot"),
        ({"y": np.full(300, 7)}, "1 different labels"),
        ({"y": np.full(300, "a")}, "pass classes="),
        ({"classes": list("abcde"), "y": np.full(300, "z")}, "not among the classes"),
        ({"classes": list("aacde")}, "each of the 5 columns once"),
        ({"y": np.zeros(300, int)}, "at least two classes"),
        ({"class_counts": np.zeros(5)}, "not all zero"),
        ({"class_counts": np.array([1, 2, 3, 4, -1])}, "non-negative"),
        ({"class_counts": np.ones(4)}, "5 numbers"),
        ({"class_counts": None, "prior": np.full(5, 0.3)}, "sum of 1.5"),
        ({"prior": np.full(5, 0.2)}, "not both"),
        ({"weight_norms": np.array([1, 1, 0, 1, 1.0])}, "class 2 has 0"),
        ({"features": np.zeros((299, 8))}, "features"),
    ],
)
def test_bad_input_says_what_to_do(name: str, change: dict, message: str, task: Task) -> None:
    arguments = {"scores": task.scores, "y": task.y, **task.context, **change}
    with pytest.raises(InputError, match=message):
        build(name).fit(arguments.pop("scores"), arguments.pop("y"), **arguments)


def test_two_samples(task: Task) -> None:
    """Two samples of two classes fit (the ridge sees to it), except where cross-fitting is needed."""
    rows = [0, 299]
    context = {**task.context, "features": task.features[rows]}
    for name, declared in METHODS.items():
        if name == "gap_dial":
            with pytest.raises(InputError, match="cross-fitting"):
                declared.cls().fit(task.scores[rows], task.y[rows], **context)
        else:
            method = declared.cls().fit(task.scores[rows], task.y[rows], **context)
            assert np.isfinite(method.transform(task.scores, features=task.features)).all()


def test_wrong_width_at_prediction(fitted: PostHocMethod, task: Task) -> None:
    with pytest.raises(InputError, match="must have shape"):
        fitted.transform(task.scores[:, :3], features=task.features)


def test_zero_count_falls_back(task: Task) -> None:
    counts = task.counts.copy()
    counts[4] = 0
    for name in METHODS:
        method = build(name).fit(task.scores, task.y, **{**task.context, "class_counts": counts})
        assert np.isfinite(method.transform(task.scores, features=task.features)).all()
    assert METHODS["logit_adjustment"].cls().fit(task.scores, task.y, class_counts=counts).offset_[4] == 0


def test_missing_files_are_named(tmp_path) -> None:
    with pytest.raises(InputError, match=r"method\.json and method\.safetensors missing"):
        load(tmp_path)


@pytest.mark.parametrize("mask", [-1e9, -3e38])
def test_masked_scores_are_scores_far_below_the_others(task: Task, mask: float) -> None:
    """A mask of -1e9 spoiled the fitted temperature, one of -3e38 was an AttributeError of the solver."""
    rows = (np.arange(len(task.y)) % 7 == 0) & (task.y != 4)
    far, masked = task.scores.astype(np.float32), task.scores.astype(np.float32)
    far[rows, 4], masked[rows, 4] = far[rows].max(axis=1) - 1e4, mask
    for name in METHODS:
        wanted, got = (build(name).fit(scores, task.y, **task.context) for scores in (far, masked))
        context = {"features": task.features}
        np.testing.assert_array_equal(got.transform(masked, **context), wanted.transform(far, **context))
    with pytest.raises(InputError, match="divide all scores by a constant"):
        build("marc").fit(task.scores * 1e20, task.y, **task.context)


def test_learned_arrays_are_declared_with_their_shapes() -> None:
    with pytest.raises(InputError, match=r"learned of Shift must be a dictionary .*got \('offset_',\)"):
        type("Shift", (PostHocMethod,), {"learned": ("offset_",)})


@pytest.mark.parametrize("wrong", [np.zeros(3), np.array([0, 1]), np.array([np.nan, 0.0])])
def test_what_could_not_be_loaded_is_not_saved(wrong: np.ndarray, tmp_path: Path) -> None:
    y = np.arange(40) % 2
    method = build("vector_scaling").fit(np.eye(2)[y], y)
    method.offset_ = wrong  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="cannot be saved: offset_ must hold finite numbers for 2 classes"):
        save(method, tmp_path / "method")
    assert not (tmp_path / "method").exists()


@pytest.mark.parametrize("name", FOLDABLE)
def test_a_method_fitted_on_probabilities_is_folded_only_where_a_layer_can_hold_it(name: str, task: Task) -> None:
    probabilities = softmax(task.scores.astype(np.float64), axis=1)
    method = build(name).fit(probabilities, task.y, **task.context)
    if name in ("marc", "lws", "vector_scaling", "matrix_scaling", "tau_norm"):
        with pytest.raises(InputError, match="was fitted on probabilities"):
            method.fold(task.weight, task.bias)
    else:
        weight, bias = method.fold(task.weight, task.bias)
        folded = (task.features @ weight.T + bias).argmax(axis=1)
        assert (folded == method.predict(probabilities, features=task.features)).mean() > 0.999


def test_probabilities_in_half_precision_may_be_zero() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    probabilities = softmax(20 * (np.eye(3)[y] + rng.normal(size=(90, 3))), axis=1).astype(np.float16)
    assert (probabilities == 0).any()
    assert np.isfinite(TemperatureScaling().fit(probabilities, y).transform(probabilities)).all()
    assert fix(y, scores=probabilities, folds=2).candidates
