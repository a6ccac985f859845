"""Intervals hold what they promise, for any shape of true accuracies: ``benchmarks/coverage.py`` in small and, slow, whole.

Coverage in the default run is that of few rounds, so it is judged together over metrics; the committed table is the measure.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest


def benchmark(file: str):
    path = Path(__file__).resolve().parents[1] / "benchmarks" / file
    spec = importlib.util.spec_from_file_location(f"{path.stem}_simulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


simulation = benchmark("coverage.py")
verdicts = benchmark("verdicts.py")  # a second simulation, which shares no code with the first
Setting = simulation.Setting


# Each of these failed: the gap was covered in 2 %, 3 %, 3 % and the own-ranking numbers of equal classes in 0 %.
AUDITS = [
    Setting("half .95, half .4", 100, "30"),
    Setting("uniform .5 to .9", 30, "50"),
    Setting("equal .7", 30, "1000 … 1"),
    Setting("equal .7", 100, "100"),
    Setting("equal .98", 10, "third 100, rest 1"),
    Setting("one bad class", 10, "1"),
    Setting("near 1", 3, "1 … 1000"),
    Setting("bell", 30, "30, every 4th absent"),
]
COMPARISONS = [
    Setting("equal .7", 100, "1", "none"),
    Setting("equal .7", 30, "third 100, rest 1", "none"),
    Setting("equal .98", 10, "10", "none"),
    Setting("uniform .5 to .9", 10, "30", "worst third +10"),
    Setting("half .95, half .4", 10, "1000 … 1", "spread halved"),
]


def name(setting: Setting) -> str:
    return " ".join(str(part) for part in vars(setting).values() if part)


@pytest.mark.parametrize("setting", AUDITS, ids=name)
def test_audit_in_small(setting):
    found = simulation.simulate(setting, 25)
    assert np.mean(list(found["coverage"].values())) >= 0.93, found
    assert min(found["coverage"].values()) >= 0.8, found


@pytest.mark.parametrize("setting", COMPARISONS, ids=name)
def test_compare_in_small(setting):
    found = simulation.simulate(setting, 15)
    assert np.mean(list(found["coverage"].values())) >= 0.93, found
    assert found.get("false_claim", 0) <= 0.2, found


@pytest.mark.slow
@pytest.mark.parametrize("setting", list(simulation.grid(full=False))[::7], ids=name)
def test_every_seventh_setting_of_the_grid(setting):
    rounds = 100
    found = simulation.simulate(setting, rounds)
    spare = 2.6 * np.sqrt(
        0.93 * 0.07 / found["rounds"]
    )  # a hundred settings and eleven metrics: chance must be allowed for
    assert min(found["coverage"].values()) >= 0.93 - spare, found
    assert found.get("false_claim", 0) <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / rounds), found


def committed() -> list[dict]:
    return json.loads(simulation.RESULTS.read_text())["results"]


def test_the_committed_table_is_that_of_the_committed_results():
    assert simulation.PAGE.read_text() == simulation.page(), "run: python benchmarks/coverage.py --page"


def test_committed_coverage_and_false_claims_are_within_the_promise():
    results = committed()
    for names in (("balanced",), simulation.RANKED):
        for compared in (False, True):
            chosen = [r for r in results if bool(r["change"]) == compared]
            assert np.mean([simulation.coverage_of(r, n) for r in chosen for n in names]) >= 0.94
    for r in results:
        for metric in r["coverage"]:  # below 93 % in the first rounds means: checked again with at least 500 new ones
            assert simulation.coverage_of(r, metric) >= 0.93, ({k: r[k] for k in vars(Setting("", 0, ""))}, metric)
        assert r.get("recheck", {"rounds": 500})["rounds"] >= 500
    for key, most in (("false_gap", 0.12), ("false_claim", 0.08)):
        rates = [r[key] for r in results if r.get(key) is not None]
        assert np.mean(rates) <= 0.05
        assert max(rates) <= most


def test_a_second_check_draws_from_the_same_distribution():
    setting = Setting("half .95, half .4", 10, "30", "spread halved")
    quick = simulation.compare_means(setting, 400)["coverage"]
    assert min(quick.values()) >= 0.9, quick
    found = {**vars(setting), "coverage": {"balanced": 0.9, "overall": 0.96}}
    assert simulation.short_metrics(found) == ["balanced"]
    again = simulation.recheck(found, 25)
    assert again["rounds"] == 100
    assert list(again["coverage"]) == ["balanced"]
    assert simulation.coverage_of(found | {"recheck": again}, "balanced") == again["coverage"]["balanced"]


@pytest.mark.parametrize("setting", ["100, 100 and 1 samples", "10 × 2"])
def test_two_equal_models_in_small(setting):
    found = [verdicts.no_change(setting, seed) for seed in range(12)]
    assert np.mean([r["anything"] for r in found]) <= 0.2
    for metric in verdicts.RANKED:  # the intervals had a length of 0, or nearly
        assert not any(r[f"excludes 0: {metric}"] for r in found)


def test_committed_results_of_the_named_settings_are_within_the_promise():
    assert verdicts.PAGE.read_text() == verdicts.page(), "run: python benchmarks/verdicts.py --page"
    for r in json.loads(verdicts.RESULTS.read_text()):
        spare = 2.6 * np.sqrt(0.93 * 0.07 / r["rounds"])
        held = {k: v for k, v in r.items() if (k.startswith("holds: ") and r["part"] == "audit") or k == "holds: hard"}
        assert min(held.values(), default=1) >= 0.93 - spare, r
        excluded = {k: v for k, v in r.items() if k.startswith("excludes 0: ")}
        assert max(excluded.values(), default=0) <= 0.07 + spare, r
        several = r["part"] == "seeds" and "3 runs" in r["name"]
        if r["part"] == "no_change" or several:
            assert r["anything"] <= 0.05, r
        assert r.get("false claim", 0) <= 0.05, r
        assert r.get("contradiction", 0) == 0, r
        assert r.get("headline names the limit", 1) == (0 if several else 1), r


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "setting"), [(p, n) for p, (names, _) in verdicts.PARTS.items() for n in names if p != "fix"]
)
def test_named_settings(part, setting):
    if setting == "uniform .5 to .9, 1000 × 50":
        pytest.skip("takes minutes; benchmarks/verdicts.py has the result")
    r = verdicts.simulate(part, setting, 60, 1)
    held = [v for k, v in r.items() if k.startswith("holds: ")]
    assert min(held, default=1) >= 0.93 - 3.3 * np.sqrt(0.93 * 0.07 / 60), r
    if part == "no_change" or "3 runs" in setting:
        assert r["anything"] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60), r


@pytest.mark.slow
def test_fix_claims_no_improvement_of_the_best_possible_scores():
    r = verdicts.simulate("fix", "30 × 6", 12, 1)
    assert r["claim"] <= 0.2, r
    assert r["holds: hard"] >= 0.75, r
