"""The papers' tables as suites: every run they ask for can be built, and one of each is trained for a few steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_fabric import Fabric

from classgap.bench import Suite, Task, Variant, load_suite
from classgap.data import load_data
from classgap.train import TrainConfig, fit
from classgap.train.phases import open_run

PAPERS = Path(__file__).resolve().parents[1] / "benchmarks" / "papers"
SUITES = {name: load_suite(str(PAPERS / f"{name}.py")) for name in ("mr2", "elm", "dbm", "marc")}
# What the schedule of a paper is shrunk to, on real images of ten classes.
SMALL = ["data=digits", "data.per_class=12", "epochs=2", "schedule.warmup=0.5", "schedule.milestones=1", "batch=60"]


def runs() -> list[Any]:
    """Every variant with the first task it takes part in."""
    found = {(name, v.name): (t, v) for name, suite in SUITES.items() for t, v in reversed(list(suite.pairs()))}
    return [pytest.param(task, variant, id="-".join(key)) for key, (task, variant) in found.items()]


def small(task: Task, variant: Variant, *further: str) -> TrainConfig:
    config = variant.config(task, seed=0)
    return dataclasses.replace(config.override([*SMALL, *further]), method=config.method)


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_the_published_settings(suite: Suite) -> None:
    assert suite.reference == "cross_entropy"
    for task, variant in suite.pairs():
        config = variant.config(task, seed=0)
        assert (config.data.val_fraction, config.optim.momentum) == (0, 0.9)
        assert config.epochs >= 200
        assert {"crop", "flip"} <= set(config.data.augment or ())
    assert len({job.key for job in suite.jobs()}) == len(suite.jobs())  # no two rows are the same run


def test_marc_is_equation_11_by_the_papers_steps() -> None:
    from classgap import registry

    suite = SUITES["marc"]
    variant = next(v for v in suite.variants if v.name == "MARC")
    stage = variant.config(suite.tasks[0], seed=0).stage
    marc = registry.get("stage", stage.name).build(**stage.params).estimator
    assert (marc.gamma, marc.ridge, marc.steps, marc.normalize) == (1.2, 0, 2000, "batch")


@pytest.fixture(scope="module")
def digits() -> Any:
    return load_data("digits", per_class=12, profile="exponential", imbalance=4.0, val_fraction=0.0)


@pytest.mark.parametrize(("task", "variant"), runs())
def test_every_method_of_a_paper_can_be_built(task: Task, variant: Variant, digits: Any, tmp_path: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    trainer = open_run(small(task, variant, "model=mlp-8"), digits, fabric, tmp_path)
    assert trainer.batches.steps() > 0


@pytest.mark.parametrize("name", SUITES)
def test_a_run_of_each_paper_trains(name: str, tmp_path: Path) -> None:
    """Its own method with the network of the paper."""
    suite = SUITES[name]
    task = suite.tasks[0]
    own = {"mr2": "MR² as in the paper", "elm": "ELM, α=π", "dbm": "DBM-BCL", "marc": "MARC"}[name]
    variant = next(v for v in suite.variants if v.name == own)
    result = fit(small(task, variant), tmp_path, accelerator="cpu")
    assert result.config.model.name == "resnet32"
    assert np.isfinite(result.test.scores).all()
    assert all(np.isfinite(record["train"]["loss"]) for record in result.history)
