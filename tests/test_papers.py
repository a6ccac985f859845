"""The papers' tables as suites: every run they ask for can be built, one of each is trained, published numbers are printed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_fabric import Fabric

from classgap.data import load_data
from classgap.suites import Published, Suite, Task, Variant, load_suite
from classgap.training import TrainConfig, train
from classgap.training.stages.base import open_run

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT.parent / "shared" / "papers"
SUITES = {name: load_suite(name) for name in ("mr2", "elm", "dbm", "marc")}
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
        held_out = 0.1 if config.stage.name == "tau_norm" else 0  # what its exponent is chosen on
        assert (config.data.val_fraction, config.optim.momentum, config.optim.name) == (held_out, 0.9, "sgd")
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


def test_robust_rows_have_the_published_settings_and_say_what_is_not_published() -> None:
    rows = {variant.name: variant for variant in SUITES["mr2"].variants}
    assert rows["DRO"].params == {"strict": True}
    assert rows["FairDRO"].params == {"update": "epoch", "project": False}
    assert all("MR² gives none" in rows[name].note for name in ("DRO", "FairDRO"))


def test_the_row_drl_is_the_authors_three_stages() -> None:
    """Appendix C.1 of MR²: official implementations, of which only CSR, DRO and FairDRO were modified."""
    suite = SUITES["mr2"]
    row = next(v for v in suite.variants if v.name == "DRL")
    config = row.config(suite.tasks[0], seed=0)
    assert (config.method.name, config.stage.name) == ("dro_lt", "three_stage")
    same = next(v for v in SUITES["elm"].variants if v.name == "DRO-LT, three stages")
    assert row.params == same.params == {"weight": 1.0, "centroids": "epoch"}


RECIPES: dict[str, tuple[Any, ...]] = {
    # batch, rate, weight decay, schedule, warm-up, milestones, network of the first task
    "mr2": (128, 0.1, 5e-4, "cosine", 0, (), "resnet32"),
    "elm": (128, 0.4, 1e-4, "step", 15, (96, 192, 224), "resnet32"),
    "dbm": (64, 0.1, 2e-4, "cosine", 5, (), "resnet32"),
    "marc": (512, 0.05, 5e-4, "cosine", 0, (), "resnet32"),
}


@pytest.mark.parametrize("name", SUITES)
def test_the_recipe_is_that_of_the_text(name: str) -> None:
    epochs = {"mr2": {300}, "elm": {256}, "dbm": {200}}
    for task in SUITES[name].tasks:
        c, s = task.config, task.config.schedule
        found = (c.batch, c.optim.lr, c.optim.weight_decay, s.name, s.warmup, s.milestones)
        assert found == RECIPES[name][:-1]
        assert c.epochs in epochs.get(name, {c.epochs})
    assert SUITES[name].tasks[0].config.model.name == RECIPES[name][-1]


@pytest.mark.parametrize(("task", "images"), [("CIFAR-10-LT 100", 12406), ("CIFAR-100-LT 200", 9502)])
def test_marc_trains_for_13000_steps(task: str, images: int) -> None:
    config = next(t.config for t in SUITES["marc"].tasks if t.name == task)
    assert config.epochs * -(-images // config.batch) == pytest.approx(13_000, rel=2e-3)


def test_mr2_has_every_column_of_its_sweeps() -> None:
    """Tables 8, 12 and 13; the column c̄=0 cannot be run, and p=2, which the paper leaves out, is the main row."""
    rows = [v.params for v in SUITES["mr2"].variants if v.method == "mr2_published" and "tau" not in v.params]
    plain = [row for row in rows if not set(row) & {"margins", "spread"}]
    assert {row["c_bar"] for row in plain if row["lam"] == 0.5} == {0.5, 1, 2, 3, 5}
    assert {row["lam"] for row in plain if row["c_bar"] == 2} == {0, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9}
    assert {row.get("p", 2) for row in plain} == {1, 2, 3, 5, 7, 9}


def test_dbm_has_ldam_and_its_sweeps() -> None:
    variants = {v.name: v for v in SUITES["dbm"].variants}
    assert variants["LDAM"].params == {"max_m": 0.5, "s": 30.0}
    assert variants["LDAM-DRW, margin 0.1"].params["base_params"] == {"max_m": 0.1, "s": 30.0}
    balanced = [v.params for v in SUITES["dbm"].variants if v.method == "dbm" and v.params.get("variant") == "bs"]
    assert len({row["k_m"] for row in balanced if row.get("k_m")}) >= 4
    assert len({row["tau"] for row in balanced if "tau" in row}) >= 4
    assert {row.get("instance", "hard") for row in balanced} == {"none", "all", "hard"}


@pytest.mark.parametrize("name", SUITES)
def test_every_row_of_a_table_has_its_published_number(name: str) -> None:
    """But for those that are not in the paper's tables, and say so by their names."""
    unpublished = {
        "mr2": r".*re-run|MR², released|(LA \+ )?(MR² \(default\)|compact logits)",
        "elm": r".*re-run|ELM, α=(n|√n, λ=.*)",
        "dbm": r".*re-run|DBM-BS, (K_m|τ)=.*",
        "marc": r".*re-run|τ-norm|MARC, γ=(?!0$).*",
    }[name]
    published = {row.variant for row in SUITES[name].published if not row.absent}
    assert {v.name for v in SUITES[name].variants if not re.fullmatch(unpublished, v.name)} == published


BY_COLUMN = (
    "Table 8",
    "Table 12",
    "Table 13",
)  # of MR²: a line has what its numbers are of, not which row they belong to


def is_printed(lines: list[str], rows: list[Published], paper: str) -> bool:
    """Whether all numbers of a row of a table are in one line of the paper, or each in the line of what it is of."""
    decimals = 1 if paper in ("mr2", "marc") else 2
    numbers = [(metric, f"{value:.{decimals}f}") for row in rows for metric, value in row.accuracy.items()]
    if paper == "mr2" and rows[0].source.startswith(BY_COLUMN):
        return all(any(line.lower().startswith(m) and holds(line, n) for line in lines) for m, n in numbers)
    return any(all(holds(line, number) for _, number in numbers) for line in lines)


def unprinted_measures(lines: list[str], suite: Suite) -> list[Any]:
    """Measures that are not in the text; those of a table are in one line, as decimals or, in a sentence, as a power of ten."""
    missing = []
    for row in suite.published:
        of_kind: dict[str, list[str]] = {}
        for measure, value in row.measures.items():
            decimals = 4 if measure.startswith("feature") else 1 if measure == "classifier angle" else 3
            text = "7.5 \\times 10^{-4}" if value == 7.5e-4 else f"{value:.{2 if suite.name == 'dbm' else decimals}f}"
            of_kind.setdefault(measure.partition(",")[0], []).append(text)
        for kind, numbers in of_kind.items():
            if not any(all(holds(line, number) for number in numbers) for line in lines):
                missing.append((row.variant, kind))
    return missing


def holds(line: str, number: str) -> bool:
    return re.search(rf"(?<![\d.+-]){re.escape(number)}(?![\d.])", line) is not None


@pytest.mark.parametrize("name", SUITES)
def test_published_numbers_are_in_the_paper(name: str) -> None:
    path = TEXTS / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"needs the text of the paper in ../shared/papers/{name}.txt, which this machine does not have")
    lines = path.read_text().splitlines()
    table_rows: dict[Any, list[Published]] = {}
    for row in (
        row for row in SUITES[name].published if row.accuracy
    ):  # tasks are rows in MR²'s tables, columns in the others'
        table_rows.setdefault((row.variant, row.source, row.task if name == "mr2" else ""), []).append(row)
    assert [key for key, rows in table_rows.items() if not is_printed(lines, rows, name)] == []
    assert unprinted_measures(lines, SUITES[name]) == []
    for row in SUITES[name].published:  # printed as fractions
        fractions = [f"{value / 100:.4f}" for value in row.std.values()]
        assert any(all(holds(line, number) for number in fractions) for line in lines), row


LARGE_DECIMALS = {"mr2_large": 1, "elm_large": 2, "dbm_large": 1, "marc_large": 1}


@pytest.mark.parametrize("name", LARGE_DECIMALS)
def test_published_numbers_of_the_large_sets_are_in_the_paper(name: str) -> None:
    path = TEXTS / f"{name.removesuffix('_large')}.txt"
    if not path.exists():
        pytest.skip(f"needs the text of the paper in ../shared/papers/{path.name}, which this machine does not have")
    lines = path.read_text().splitlines()
    for row in (row for row in load_suite(name).published if row.accuracy):
        by_metric = row.source in ("Table 9", "Table 10")  # of MR²: a line has what its numbers are of
        numbers = [(metric, f"{value:.{LARGE_DECIMALS[name]}f}") for metric, value in row.accuracy.items()]
        if by_metric:
            where = [[line for line in lines if metric in line.lower()] for metric, _ in numbers]
            assert all(any(_has(line, n) for line in some) for some, (_, n) in zip(where, numbers, strict=True)), row
        else:
            assert any(all(_has(line, number) for _, number in numbers) for line in lines), row
        fractions = [f"{value / 100:.4f}" for value in row.std.values()]
        assert any(all(holds(line, number) for number in fractions) for line in lines), row
    assert unprinted_measures(lines, load_suite(name)) == []


def _has(line: str, number: str) -> bool:
    """Also where the paper leaves out a zero: 100 and 89."""
    return holds(line, number) or (number.endswith(".0") and holds(line, number.removesuffix(".0")))


def test_a_wrong_number_would_be_noticed() -> None:
    lines = ["ERM\t70.9\t84.5\t71.0\t56.7", "Hard\t60.4\t60.8", "Overall\t72.8\t73.2 (+2.6)"]
    row = Published("t", "v", "Table 1a", {"overall": 70.9, "easy": 84.5, "medium": 71.0, "hard": 56.7})
    column = Published("t", "v", "Table 12", {"hard": 60.8, "overall": 73.2})
    assert is_printed(lines, [row], "mr2")
    assert is_printed(lines, [column], "mr2")
    for right, wrong in ((row, (70.8, 60.4, 0.9)), (column, (73.3, 60.8, 2.6))):
        for value in wrong:
            slip = dataclasses.replace(right, accuracy={**right.accuracy, "overall": value})
            assert not is_printed(lines, [slip], "mr2")


@pytest.fixture(scope="module")
def digits() -> Any:
    """With a validation set, and without."""
    shape: dict[str, Any] = {"per_class": 12, "profile": "exponential", "imbalance": 4.0}
    return {held_out: load_data("digits", **shape, val_fraction=held_out) for held_out in (0.0, 0.1)}


@pytest.mark.parametrize(("task", "variant"), runs())
def test_every_method_of_a_paper_can_be_built(task: Task, variant: Variant, digits: Any, tmp_path: Path) -> None:
    config = small(task, variant, "model=mlp-8")
    trainer = open_run(config, digits[config.data.val_fraction], Fabric(accelerator="cpu", devices=1), tmp_path)
    assert trainer.batches.steps() > 0


@pytest.mark.parametrize("name", SUITES)
def test_a_run_of_each_paper_trains(name: str, tmp_path: Path) -> None:
    """Its own method with the network of the paper."""
    suite = SUITES[name]
    task = suite.tasks[0]
    own = {"mr2": "MR², published", "elm": "ELM, α=π", "dbm": "DBM-BCL", "marc": "MARC"}[name]
    variant = next(v for v in suite.variants if v.name == own)
    result = train(small(task, variant), tmp_path, accelerator="cpu")
    assert result.config.model.name == "resnet32"
    assert np.isfinite(result.test.scores).all()
    assert all(np.isfinite(record["train"]["loss"]) for record in result.history)
