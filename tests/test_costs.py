"""Decisions of lowest expected cost: the formula, the choice by measured cost, files and refusals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from classgap import fix
from classgap.checks import InputError
from classgap.cli import main
from classgap.posthoc import LowestCost, load
from classgap.posthoc.costs import cost_difference

COST = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [10.0, 10.0, 0.0]])  # a missed sample of class 2 is expensive


def draw(seed=0, n=3000):
    """Calibrated logits: the label is drawn from the softmax of the logits."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, 3))
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return (chance.cumsum(1) < rng.random((n, 1))).sum(1), logits


def test_decides_by_expected_cost():
    y, logits = draw()
    method = LowestCost(COST).fit(logits, y)
    chance = np.exp(logits * method.scale_) / np.exp(logits * method.scale_).sum(1, keepdims=True)
    assert method.scale_ == pytest.approx(np.ones(3), abs=0.15)
    assert method.predict(logits).tolist() == (chance @ COST).argmin(1).tolist()


def test_two_classes_are_a_threshold():
    rng = np.random.default_rng(1)
    z = rng.normal(size=2000)
    y = (rng.random(2000) < 1 / (1 + np.exp(-z))).astype(int)
    method = LowestCost([[0, 1], [4, 0]]).fit(np.column_stack([np.zeros(2000), z]), y)
    chance = 1 / (1 + np.exp(-z * method.scale_[1]))
    assert method.predict(np.column_stack([np.zeros(2000), z])).tolist() == (chance > 0.2).astype(int).tolist()


def test_fix_lowers_the_cost(tmp_path):
    y, logits = draw()
    names = ["ant", "bee", "cat"]
    by_name = {true: dict(zip(names, row, strict=True)) for true, row in zip(names, COST.tolist(), strict=True)}
    result = fix(np.array(names)[y], scores=logits, class_names=names, cost=by_name, folds=2)
    assert result.helps
    assert result.costs.report[result.chosen].high < -0.1
    assert result.verdict.startswith("Chosen by lowest_cost")
    rows = result.report_rows
    before, after = logits.argmax(1), result.after.y_pred
    measured = (COST[y, after] - COST[y, before])[rows].mean()
    assert result.costs.report[result.chosen].value == pytest.approx(measured)
    result.save(tmp_path)
    assert (load(tmp_path / "method").predict(logits) == np.array(names)[after]).all()


def test_a_table_of_costs_is_read_by_name():
    import pandas as pd

    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 30)
    scores, names = 2 * np.eye(3)[y] + rng.normal(size=(90, 3)), np.array(list("abc"))
    cost = pd.DataFrame([[0, 1, 9], [2, 0, 3], [4, 5, 0]], index=names, columns=names)
    turned = cost.loc[list("cab"), list("bca")]
    np.testing.assert_array_equal(LowestCost(turned).fit(scores, names[y]).cost_, cost)
    options = {"scores": scores, "class_names": list("abc"), "folds": 2}
    np.testing.assert_array_equal(fix(y, cost=turned, **options).method.cost_, cost)
    with pytest.raises(InputError, match="must have an entry for every pair of classes, but 'a' → 'c' is missing"):
        fix(y, cost=turned.drop(columns="c"), **options)


def test_nothing_is_claimed_where_nothing_can_be_gained():
    helped = 0
    for seed in range(4):
        y, logits = draw(seed, 400)
        helped += fix(y, scores=logits, cost=1 - np.eye(3), folds=2).helps
    assert helped == 0


def test_interval_of_the_difference_holds():
    rng = np.random.default_rng(2)
    matrix, held = np.array([[0.0, 1.0], [5.0, 0.0]]), []
    for _ in range(400):
        y = (rng.random(300) < 0.2).astype(int)
        before, after = (np.where(rng.random(300) < 0.85, y, 1 - y) for _ in range(2))
        found = cost_difference(matrix, y, before, after)
        held.append(found.low <= 0 <= found.high)
    assert np.mean(held) >= 0.93


def test_command_line(tmp_path, monkeypatch, capsys):
    y, logits = draw(3, 900)
    pl.DataFrame({"label": y, **{f"logit_{k}": logits[:, k] for k in range(3)}}).write_csv(tmp_path / "val.csv")
    pl.DataFrame({"true": [0, 1, 2], **{str(k): COST[:, k] for k in range(3)}}).write_csv(tmp_path / "cost.csv")
    arguments = [
        "fix",
        str(tmp_path / "val.csv"),
        "--cost",
        str(tmp_path / "cost.csv"),
        "--folds",
        "2",
        "--out",
        str(tmp_path / "o"),
    ]
    monkeypatch.setattr("sys.argv", ["classgap", *arguments])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "mean cost per sample" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (np.ones((2, 2)), r"cost must have shape \(3, 3\), got \(2, 2\)"),
        (np.ones((3, 3)), "higher for at least one error"),
        (np.eye(3), "lowest for the right prediction, but in row 0"),
        ({"0": {"0": 0}}, "'0' → '1' is missing"),
    ],
)
def test_unusable_costs(cost, message):
    y, logits = draw(4, 100)
    with pytest.raises(InputError, match=message):
        fix(y, scores=logits, cost=cost)
