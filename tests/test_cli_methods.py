"""``classgap methods`` and the cards behind it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from classgap import registry
from classgap.cards import card, plain
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.formulas import linear

pytest.importorskip("torch")


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["methods", *args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_table_lists_every_method_of_every_kind():
    shown = run()
    for kind in ("loss", "posthoc", "optimizer", "sampler"):
        for method in registry.methods(kind):
            assert re.search(rf"^ {method.name} ", shown, re.MULTILINE)
    assert "tau = 1.0 (0.1 … 3 log)" in shown


def test_json_has_parameters_with_defaults_and_ranges():
    methods = {(m["kind"], m["name"]): m for m in json.loads(run("--json"))}
    dbm = methods["loss", "dbm"]
    assert dbm["needs"] == ["class_counts", "cosine_head"]
    assert dbm["paper"] == "arXiv:2412.15477"
    parameters = {p["name"]: p for p in dbm["parameters"]}
    assert parameters["k_m"]["default"] == 0.1
    assert parameters["k_m"]["search"] == {"low": 0.05, "high": 0.4, "default": 0.1, "log": False}
    assert parameters["variant"]["search"]["options"] == ["ce", "cb", "bs"]
    assert parameters["monotone"]["search"] is None
    assert "num_classes" not in parameters


def test_card_explains_one_method():
    shown = run("logit_adjusted")
    assert "equal to cross_entropy with tau=0.0" in shown
    assert "When to use: the first method to try on long-tailed data" in shown
    assert "Pitfalls:" in shown
    assert "Strength of the shift." in shown
    assert ":math:" not in shown
    assert json.loads(run("logit_adjusted", "--json"))[0]["name"] == "logit_adjusted"


def test_unknown_method_is_one_sentence():
    with pytest.raises(InputError, match="unknown method 'focl'; did you mean 'focal'"):
        run("focl")


@pytest.mark.parametrize("method", registry.methods("loss"), ids=lambda m: m.name)
def test_every_loss_has_a_complete_card(method):
    found = card(method)
    assert found.summary.endswith(".")
    assert found.what
    assert found.when_to_use
    assert found.pitfalls
    for parameter in found.parameters:
        assert parameter.meaning, f"{method.name} does not say what {parameter.name} does"


@pytest.mark.parametrize("method", registry.methods("loss"), ids=lambda m: m.name)
def test_search_space_agrees_with_the_constructor(method):
    for name, space in method.space.items():
        assert name in method.defaults, f"{name} is searched but no parameter of {method.name}"
        assert method.defaults[name] == space.default


def test_plain_drops_roles_and_writes_formulas_on_a_line():
    text = "Before.\n\n.. math:: a = b\n    + c\n\nAfter :func:`f` and *so* on, :math:`\\theta_y + m_{\\max} \\ge 0`.\n"
    assert plain(text) == "Before.\n\na = b + c\n\nAfter f and so on, θ_y + m_max ≥ 0."


def test_formulas_keep_their_fractions_and_brackets():
    for latex, line in (
        (r"\frac1K \sum_k \mathrm{CE}_i + \frac\lambda2 \|W\|^2", "1/K Σ_k CE_i + λ/2 ‖W‖^2"),
        (r"-\ln \frac{n_y e^{z_y}}{\sum_j n_j}", "-ln (n_y e^(z_y))/(Σ_j n_j)"),
        (r"\tilde x = \sqrt{2\rho}\,\hat\mu_{y_i}^\top", "x̃ = √(2ρ) μ̂_(y_i)ᵀ"),
        (r"\Big[1 + \sum_{j\ne i} e^{-1/4}\Big]", "[1 + Σ_(j ≠ i) e^(-1/4)]"),
    ):
        assert linear(latex) == line


@pytest.mark.parametrize("kind", ["loss", "posthoc", "stage", "sampler", "optimizer", "mix", "augmentation"])
def test_no_latex_reaches_the_command_line(kind):
    for method in registry.methods(kind):
        found = card(method)
        shown = plain("\n\n".join([found.what, found.when_to_use, found.expect, found.pitfalls]))
        assert not re.search(r"\\[A-Za-z]|[a-z]frac|varepsilon|mathrm|::", shown), shown


def test_without_torch_the_other_kinds_are_listed():
    code = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
from classgap.cli.app import app
from classgap.formulas import linear
app(["methods"], standalone_mode=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "marc" in done.stdout
    assert "loss methods need PyTorch: pip install 'classgap[torch]'" in done.stderr
