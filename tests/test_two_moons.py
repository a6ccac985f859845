"""examples/two_moons.py runs, and draws what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def two_moons() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "two_moons.py"))


def test_two_moons_draws_a_picture(two_moons: dict[str, Any], tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(two_moons["main"])
    ran = CliRunner().invoke(app, ["--quick", "--out", str(tmp_path / "moons.png")], catch_exceptions=False)
    assert ran.exit_code == 0
    names = [line.split("  ")[0].strip() for line in ran.stdout.splitlines()[:3]]
    assert [name.split(" test")[0] for name in names] == ["cross-entropy", "logit adjustment", "ELM"]
    assert (tmp_path / "moons.png").read_bytes().startswith(b"\x89PNG")


def test_two_moons_has_the_network_and_the_tail_of_the_paper(two_moons: dict[str, Any]) -> None:
    counts = two_moons["COUNTS"]
    assert counts["tail"] / sum(counts.values()) == 0.05
    x, y = two_moons["moons"](tuple(counts.values()), 0)
    model = two_moons["train"](two_moons["losses"]()["ELM"], x, y, steps=1, seed=0)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert [layer.out_features for layer in layers] == [16, 8, 2, 2]
    assert (model(x)[1] >= 0).all()  # the embedding is behind a ReLU too


def test_regions_are_the_decisions(two_moons: dict[str, Any]) -> None:
    """Rectangles that cover the picture once and agree with the network at their middles."""
    x, y = two_moons["moons"]((60, 60), 0)
    model = two_moons["train"](two_moons["losses"]()["cross-entropy"], x, y, steps=40, seed=3)
    found = two_moons["regions"](model, columns=20, rows=40)
    (left, right), (low, high) = two_moons["SPAN"].values()
    areas = [(r["right"] - r["x1"]) * (r["top"] - r["x2"]) for r in found]
    assert sum(areas) == pytest.approx((right - left) * (high - low))
    rows = (high - low) / 40
    bottom = torch.tensor([[(r["x1"] + r["right"]) / 2, r["x2"] + rows / 2] for r in found]).float()
    decided = model(bottom)[0].argmax(1).tolist()
    assert [list(two_moons["COUNTS"])[k] for k in decided] == [r["class"] for r in found]


def test_spread_is_relative_to_the_distance_of_the_means(two_moons: dict[str, Any]) -> None:
    points = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 2.0], [4.0, -2.0]])
    labels = torch.tensor([0, 0, 1, 1])
    np.testing.assert_allclose(two_moons["spreads"](points, labels), [0.25, 0.5])
    np.testing.assert_allclose(two_moons["spreads"](7 * points, labels), [0.25, 0.5], rtol=1e-6)
