"""Published numbers beside the own ones: a table for each task of a suite that has any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from classgap.arrays import divide
from classgap.checks import InputError
from classgap.measure.statistics.groups import FREQUENCIES, THIRDS, by_frequency
from classgap.measure.statistics.metrics import evaluate
from classgap.suites.jobs import job_key
from classgap.suites.render import Table
from classgap.suites.select import RULES, EpochRule
from classgap.suites.suite import Published, Suite, Task, Variant

if TYPE_CHECKING:
    from classgap.suites.results import Result

NOT_RUN = "not run"


def published_tables(
    suite: Suite,
    results: Mapping[str, Result],
    *,
    rule: EpochRule = RULES["last"],
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
) -> list[Table]:
    """What papers print, what was measured here, and the difference; runs without a result say so.

    Args:
        results: By key, as :func:`~classgap.suites.read_results` gives them.
        only: Patterns of ``TASK/VARIANT``.
    """
    tables = []
    wanted = {(task.name, variant.name): variant for task, variant in suite.pairs(only)}
    for task in suite.tasks:
        printed = (row for row in suite.published if row.task == task.name)
        if rows := [(row, wanted[task.name, row.variant]) for row in printed if (task.name, row.variant) in wanted]:
            tables.append(_table(task, rows, results, rule, suite.seeds if seeds is None else seeds))
    return tables


def _table(
    task: Task,
    rows: Sequence[tuple[Published, Variant]],
    results: Mapping[str, Result],
    rule: EpochRule,
    seeds: Sequence[int],
) -> Table:
    metrics = tuple(dict.fromkeys(metric for row, _ in rows for metric in row.accuracy))
    tenths = all(round(value, 1) == value for row, _ in rows for value in row.accuracy.values())
    decimals = 1 if tenths else 2  # as many as are published
    lines = []
    for row, variant in rows:
        runs = [results.get(job_key(variant.config(task, seed))) for seed in seeds]
        whole = [run for run in runs if run is not None and not run.diverged]
        state = f"{len(whole)}" if whole else "diverged" if any(runs) else NOT_RUN
        cells = (_cell(row, metric, whole, rule, decimals) for metric in metrics)
        lines.append((row.variant, row.source, state, *cells))
    notes = dict.fromkeys(f"{row.variant}, {row.source}: {row.note}." for row, _ in rows if row.note)
    caption = (
        "Accuracy in %: published → measured here (difference in points); ± is the standard deviation over runs. A single "
        f"number is the published one of a variant that was {NOT_RUN}. Thirds by each run's own ranking, groups of classes by "
        f"their number of training samples. Epoch of the own runs: {rule.meaning}."
    )
    heads = ("variant", "published in", "runs", *(metric.removeprefix("class ") for metric in metrics))
    return Table(f"{task.name}: published numbers", " ".join([caption, *notes]), heads, tuple(lines))


def _cell(row: Published, metric: str, runs: Sequence[Result], rule: EpochRule, decimals: int) -> str:
    if metric not in row.accuracy:
        return "–"
    known = row.accuracy[metric]
    published = f"{known:.{decimals}f}" + (f" ± {row.std[metric]:.2f}" if metric in row.std else "")
    if not runs:
        return published
    own = 100 * np.array([measured(run, metric, rule) for run in runs])
    spread = f" ± {own.std(ddof=1):.2f}" if len(own) > 1 else ""
    return f"{published} → {own.mean():.{decimals}f}{spread} ({own.mean() - known:+.{decimals}f})"


def measured(result: Result, metric: str, rule: EpochRule = RULES["last"]) -> float:
    """The accuracy of a run that a published number is of, see :class:`~classgap.suites.Published`."""
    correct = np.asarray(rule.pick(result).test_correct, float)
    accuracy = divide(correct, result.support)
    if metric == "overall":
        return float(correct.sum() / result.support.sum())
    if metric in THIRDS:
        return float(evaluate(accuracy[result.support > 0], (metric,))[0])
    name = metric.removeprefix("class ")
    if name != metric:
        if name not in result.class_names:
            raise InputError(f"a number is published of class {name!r}, but {result.name} has no such class")
        return float(accuracy[result.class_names.index(name)])
    group = by_frequency(np.asarray(result.train_counts)) == FREQUENCIES.index(metric.removesuffix("-shot"))
    return float(np.nanmean(accuracy[group])) if group.any() else float("nan")
