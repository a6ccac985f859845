"""``docs/methods.md`` is what the code and the committed measurements say, and every card is complete."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional as F

from classgap import registry
from classgap.cards import card

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TRAINED: tuple[registry.Kind, ...] = ("loss", "stage", "sampler", "optimizer", "augmentation", "mix")


def script(name: str = "methods_page") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained_with() -> list[Any]:
    return [pytest.param(method, id=f"{kind}-{method.name}") for kind in TRAINED for method in registry.methods(kind)]


def test_the_committed_page_is_up_to_date() -> None:
    page = script()
    assert page.PAGE.read_text() == page.page(), "run: python benchmarks/methods_page.py"


@pytest.mark.slow  # as for the page of evidence: results grow while a suite runs
def test_measured_effects_are_those_of_the_committed_results() -> None:
    measured = script("methods_measured")
    if not measured.results_of(measured.FIELD):
        pytest.skip("the results of benchmarks/evidence/field.py are not here")
    assert json.loads(measured.FIGURES.read_text())["results"] == measured.results_hash(), (
        "run: python benchmarks/methods_measured.py && python benchmarks/methods_page.py"
    )


@pytest.mark.parametrize("method", trained_with())
def test_a_card_says_what_there_is_to_say(method: registry.Method) -> None:
    found = card(method)
    assert found.what or found.kind == "augmentation"  # where the first line says it all
    assert found.when_to_use
    assert found.pitfalls
    assert "balanced data" in found.expect
    assert "tails" in found.expect
    cost = json.loads((BENCHMARKS / "methods_cost.json").read_text())["cost"][method.kind][method.name]
    assert 0.5 < cost < 10


@pytest.mark.parametrize("method", registry.methods("loss"), ids=lambda method: method.name)
def test_a_loss_that_is_cross_entropy_on_balanced_data_says_so(method: registry.Method) -> None:
    says = re.search(r"is (the base loss, by default )?cross-entropy", " ".join(card(method).expect.split()))
    assert (says is not None) == is_plain_when_balanced(method)


def is_plain_when_balanced(spec: registry.Method, classes: int = 4) -> bool:
    """Whether a loss, built for equal class counts, is cross-entropy in value and gradient."""
    if not {"class_counts"} <= spec.needs <= {"class_counts", "epoch"}:
        return False
    length = {"epochs": 2} if "epochs" in inspect.signature(spec.cls).parameters else {}
    criterion = spec.build(num_classes=classes, class_counts=[25] * classes, **length).eval()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, classes, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.arange(32) % classes
    # The last epoch, so that schedules are past their switch.
    losses = (criterion(logits, target, epoch=1), F.cross_entropy(logits, target))
    mine, plain = (torch.autograd.grad(loss, logits)[0] for loss in losses)
    return torch.allclose(losses[0], losses[1], rtol=1e-5) and torch.allclose(mine, plain, rtol=1e-4, atol=1e-7)


def test_every_parameter_of_every_method_is_explained() -> None:
    for kind in get_args(registry.Kind):
        for method in registry.methods(kind):
            missing = [p.name for p in card(method).parameters if not p.meaning]
            assert not missing, f"{kind} {method.name} does not say what {', '.join(missing)} means"


def test_effects_in_words() -> None:
    tail = {"overall": "+6.2 [+5.0, +7.4] ↑", "hard": "-0.1 [-1.0, +0.8]", "runs": 2, "diverged": 0}
    lost = {"runs": 0, "diverged": 3}
    text = script()._effect({"tail 100": tail, "balanced": lost}, 3)
    assert text == "tail 100 overall +6.2 [+5.0, +7.4] ↑, hard -0.1 [-1.0, +0.8] (2 of 3 runs); balanced – (3 diverged)"


@pytest.mark.parametrize(
    ("variant", "owner"),
    [
        ({"method": "dbm"}, ("loss", "dbm")),
        ({"method": "dbm", "params": {"variant": "bs"}}, None),
        ({"settings": ("wrapper=sam",)}, ("optimizer", "sam")),
        ({"settings": ("stage=jtt",)}, ("stage", "jtt")),
        ({"settings": ("mix=mixup",)}, ("mix", "mixup")),
        ({"settings": ("data.augment=crop,flip,cutout",)}, ("augmentation", "cutout")),
        ({"settings": ("optim.lr=0.05",)}, None),
        ({"params": {"label_smoothing": 0.1}}, None),
        ({"seed_shift": 1000}, None),
    ],
)
def test_a_variant_is_a_method_only_with_its_defaults(variant: dict[str, Any], owner: tuple[str, str] | None) -> None:
    from classgap.suites import Variant

    assert script("methods_measured").card_of(Variant("v", **variant)) == owner


def test_docstrings_become_markdown() -> None:
    text = "A :func:`~classgap.audit`.\n\n.. math:: a = b\n   + c\n\nThen ``x`` and :math:`\\pi`.\n"
    assert script().markdown(text) == "A `audit`.\n\n$$ a = b + c $$\n\nThen `x` and $\\pi$."
