"""Published numbers stand beside those of the runs they are compared with."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import classgap
from bench_suite import SUITE_FILE, tiny
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.suites import RULES, Published, load_suite
from classgap.suites.published import measured, published_tables
from classgap.suites.suite import paper_suites


def row(variant: str = "erm", task: str = "digits", **changes: Any) -> Published:
    given: dict[str, Any] = {"source": "Table 1", "accuracy": {"overall": 90.0, "hard": 80.5}, "std": {"hard": 0.25}}
    return Published(task, variant, **{**given, **changes})


def test_published_own_and_difference(done: Any) -> None:
    suite, _, results = done
    suite = dataclasses.replace(suite, published=(row(), row("mr2", source="section 3", note="of another network")))
    found = {k: r for k, r in results.items() if r.variant != "mr2"}
    (table,) = published_tables(suite, found)
    assert table.heads == ("variant", "published in", "runs", "overall", "hard")
    runs = [results[job.key] for job in suite.jobs(only=["*/erm"])]
    reports = [classgap.audit(r.y_true, r.predictions(RULES["last"].pick(r)), class_names=r.class_names) for r in runs]
    cells = []
    for metric, known in (("overall", "90.0"), ("hard", "80.5 ± 0.25")):
        own = [100 * report.metrics[metric].value for report in reports]
        off = np.mean(own) - float(known.split()[0])
        cells.append(f"{known} → {np.mean(own):.1f} ± {np.std(own, ddof=1):.2f} ({off:+.1f})")
    assert table.rows[0] == ("erm", "Table 1", "2", *cells)
    assert table.rows[1] == ("mr2", "section 3", "not run", "90.0", "80.5 ± 0.25")
    assert "mr2, section 3: of another network." in table.caption
    assert published_tables(suite, results, only=["*/re-run"]) == []


def test_what_numbers_are_of(done: Any) -> None:
    _, _, results = done
    run = next(iter(results.values()))
    correct = np.asarray(RULES["last"].pick(run).test_correct)
    accuracy = correct / run.support
    assert measured(run, f"class {run.class_names[3]}") == accuracy[3]
    counts = (150, 101, 100, 60, 30, 20, 19, 5, 3, 2)  # more than 100, 20 to 100, fewer than 20
    tail = dataclasses.replace(run, train_counts=counts)
    groups = {"many-shot": slice(0, 2), "medium-shot": slice(2, 6), "few-shot": slice(6, 10)}
    for metric, members in groups.items():
        assert measured(tail, metric) == pytest.approx(accuracy[members].mean())
    assert np.isnan(measured(dataclasses.replace(run, train_counts=(50,) * 10), "few-shot"))
    with pytest.raises(InputError, match="no such class"):
        measured(run, "class zebra")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"variant": "mr3"}, "did you mean 'digits/mr2'"),
        ({"task": "digit"}, "unknown run with published numbers 'digit/erm'"),
        ({"accuracy": {"tail": 3.0}}, "must be of overall, easy, .* or 'class NAME', got 'tail'"),
        ({"std": {"few": 0.1}}, "got 'few'"),
    ],
)
def test_a_slip_in_the_suite_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny(published=(row(**wrong),))


def test_decimals_are_those_of_the_paper() -> None:
    one, two = (published_tables(tiny(published=(row(accuracy={"overall": v}, std={}),)), {}) for v in (44.6, 44.63))
    both = published_tables(tiny(published=tuple(row(accuracy={"overall": v}) for v in (44.6, 44.63))), {})
    assert [one[0].rows[0][-1], two[0].rows[0][-1]] == ["44.6", "44.63"]
    assert [line[-1] for line in both[0].rows] == ["44.60", "44.63"]


def test_the_command_shows_them_before_anything_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent(SUITE_FILE).replace("import Suite", "import Published, Suite")
    known = 'published=(Published("digits", "mr2", "Table 9", {"hard": 61.9}),)'
    (tmp_path / "mine.py").write_text(text.replace("seeds=(0, 1)", f"seeds=(0, 1), {known}"))
    shown = CliRunner().invoke(app, ["bench", "mine.py", "--tables-only"])
    assert shown.exit_code == 0
    assert "| mr2     | Table 9      | not run | 61.9 |" in shown.stdout


def test_rows_not_run_state_command_and_cost(done: Any) -> None:
    suite, _, results = done
    task = dataclasses.replace(suite.tasks[0], cost="about 2 minutes of one A100")
    suite = dataclasses.replace(suite, tasks=(task, *suite.tasks[1:]), published=(row(), row("mr2")))
    (known,) = published_tables(suite, results)
    assert "A100" not in known.caption
    (unknown,) = published_tables(suite, {key: run for key, run in results.items() if run.variant == "erm"})
    assert f'classgap bench {suite.name} --only "{task.name}/VARIANT" --seeds 0. ' in unknown.caption
    assert "needs about 2 minutes of one A100 (an estimate)" in unknown.caption


def test_every_table_of_the_papers_states_its_cost() -> None:
    costs = {(name, task.name): task.cost for name in paper_suites() for task in load_suite(name).tasks}
    assert all("of one A100, assuming" in cost for cost in costs.values())
    assert costs["mr2", "ResNet-32"].startswith("about 17 minutes")  # 300 × 50 000 / 15 000 seconds
    assert "1,800 images" in costs["mr2_large", "CLIP RN-50"]
    assert costs["mr2_large", "RN-50 from scratch"].startswith("about 43 hours")  # 300 × 1 281 167 / 2 500 seconds
