"""Published numbers beside the own ones: a table for each task of a suite that has any."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from classgap.arrays import divide
from classgap.checks import InputError
from classgap.measure.statistics.groups import FREQUENCIES, THIRDS, by_frequency
from classgap.measure.statistics.metrics import evaluate
from classgap.suites.jobs import job_key
from classgap.suites.measures import QUANTITIES
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
    variants = {(task.name, variant.name): variant for task, variant in suite.pairs(only)}
    for task in suite.tasks:
        rows = []
        for row in suite.published:
            variant = variants.get((task.name, row.variant))
            if row.task == task.name and (variant is not None or (row.absent and fits(row, only))):
                rows.append(_Line(row, *_runs(task, variant, results, suite.seeds if seeds is None else seeds)))
        if accuracies := [line for line in rows if line.row.accuracy]:
            tables.append(_accuracies(suite, task, accuracies, rule))
        if measures := [line for line in rows if line.row.measures]:
            tables.append(_measures(suite, task, measures))
    return tables


def fits(row: Published, only: Sequence[str]) -> bool:
    """Whether the row is one of those asked for."""
    return not only or any(fnmatch.fnmatchcase(f"{row.task}/{row.variant}", pattern) for pattern in only)


@dataclass(frozen=True)
class _Line:
    """A published row, whether its runs are there, and those that did not diverge."""

    row: Published
    state: str
    runs: Sequence[Result]


def _runs(
    task: Task, variant: Variant | None, results: Mapping[str, Result], seeds: Sequence[int]
) -> tuple[str, Sequence[Result]]:
    if variant is None:
        return NOT_RUN, ()
    runs = [results.get(job_key(variant.config(task, seed))) for seed in seeds]
    whole = [run for run in runs if run is not None and not run.diverged]
    return f"{len(whole)}" if whole else "diverged" if any(runs) else NOT_RUN, whole


def _accuracies(suite: Suite, task: Task, lines: Sequence[_Line], rule: EpochRule) -> Table:
    metrics = tuple(dict.fromkeys(metric for line in lines for metric in line.row.accuracy))
    decimals = max(1, _decimals(value for line in lines for value in line.row.accuracy.values()))

    def cell(line: _Line, metric: str) -> str:
        own = [100 * measured(run, metric, rule) for run in line.runs]
        return _cell(line.row.accuracy.get(metric), own, decimals, line.row.std.get(metric))

    caption = (
        "Accuracy in %: published → measured here (difference in points); ± is the standard deviation over runs. A single "
        f"number is the published one of a variant that was {NOT_RUN}. Thirds by each run's own ranking, groups of classes by "
        f"their number of training samples. Epoch of the own runs: {rule.meaning}."
    )
    return _table(f"{task.name}: published numbers", caption + _how_to_run(suite, task, lines), lines, metrics, cell)


def _measures(suite: Suite, task: Task, lines: Sequence[_Line]) -> Table:
    metrics = tuple(dict.fromkeys(metric for line in lines for metric in line.row.measures))

    def cell(line: _Line, metric: str) -> str:
        found = [run.measures.get(metric) for run in line.runs]
        decimals = _decimals(other.row.measures[metric] for other in lines if metric in other.row.measures)
        return _cell(line.row.measures.get(metric), [value for value in found if value is not None], decimals)

    meanings = {name: QUANTITIES[name].meaning for name in dict.fromkeys(m.partition(", ")[0] for m in metrics)}
    caption = (
        f"{'; '.join(f'{name}: {meaning}' for name, meaning in meanings.items())}. Published → measured here on the test set "
        "after the last epoch (difference); ± is the standard deviation over runs. A single number is the published one of a "
        f"variant that was {NOT_RUN}, or was run before this was measured. Groups are means over classes."
    )
    return _table(f"{task.name}: published measures", caption + _how_to_run(suite, task, lines), lines, metrics, cell)


def _how_to_run(suite: Suite, task: Task, lines: Sequence[_Line]) -> str:
    """Command and cost of the rows that could be run and were not."""
    if not task.cost or all(line.state != NOT_RUN or line.row.absent for line in lines):
        return ""
    return (
        f' Command of a row that was {NOT_RUN}: classgap bench {suite.name} --only "{task.name}/VARIANT" --seeds 0. A run of '
        f"cross-entropy needs {task.cost} (an estimate); methods with several views or stages need more."
    )


def _table(
    title: str, caption: str, lines: Sequence[_Line], metrics: Sequence[str], cell: Callable[[_Line, str], str]
) -> Table:
    rows = tuple(
        (line.row.variant, line.row.source, line.state, *(cell(line, metric) for metric in metrics)) for line in lines
    )
    notes = [
        f"{row.variant}, {row.source}: {note}."
        for row in (line.row for line in lines)
        if (note := row.note or row.absent)
    ]
    heads = ("variant", "published in", "runs", *(metric.removeprefix("class ") for metric in metrics))
    return Table(title, " ".join([caption, *dict.fromkeys(notes)]), heads, rows)


def _decimals(values: Iterable[float]) -> int:
    """As many as are published."""
    return max(len(f"{value:.6g}".partition(".")[2]) for value in values)


def _cell(known: float | None, own: Sequence[float], decimals: int, std: float | None = None) -> str:
    if known is None:
        return "–"
    published = f"{known:.{decimals}f}" + (f" ± {std:.2f}" if std is not None else "")
    if not own:
        return published
    spread = f" ± {np.std(own, ddof=1):.{max(2, decimals)}f}" if len(own) > 1 else ""
    mean = float(np.mean(own))
    return f"{published} → {mean:.{decimals}f}{spread} ({mean - known:+.{decimals}f})"


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
