"""Losses with any argument: a finite value, or a ValueError or TypeError that says what was wanted. State stays finite."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgap import registry
from classgap.testing.inputs import build, call, inputs

LOSSES = {spec.name: spec for spec in registry.methods("loss")}

single = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.floats(),
    st.sampled_from([10**30, 10**400, 2.5, 1e-300, 1e300, -0.0, "mean", "none", "", "a", b"a", 1j, object(), ()]),
    st.lists(st.one_of(st.integers(-1, 50), st.floats(), st.text(max_size=2)), max_size=6),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.just(np.ones(5)),
    st.just(torch.ones(5)),
    st.just(torch.full((5,), math.nan)),
    st.just(torch.zeros(2, 3)),
)
SHAPES = [
    (),
    (0,),
    (1,),
    (12,),
    (11,),
    (12, 5),
    (12, 4),
    (5, 12),
    (0, 5),
    (12, 0),
    (12, 8),
    (12, 1),
    (12, 2, 5),
    (24, 5),
    (1, 5),
]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    value = draw(st.sampled_from([0, 1, 2, 4, 5, -1, -100, 0.5, math.nan, math.inf, 1e30, 127]))
    if not dtype.is_floating_point and not dtype.is_complex and (not math.isfinite(value) or abs(value) > 127):
        value = 3
    if dtype == torch.uint8:
        value = abs(value)
    return torch.full(shape, float(value)).to(dtype)


anything = st.one_of(single, tensors())


def finite_state(criterion: torch.nn.Module) -> bool:
    return all(
        bool(torch.isfinite(value).all()) for value in criterion.state_dict().values() if value.is_floating_point()
    )


def unset(criterion: torch.nn.Module) -> set[str]:
    """Parts of the state that are not finite by design before anything was seen."""
    return {
        key for key, value in criterion.state_dict().items() if value.is_floating_point() and not value.isfinite().all()
    }


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A loss, parameters of its constructor, and arguments of the call that are replaced."""
    spec = LOSSES[draw(st.sampled_from(sorted(LOSSES)))]
    wanted = [name for name in inspect.signature(spec.cls).parameters if name not in ("num_classes", "options", "self")]
    wanted += ["weight", "reduction", "ignore_index", "label_smoothing", "num_classes"]
    changed = draw(st.lists(st.sampled_from(wanted), max_size=2, unique=True)) if draw(st.booleans()) else []
    params = {name: draw(anything) for name in changed}
    replaced = draw(
        st.lists(st.sampled_from(["logits", "target", "features", "index", "epoch"]), max_size=2, unique=True)
    )
    return spec.name, params, {name: draw(anything) for name in replaced}


def outcome(function: Any) -> Any:
    try:
        return function()
    except (ValueError, TypeError):
        return None


def check(example: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    name, params, replaced = example
    spec = LOSSES[name]
    classes = params.pop("num_classes", 5)
    if "num_classes" in example[1] or not (isinstance(classes, int) and 1 < classes < 13):
        outcome(lambda: spec.build(num_classes=classes, **params))
        return
    criterion = outcome(lambda: build(spec, classes=5, **params))
    if criterion is None:
        return
    before = unset(criterion)
    batch = outcome(lambda: inputs(spec, criterion))
    if batch is None:
        return
    good = not replaced
    value = outcome(lambda: call(criterion, {**batch, **replaced}))
    assert unset(criterion) <= before, "the state is no longer finite"
    if good and value is not None and not any(_odd(v) for v in params.values()):
        assert bool(torch.isfinite(value).all()), value


def _odd(value: Any) -> bool:
    """Whether a parameter is so large or small that a value may overflow."""
    return isinstance(value, float) and value != 0 and not 1e-3 < abs(value) < 1e3


def run(examples: int) -> None:
    settings(max_examples=examples)(given(calls())(check))()


@pytest.mark.filterwarnings("ignore")
def test_any_argument_of_a_loss_is_understood_or_refused() -> None:
    run(250)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_arguments_of_losses_are_understood_or_refused() -> None:
    run(6000)
