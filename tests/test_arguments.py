"""Any argument of any type: a right answer, or a ValueError or TypeError that says what was wanted. Never another error."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classgap import Predictions, audit, compare, fix, posthoc
from classgap.measure.gate import check, parse

# Examples of each property; `make test-slow` runs all of them with more.
FEW, MANY = 40, 900
Y = np.arange(24) % 3
SCORES = 3.0 * np.eye(3)[Y] + np.random.default_rng(0).normal(size=(24, 3))
FEATURES = np.random.default_rng(1).normal(size=(24, 4))
WEIGHT = np.random.default_rng(2).normal(size=(3, 4))
REPORT = audit(Y, scores=SCORES, n_boot=100)

numbers = st.one_of(
    st.integers(-3, 30), st.integers(), st.floats(), st.booleans(), st.sampled_from([10**30, -1, 2**63, 10**400, 1e300])
)
words = st.one_of(st.text(max_size=5), st.sampled_from(["a", "0", "1", "nan", "\0", "\ud800", "=1", "9" * 5000, ""]))
single = st.one_of(
    st.none(), numbers, words, st.binary(max_size=4), st.just(object()), st.just(1j), st.just(datetime.date(2000, 1, 1))
)
lists = st.one_of(
    st.lists(single, max_size=5),
    st.lists(numbers, min_size=24, max_size=24),
    st.lists(words, min_size=24, max_size=24),
    st.lists(st.lists(numbers, max_size=4), max_size=4),
    st.dictionaries(words, single, max_size=4),
    st.tuples(single, single),
    st.sets(st.integers(0, 9), max_size=3),
)
DTYPES = ["?", "i1", "u1", "i8", "u8", "f2", "f4", "f8", "c16", "U2", "S2", "O", "M8[s]", "m8[s]", "V4", "i4,f4"]
SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (24,),
    (25,),
    (24, 3),
    (3, 24),
    (24, 1),
    (24, 2),
    (0, 3),
    (24, 0),
    (3, 3),
    (3, 4),
    (24, 3, 1),
]


@st.composite
def array(draw: st.DrawFn) -> Any:
    """An array of any type and shape, filled with a few values."""
    dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.sampled_from(SHAPES))
    filled = np.zeros(shape, dtype)
    values = draw(st.sampled_from([[0], [1], [0, 1, 2], [-1], [0.5], [math.nan], [math.inf], [255], [1e30]]))
    if dtype.kind in "?iuf" and filled.size:
        with np.errstate(all="ignore"):
            filled[...] = np.resize(np.array(values).astype(dtype), shape)
    if dtype.kind in "US" and filled.size:
        filled[...] = np.resize(np.array(["a", "b", "0"]).astype(dtype), shape)
    return filled


@st.composite
def frame(draw: st.DrawFn) -> Any:
    columns = draw(
        st.dictionaries(st.sampled_from(["y_true", "y_pred", "score_0", "score_1", "x"]), array(), max_size=4)
    )
    usable = {
        name: v.astype("M8[us]")
        if v.dtype.kind == "M"
        else list(v)  # polars makes no column of a list of NumPy's times
        for name, v in columns.items()
        if v.shape == (24,) and v.dtype.kind in "?iufUSM"
    }
    return pl.DataFrame(usable, strict=False)


anything = st.one_of(single, lists, array())


def outcome(function: Callable[[], Any]) -> Any:
    """The result, or None where the call was refused as it should be."""
    try:
        return function()
    except (ValueError, TypeError, OSError):  # a name of a file may be too long
        return None


def spoiled(draw: st.DrawFn, good: dict[str, Any], count: int = 1) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(good)), min_size=count, max_size=count, unique=True))
    return good | {name: draw(anything) for name in names}


@st.composite
def arguments(draw: st.DrawFn, good: dict[str, Any]) -> dict[str, Any]:
    """Good arguments, one or two of which are replaced by anything."""
    return spoiled(draw, good, draw(st.integers(1, 2)))


AUDIT: dict[str, Any] = {
    "y_true": Y, "y_pred": Y, "scores": SCORES, "scores_kind": "logits", "features": FEATURES, "head": WEIGHT, "seed": 0,
    "class_names": ["a", "b", "c"], "train_counts": [1, 2, 3], "confidence": 0.9, "n_boot": 100, "few": 20, "many": 100,
}  # fmt: skip
FROM_ARRAYS: dict[str, Any] = {
    "y_true": Y, "y_pred": Y, "scores": SCORES, "scores_kind": "auto", "features": FEATURES, "head": (WEIGHT, np.zeros(3)),
    "margin_norms": np.ones(3), "class_names": ["a", "b", "c"], "train_counts": {"a": 1, "b": 2, "c": 3}, "ids": np.arange(24),
}  # fmt: skip
FIT: dict[str, Any] = {
    "scores": SCORES, "y": Y, "classes": ["a", "b", "c"], "class_counts": [1, 2, 3], "weight_norms": [1.0, 2.0, 3.0],
    "bias": [0.0, 0.0, 0.0], "features": FEATURES, "scores_kind": "logits",
}  # fmt: skip


def label_accuracy(y_true: Any, y_pred: Any) -> float:
    return float(np.mean([int(a) == int(b) for a, b in zip(y_true, y_pred, strict=True)]))


def check_audit(values: dict[str, Any]) -> None:
    given_values = {name: value for name, value in values.items() if name not in ("y_true", "y_pred")}
    report = outcome(lambda: audit(values["y_true"], values["y_pred"], **given_values))
    if report is None:
        return
    assert 0 <= report.overall.value <= 1
    if values["y_pred"] is not None and not isinstance(values["y_true"], Predictions):
        assert report.num_samples == len(values["y_true"])
        if {np.asarray(values[name]).dtype.kind for name in ("y_true", "y_pred")} <= set("iu"):
            assert report.overall.value == label_accuracy(values["y_true"], values["y_pred"])
    assert report.to_markdown()


def check_predictions(values: dict[str, Any]) -> None:
    found = outcome(lambda: Predictions.from_arrays(**values))
    if found is not None:
        assert found.num_samples == found.confusion.num_samples == 24
        assert len(found.classes) == found.confusion.num_classes
        for name, length in (("bias", 3), ("train_counts", len(found.classes)), ("margin_norms", 3)):
            value = getattr(found, name)
            assert value is None or value.shape == (length,)


def check_method(values: dict[str, Any], method: posthoc.PostHocMethod) -> None:
    fitted = outcome(lambda: method.fit(**values))
    if fitted is not None:
        corrected = outcome(lambda: fitted.transform(values["scores"], features=values["features"]))
        assert corrected is None or np.isfinite(corrected).all()


PROPERTIES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], object]]] = {
    "audit": (arguments(AUDIT), check_audit),
    "Predictions.from_arrays": (arguments(FROM_ARRAYS), check_predictions),
    "Predictions.from_counts": (
        st.tuples(anything, st.one_of(st.none(), anything)),
        lambda v: outcome(lambda: Predictions.from_counts(v[0], v[1])),
    ),
    "Predictions.from_frame": (st.one_of(frame(), anything), lambda v: outcome(lambda: Predictions.from_frame(v))),
    "Predictions.read": (
        st.one_of(words, single, st.lists(words, max_size=2)),
        lambda v: outcome(lambda: Predictions.read(v)),
    ),
    "compare": (
        arguments({"before": REPORT, "after": REPORT, "confidence": 0.9, "seed": 0, "n_boot": 100, "class_names": None}),
        lambda v: outcome(lambda: compare(**v)),
    ),
    "fix": (
        arguments({"data": Y, "scores": SCORES, "train_counts": [1, 2, 3], "folds": 2, "seed": 0, "rule": "best_hard",
                   "overall": "balanced", "report_share": 0.5, "class_names": None}),
        lambda v: outcome(lambda: fix(**v)),
    ),
    "temperature": (arguments(FIT), lambda v: check_method(v, posthoc.TemperatureScaling())),
    "logit adjustment": (arguments(FIT), lambda v: check_method(v, posthoc.LogitAdjustment())),
    "marc": (arguments(FIT), lambda v: check_method(v, posthoc.MARC())),
    "crt": (arguments(FIT), lambda v: check_method(v, posthoc.CRT())),
    "parameters": (
        st.tuples(st.sampled_from(["MARC", "GapDial", "LogitAdjustment", "TauNorm", "VectorScaling", "DisAlign"]), anything),
        lambda v: _with_parameter(*v),
    ),
    "fold": (
        arguments({"weight": WEIGHT, "bias": np.zeros(3)}),
        lambda v: outcome(lambda: posthoc.LogitAdjustment().fit(SCORES, Y, class_counts=[1, 2, 3]).fold(**v)),
    ),
    "gate": (
        st.one_of(words, st.builds("{} {} {}".format, st.sampled_from(["hard", "verdict", "class[0]", "x.y", "any class"]),
                                   st.sampled_from(["<", "==", "!=", "worsened", "~"]), words)),
        lambda v: outcome(lambda: (parse(v), check(REPORT, [v]))),
    ),
}  # fmt: skip


def _with_parameter(name: str, value: Any) -> None:
    cls = getattr(posthoc, name)
    parameters = sorted(cls().get_params())
    if parameters:
        method = cls(**{parameters[0]: value})
        outcome(lambda: method.fit(SCORES, Y, class_counts=[1, 2, 3], weight_norms=[1.0, 2.0, 3.0], features=FEATURES))


def run(name: str, examples: int) -> None:
    strategy, checked = PROPERTIES[name]

    def body(value: Any) -> None:
        checked(value)

    settings(max_examples=examples)(given(strategy)(body))()


@pytest.mark.filterwarnings("ignore")  # of NumPy, polars and SciPy about odd values
@pytest.mark.parametrize("name", PROPERTIES)
def test_any_argument_is_understood_or_refused(name: str) -> None:
    run(name, 8 if name == "fix" else FEW)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROPERTIES)
def test_many_arguments_are_understood_or_refused(name: str) -> None:
    run(name, 100 if name == "fix" else MANY)
