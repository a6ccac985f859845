"""``docs/methods.md`` is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import get_args

from classgap import registry
from classgap._cards import card

ROOT = Path(__file__).resolve().parents[1]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_page", ROOT / "benchmarks" / "methods_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_up_to_date() -> None:
    page = script()
    assert page.PAGE.read_text() == page.page(), "run: python benchmarks/methods_page.py"


def test_every_loss_and_wrapper_has_a_measured_cost() -> None:
    text = script().page()
    for kind in ("loss", "optimizer"):
        for method in registry.methods(kind):
            card = text.partition(f'<a id="{kind}-{method.name}"></a>')[2]
            assert "× cross-entropy" in card.partition("<a id=")[0]


def test_every_parameter_of_every_method_is_explained() -> None:
    for kind in get_args(registry.Kind):
        for method in registry.methods(kind):
            missing = [p.name for p in card(method).parameters if not p.meaning]
            assert not missing, f"{kind} {method.name} does not say what {', '.join(missing)} means"


def test_docstrings_become_markdown() -> None:
    text = "A :func:`~classgap.audit`.\n\n.. math:: a = b\n   + c\n\nThen ``x`` and :math:`\\pi`.\n"
    assert script().markdown(text) == "A `audit`.\n\n$$ a = b + c $$\n\nThen `x` and $\\pi$."
