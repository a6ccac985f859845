"""Tables of the bench agree with ``compare``."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import classgap
from bench_suite import tiny
from classgap.checks import InputError
from classgap.suites import RULES
from classgap.suites.render import Table
from classgap.suites.tables import difference, mean_interval, suite_tables


def test_tables_agree_with_compare(done: Any) -> None:
    suite, _, results = done
    tables = suite_tables(suite, results)[0]

    def reports(variant: int) -> list[Any]:
        found = [results[suite.jobs()[variant + 3 * s].key] for s in (0, 1)]
        return [
            classgap.audit(r.y_true, r.predictions(RULES["last"].pick(r)), class_names=r.class_names) for r in found
        ]

    direct = classgap.compare(reports(0), reports(2), n_boot=300)
    row = next(line for line in tables.differences.rows if line[0] == "mr2")
    deltas = [direct.metrics["overall"], *(direct.groups[r]["hard"] for r in ("own", "reference", "cross"))]
    assert row[2:6] == tuple(difference(c.delta.value, c.delta.low, c.delta.high) for c in deltas)
    assert row[-1] == direct.verdict.title
    accuracy = next(line for line in tables.accuracy.rows if line[0] == "mr2")
    mean, half = mean_interval([report.overall.value for report in reports(2)])
    assert accuracy[2] == f"{100 * mean:.1f} ± {100 * half:.1f}"
    heads = tables.accuracy.heads
    assert heads[2:6] == ("overall", "overall std", "easy", "easy std")
    for metric in ("overall", "easy", "medium", "hard", "worst"):
        first, second = (report.metrics[metric].value for report in reports(2))
        assert accuracy[heads.index(f"{metric} std")] == f"{100 * abs(first - second) / 2**0.5:.1f}"
    assert [line[0] for line in tables.differences.rows] == ["re-run", "mr2"]  # the null has its own row


def test_tables_of_a_part(done: Any) -> None:
    suite, _, results = done
    part = suite_tables(suite, results, seeds=[1], only=["*/mr2"], rule=RULES["test_oracle"])[0]
    assert [line[:2] for line in part.accuracy.rows] == [("erm", "1"), ("mr2", "1")]
    assert "TEST ORACLE" in part.accuracy.caption
    assert "TEST ORACLE" in part.differences.caption
    assert "seed 1" in part.accuracy.caption
    assert part.accuracy.rows[0][3] == "–"  # no deviation over a single run
    assert suite_tables(suite, {}) == []
    two = tiny(tasks=(*suite.tasks, dataclasses.replace(suite.tasks[0], name="again")))
    assert [t.task.name for t in suite_tables(two, results, only=["again/mr2"])] == ["again"]


def test_runs_on_other_data_are_not_compared(done: Any) -> None:
    suite, _, results = done
    jobs = suite.jobs()
    for stale in ([jobs[2].key], [jobs[2].key, jobs[5].key]):  # one run of a variant, all of them
        changed = {k: dataclasses.replace(r, split_hash="0" * 12) if k in stale else r for k, r in results.items()}
        with pytest.raises(InputError, match="different data"):
            suite_tables(suite, changed)


def test_text_cannot_break_out_of_a_table() -> None:
    nasty = r"<b>50 % | a_b & {c} \x $1 #"
    table = Table(nasty, nasty, ("variant", "runs", "verdict"), ((nasty, "3", "Worse"),))
    page = table.render("html")
    assert "<b>" not in page
    assert page.count("&lt;b&gt;50 % | a_b &amp; {c}") == 3
    tex = table.render("tex")
    assert tex.count(r"50 \% | a\_b \& \{c\} \textbackslash{}x \$1 \#") == 3
    assert r"\begin{tabular}{lrl}" in tex
    lines = table.render("md").splitlines()
    assert r"&lt;b>50 % \| a_b & {c} \\x $1 #" in lines[4]
    assert len({len(line) for line in lines[2:5]}) == 1  # aligned
    assert lines[3].startswith("| ---")


def test_a_latex_table_can_be_put_into_a_paper() -> None:
    rows = (("a", "9.5 ± 1", "-1.0 [-2, +0]"), ("b", "10.2 ± 1", "–"), ("c", "10.2", "+3.0"))
    table = Table("digits: accuracy", "A long explanation.", ("variant", "hard", "change"), rows, best=("hard",))
    tex = table.render("tex")
    assert tex.startswith(r"% needs \usepackage{booktabs}")
    assert r"\caption{digits: accuracy.}" in tex
    assert r"\label{tab:digits-accuracy}" in tex
    assert r"a & 9.5 $\pm$ 1 & $-$1.0 [$-$2, +0] \\" in tex
    assert r"b & \textbf{10.2 $\pm$ 1} & -- \\" in tex
    assert r"c & \textbf{10.2} & +3.0 \\" in tex
    assert tex.index(r"\end{tabular}") < tex.index("A long explanation.")
    assert table.render("html").count("<b>") == 2
