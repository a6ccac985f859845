"""Slices: no claim where slices do not matter, the right cells where they do, and the same numbers from every kind of input."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import fisher_exact, hypergeom

from classgap import Predictions, audit
from classgap.checks import InputError
from classgap.cli import main
from classgap.measure.gate import check
from classgap.measure.statistics.slices import POOLED, difference_interval
from classgap.measure.statistics.stratified import slice_p_values, stratified_tests
from classgap.predictions import SliceCounts

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "slices.py"
SPEC = importlib.util.spec_from_file_location("slice_simulation", PATH)
assert SPEC is not None
assert SPEC.loader is not None
simulation = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = simulation  # dataclasses look their module up
SPEC.loader.exec_module(simulation)
Setting = simulation.Setting


def data(seed=0, n=3000):
    """Class 2 is bad in Rome; Paris is a little worse in every class; two sites are tiny."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 5, n)
    site = rng.choice(["Berlin", "Paris", "Rome", "tiny 1", "tiny 2"], n, p=[0.5, 0.3, 0.196, 0.002, 0.002])
    right = rng.random(n) < 0.9 - 0.1 * (site == "Paris") - 0.4 * ((site == "Rome") & (y == 2))
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    return names[y], names[np.where(right, y, (y + 1) % 5)], site


def test_finds_the_slice_and_the_cell():
    y_true, y_pred, site = data()
    report = audit(y_true, y_pred, by={"site": site, "lens": np.arange(len(site)) % 3})
    column = report.slices["site"]
    assert "class 'cat' in site=Rome" in report.slices.worse
    assert "site=Paris" in report.slices.worse
    assert not any("lens" in claim for claim in report.slices.worse)
    assert report.slices["lens"].verdict.startswith("No difference between the slices of 'lens' is shown")
    first = column.cells[0]
    assert (first["class"], first["slice"]) == ("cat", "Rome")
    member = (y_true == "cat") & (site == "Rome")
    assert first["support"] == member.sum()
    assert first["accuracy"] == pytest.approx((y_true == y_pred)[member].mean())
    rest = (y_true == "cat") & (site != "Rome")
    assert first["other_accuracy"] == pytest.approx((y_true == y_pred)[rest].mean())
    assert first["difference_low"] < first["difference"] < first["difference_high"] < 0
    assert report.slices.worst.low < first["accuracy"] < report.slices.worst.high
    assert column.per_class[0]["name"] == "cat"
    assert column.per_class[0]["low"] > 0
    assert "2 slices with fewer than 10 samples were pooled" in column.pooled
    assert POOLED in column.per_slice["name"]
    assert column.per_slice["support"].sum() == column.cells["support"].sum() == len(site)


def test_every_input_gives_the_same_slices(tmp_path):
    y_true, y_pred, site = data(n=600)
    frame = pl.DataFrame({"label": y_true, "pred": y_pred, "site": site})
    frame.write_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", label=y_true, pred=y_pred, site=site)
    wanted = audit(y_true, y_pred, by={"site": site}).slices.to_dict()
    counted = Predictions.from_arrays(y_true, y_pred, by={"site": site})
    counts = Predictions(counted.classes, counted=counted.confusion, counted_by=counted.slice_counts())
    assert audit(counts).slices.to_dict() == wanted
    for given in (frame, frame.to_pandas(), *(str(tmp_path / f"a.{end}") for end in ("csv", "parquet", "npz"))):
        assert audit(given, by=["site"]).slices.to_dict() == wanted
    assert audit(frame, by="site").slices.to_dict() == wanted
    assert audit(frame).slices is None


def test_missing_and_unusable_slices():
    y_true, y_pred, site = data(n=300)
    report = audit(y_true, y_pred, by={"age": np.where(np.arange(300) % 3 == 0, np.nan, 20.0)})
    assert set(report.slices["age"].per_slice["name"]) == {"(missing)", "20"}
    with pytest.raises(InputError, match=r"at most 1000 slices, but it has 1,001 distinct values; group them"):
        audit(np.zeros(1001), np.zeros(1001), by={"t": np.arange(1001)})
    with pytest.raises(InputError, match="by must be a mapping"):
        audit(y_true, y_pred, by=["site"])
    with pytest.raises(InputError, match=r"by cannot be combined with a table.*name of its column"):
        audit(pl.DataFrame({"label": y_true, "pred": y_pred}), by={"site": site})
    perfect = audit(y_true, y_true, by={"site": site}).slices
    assert perfect["site"].verdict.startswith("'site' cannot be tested")
    assert perfect.worse == []


def test_small_cells_are_pooled_within_their_class():
    support = np.array([[20, 3, 4, 30], [20, 3, 30, 30], [0, 0, 0, 0]])
    counts = SliceCounts(("a", "b", "c", "d"), support // 2, support)
    matrix = np.diag((support // 2).sum(1))
    matrix[0, 1], matrix[1, 0] = (support - support // 2).sum(1)[:2]
    report = audit(
        Predictions(("x", "y", "z"), counted=Predictions.from_counts(matrix).confusion, counted_by={"s": counts})
    )
    cells = report.slices["s"].cells
    of_x = {str(c["slice"]): (int(c["support"]), int(c["cells"])) for c in cells if c["class"] == "x"}
    assert of_x == {"a": (20, 1), "d": (30, 1), POOLED: (7, 2)}
    # a single small cell gains nothing from being pooled
    assert {str(c["slice"]) for c in cells if c["class"] == "y"} == {"a", "b", "c", "d"}
    assert report.slices["s"].pooled.startswith("2 of 8 cells (class × slice) have fewer than 10 samples")


def test_cell_test_is_fishers_and_slice_test_is_exact():
    support, correct = np.array([[12, 20], [7, 9]]), np.array([[5, 18], [3, 8]])
    zero = np.zeros((2, 1), dtype=np.int64)
    cells = np.hstack([correct, zero]), np.hstack([support, zero])
    tests = stratified_tests(cells, (correct, support), np.random.default_rng(0))
    one_sided = fisher_exact([[5, 7], [18, 2]], alternative="less").pvalue
    assert tests.cell[0, 0] == pytest.approx(2 * one_sided)
    first = hypergeom(32, 23, 12).pmf(np.arange(13))
    second = hypergeom(16, 11, 7).pmf(np.arange(8))
    total = np.convolve(first, second)
    assert slice_p_values(correct, support)[0] == pytest.approx(2 * min(total[:9].sum(), total[8:].sum()))


def test_class_mix_is_not_a_difference_between_slices():
    """Simpson's paradox: the slice with more of the hard class has a lower accuracy, but no class is worse in it."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], 2000)
    site = np.where(rng.random(4000) < np.where(y == 0, 0.9, 0.1), "A", "B")
    right = rng.random(4000) < np.where(y == 0, 0.95, 0.5)
    column = audit(y, np.where(right, y, 1 - y), by={"site": site}).slices["site"]
    accuracy = {str(row["name"]): row["accuracy"] for row in column.per_slice}
    assert accuracy["A"] - accuracy["B"] > 0.3
    assert not column.real


def test_difference_interval_is_newcombes():
    """Example (a) of Newcombe 1998, method 10: 56/70 against 48/80."""
    from classgap.measure.statistics.intervals import wilson

    sides = [(np.array([c / n]), *wilson(np.array([c / n]), np.array([n]), 0.95)) for c, n in ((56, 70), (48, 80))]
    _, low, high = difference_interval(sides[0], sides[1])
    assert (round(float(low[0]), 4), round(float(high[0]), 4)) == (0.0524, 0.3339)


def test_gate():
    y_true, y_pred, site = data()
    report = audit(y_true, y_pred, by={"site": site})
    conditions = ["any slice worse", "slices.worst < 0.7", "slices.worst < 0.1", "slice[site=Paris].difference < -0.05",
                  "slices.columns.site.worst_decile.low < 0.9"]  # fmt: skip
    assert [outcome.failed for outcome in check(report, conditions)] == [True, True, False, True, True]
    with pytest.raises(InputError, match="needs an audit with slices; name their column with --by"):
        check(audit(y_true, y_pred), ["any slice worse"])
    with pytest.raises(InputError, match="needs an audit with slices"):
        check(audit(y_true, y_pred), ["slices.worst < 1"])
    with pytest.raises(InputError, match="unknown slice 'paris'; did you mean 'Paris'"):
        check(report, ["slice[site=paris].accuracy < 1"])
    equal = audit(y_true, y_pred, by={"site": np.arange(len(site)) % 2})
    assert not check(equal, ["any slice worse"])[0].failed


def test_command_line_and_pages(tmp_path, monkeypatch, capsys):
    y_true, y_pred, site = data()
    pl.DataFrame({"label": y_true, "pred": y_pred, "the site": site}).write_csv(tmp_path / "a.csv")
    files = [str(tmp_path / "a.csv"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["classgap", "audit", *files, "--by", "the site", "--fail-if", "any slice worse"])
    with pytest.raises(SystemExit, match="1"):
        main()
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("Slices by the site", "class 'cat' in Rome", "Classes within slices, worst first"):
        assert text in printed
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "### Slices by the site" in markdown
    assert "| cat | Rome |" in markdown
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<div data-table="cells_0"' in page
    written = json.loads((tmp_path / "out" / "report.json").read_text())["slices"]
    assert written["columns"]["the site"]["cells"][0]["class"] == "cat"


SMALL = [
    Setting("equal .98", 10, 5, "12 per cell", "none"),
    Setting("uniform .3 to .95", 10, 5, "classes differ between slices", "none"),
    Setting("equal .7", 2, 3, "2 per cell", "none"),
]


def test_no_false_claims_in_small():
    found = [simulation.simulate(setting, 40) for setting in SMALL]
    assert np.mean([result["claims"]["any"] for result in found]) <= 0.07
    assert np.mean([result["coverage"]["slice difference"] for result in found]) >= 0.93


def test_committed_simulation_keeps_its_promise():
    results = json.loads((PATH.parent / "slices.json").read_text())
    none = [result for result in results if result["effect"] == "none"]
    assert np.mean([result["claims"]["any"] for result in none]) <= 0.05
    for result in none:
        assert result["claims"]["any"] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / result["rounds"])
    assert np.mean([result["claims"]["fdr"] for result in results if result["effect"] != "none"]) <= 0.05
    for name in ("cell difference", "slice difference", "class gap", "worst cell"):
        assert np.mean([r["coverage"][name] for r in results if name in r["coverage"]]) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("setting", [s for s in simulation.grid() if s.num_classes <= 10], ids=str)
def test_slices_in_simulation(setting):
    result = simulation.simulate(setting, 60)
    limit = 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / result["rounds"])
    if setting.effect == "none":
        assert result["claims"]["any"] <= limit
    assert result["claims"]["fdr"] <= limit
    for name, share in result["coverage"].items():
        assert share >= 0.95 - 3.5 * np.sqrt(0.05 * 0.95 / max(1, result["rounds"])), name


def test_an_effect_in_few_of_many_classes_is_detected():
    """Two of 300 cells: the Bonferroni-corrected most extreme cell alone misses most of these."""
    from classgap.measure.statistics.stratified import stratified_tests

    rng = np.random.default_rng(1)
    support = np.full((100, 3), 15)
    truth = np.repeat(np.linspace(0.5, 0.95, 100)[:, None], 3, axis=1)
    truth[[10, 50], [1, 2]] -= 0.5
    found, alone = [], []
    for _ in range(20):
        correct = rng.binomial(support, truth)
        none = np.zeros((100, 1), dtype=np.int64)  # no small cells are pooled
        cells = np.hstack([correct, none]), np.hstack([support, none])
        tests = stratified_tests(cells, (correct, support), rng)
        found.append(tests.overall <= 0.05)
        alone.append(np.nanmin(tests.cell) * 300 * 3 <= 0.05)
    assert np.mean(found) >= np.mean(alone) + 0.1, (np.mean(found), np.mean(alone))


def test_the_permutation_test_is_exact_for_the_smallest_of_several_statistics():
    from classgap.measure.statistics.stratified import _Joint

    rng = np.random.default_rng(0)
    p = [
        _Joint.of(rng.normal(size=(100, 3)) @ np.array([[1, 0.9, 0], [0, 0.4, 0], [0, 0, 1.0]])).p_value
        for _ in range(600)
    ]
    assert 0.02 < np.mean(np.array(p) <= 0.05) < 0.075
    assert 0.01 <= min(p) <= 0.03


def test_the_table_of_extreme_cells_has_fishers_p_values():
    from classgap.measure.statistics.stratified import _cell_p_values, _CellTable

    rng = np.random.default_rng(0)
    support = rng.integers(1, 30, size=(6, 4))
    correct = rng.binomial(support, 0.6)
    table = _CellTable.of(correct, support)
    np.testing.assert_allclose(np.exp(-table.value[table.start + correct]), _cell_p_values(correct, support), rtol=1e-8)


def test_the_worst_cell_of_several_columns_may_be_in_each_of_them():
    y = np.zeros(240, dtype=int)
    correct = np.arange(240) % 10 < 6
    correct[:60] = np.arange(60) % 2 == 0  # 30 of 60
    large = np.where(np.arange(240) < 60, "a", "b")
    small = np.where((np.arange(240) >= 220) & (np.arange(240) < 232), "c", "d")  # few samples, a wide interval
    pairs = [{"large": large, "small": small}, {"small": small, "large": large}]
    found = [audit(y, np.where(correct, 0, 1), class_names=["x", "y"], by=by, n_boot=100).slices for by in pairs]
    columns = [found[0][name].metrics["worst"] for name in ("large", "small")]
    for slices in found:
        assert slices.worst.value == min(e.value for e in columns)
        assert slices.worst.low == min(e.low for e in columns)
        assert slices.worst.high == min(e.high for e in columns)
    assert columns[1].value > columns[0].value
    assert columns[1].low < columns[0].low


def test_the_verdict_says_that_pooling_leaves_nothing_to_test():
    y, site = np.repeat(np.arange(30), 12), np.tile(np.repeat(["a", "b"], 6), 30)
    pred = np.where((site == "a") & (np.arange(360) % 6 < 3), (y + 1) % 30, y)
    column = audit(y, pred, by={"site": site}).slices["site"]
    assert "are pooled, and no class with both correct and wrong predictions has two cells left" in column.verdict
    nothing = audit(y, y, by={"site": site}).slices["site"]
    assert "no class has both correct and wrong predictions" in nothing.verdict
