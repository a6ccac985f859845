"""From results to tables: accuracy over seeds, and paired differences to the reference variant with a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from classgap.checks import InputError
from classgap.measure import AuditReport, Comparison, audit, compare
from classgap.measure.comparison import run_std
from classgap.measure.render.plain import deviation
from classgap.measure.statistics.groups import RANKINGS
from classgap.suites.jobs import job_key
from classgap.suites.render import Table
from classgap.suites.select import RULES, EpochRule
from classgap.suites.suite import Suite, Task, Variant
from classgap.training.config import DataConfig

if TYPE_CHECKING:
    from classgap.suites.results import Result

CONFIDENCE = 0.95
WRONG = "(another class)"  # stands for all wrong answers in the audits behind the tables
_REPLICATES = 300  # enough for the standard errors behind the intervals, which is all they are used for
_SHOWN = ("overall", "easy", "medium", "hard", "worst")
# Paired differences: heading, ranking (empty for a metric) and group.
_DIFFERENCES = (
    ("overall", "", "overall"),
    ("hard, own ranking", "own", "hard"),
    ("hard, reference ranking", "reference", "hard"),
    ("hard, cross-fitted", "cross", "hard"),
    ("easy, cross-fitted", "cross", "easy"),
)


@dataclass(frozen=True, eq=False)
class Row:
    """All finished runs of one variant on one task, at the epochs a rule chose.

    Attributes:
        data: Settings of the data apart from augmentation, and the hash of the split they gave.
        seeds: Of the runs that did not diverge.
        reports: Their audits on the test set, in which every wrong answer is the class ``WRONG``.
        train_accuracy: Of each run, in its last epoch, in training mode and so under augmentation.
    """

    task: Task
    variant: Variant
    data: tuple[DataConfig, str]
    seeds: tuple[int, ...]
    reports: tuple[AuditReport, ...]
    train_accuracy: tuple[float, ...]
    diverged: int

    def mean(self, metric: str) -> tuple[float, float]:
        """Mean over seeds of a metric, and half its t-interval (nan for a single seed)."""
        return mean_interval([report.metrics[metric].value for report in self.reports])

    def std(self, metric: str) -> float:
        """Standard deviation of a metric over the runs, with divisor runs - 1; nan for a single run."""
        return run_std([report.metrics[metric].value for report in self.reports])


@dataclass(frozen=True, eq=False)
class TaskTables:
    """What there is to say of one task."""

    task: Task
    rows: tuple[Row, ...]
    comparisons: Mapping[str, Comparison]
    accuracy: Table
    differences: Table


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Mean and half of Student's interval.

    Example:
        >>> [round(x, 3) for x in mean_interval([0.5, 0.6, 0.7])]
        [0.6, 0.248]
    """
    from scipy.special import stdtrit

    count = len(values)
    if count < 2:
        return (float(values[0]) if count else math.nan), math.nan
    half = float(stdtrit(count - 1, (1 + confidence) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return float(np.mean(values)), half


def suite_tables(
    suite: Suite,
    results: Mapping[str, Result],
    *,
    rule: EpochRule = RULES["last"],
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
) -> list[TaskTables]:
    """Two tables for each task that has results.

    Args:
        results: By key, as :func:`~classgap.suites.read_results` gives them.
        only: Patterns of ``TASK/VARIANT``; the reference variant is always shown.
    """
    wanted = {(task.name, variant.name) for task, variant in suite.pairs(only)}
    wanted |= {(task, suite.reference) for task, _ in wanted}
    tables = []
    for task in suite.tasks:
        variants = [v for v in suite.variants if v.joins(task) and (task.name, v.name) in wanted]
        found = (_row(suite, task, variant, results, rule, seeds) for variant in variants)
        if rows := tuple(row for row in found if row is not None):
            tables.append(_task_tables(suite, task, rows, rule))
    return tables


def _row(
    suite: Suite,
    task: Task,
    variant: Variant,
    results: Mapping[str, Result],
    rule: EpochRule,
    seeds: Sequence[int] | None,
) -> Row | None:
    found = {}
    for seed in suite.seeds if seeds is None else seeds:
        if (result := results.get(job_key(variant.config(task, seed)))) is not None:
            found[seed] = result
    if not found:
        return None
    made_on = {(dataclasses.replace(r.config.data, augment=None), r.split_hash) for r in found.values()}
    if len(made_on) > 1:
        raise InputError(_other_data(f"{task.name}/{variant.name}", (split for _, split in made_on)))
    whole = {seed: result for seed, result in found.items() if not result.diverged}
    return Row(
        task,
        variant,
        made_on.pop(),
        tuple(whole),
        tuple(_report(result, rule) for result in whole.values()),
        tuple(_number(result.curve["train_accuracy"][-1]) for result in whole.values()),
        len(found) - len(whole),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _other_data(name: str, splits: Iterable[str]) -> str:
    return (
        f"results of {name} were made on different data (splits {', '.join(sorted(splits))}), so samples cannot be paired; "
        "remove the lines with the stale split_hash from the results and run those jobs again"
    )


def _report(result: Result, rule: EpochRule) -> AuditReport:
    """The audit of a run. Archived runs do not say which wrong class was predicted, so all wrong answers share a class."""
    predictions = np.where(result.right(rule.pick(result)), result.y_true, len(result.class_names))
    names = (*result.class_names, WRONG)
    return audit(result.y_true, predictions, class_names=names, confidence=CONFIDENCE, n_boot=100)


def _task_tables(suite: Suite, task: Task, rows: tuple[Row, ...], rule: EpochRule) -> TaskTables:
    reference = next((row for row in rows if row.variant.name == suite.reference and row.reports), None)
    comparisons = {}
    if reference is not None:
        for row in rows:
            if row is not reference and row.reports:
                if row.data[0] == reference.data[0] and row.data != reference.data:
                    raise InputError(_other_data(task.name, (reference.data[1], row.data[1])))
                comparisons[row.variant.name] = compare(reference.reports, row.reports, n_boot=_REPLICATES)
    return TaskTables(
        task,
        rows,
        comparisons,
        _accuracy_table(task, rows, rule),
        _difference_table(suite, task, rows, comparisons, rule),
    )


def _accuracy_table(task: Task, rows: Sequence[Row], rule: EpochRule) -> Table:
    lines = []
    for row in rows:
        cells = [cell for metric in _SHOWN for cell in (_plus_minus(*row.mean(metric)), deviation(row.std(metric)))]
        lines.append((row.variant.name, _runs(row), *cells, _plus_minus(*mean_interval(row.train_accuracy))))
    caption = (
        f"Test accuracy in %, mean ± half the {CONFIDENCE:.0%} t-interval over seeds ({_seeds(rows)}); std is the standard "
        f"deviation over the runs (divisor runs − 1). Thirds by each run's own ranking. Epoch: {rule.meaning}. Training accuracy "
        "is that of the last epoch, under augmentation."
    )
    heads = [head for metric in _SHOWN for head in (metric, f"{metric} std")]
    return Table(f"{task.name}: accuracy", caption, ("variant", "runs", *heads, "training"), tuple(lines), best=_SHOWN)


def _difference_table(
    suite: Suite, task: Task, rows: Sequence[Row], comparisons: Mapping[str, Comparison], rule: EpochRule
) -> Table:
    lines = []
    for row in rows:
        if (found := comparisons.get(row.variant.name)) is None:
            continue
        cells = []
        for _, ranking, group in _DIFFERENCES:
            delta = (found.groups[ranking][group] if ranking else found.metrics[group]).delta
            cells.append(difference(delta.value, delta.low, delta.high))
        lines.append((row.variant.name, _runs(row), *cells, found.verdict.title))
    seeds = max((len(row.seeds) for row in rows), default=0)
    over = "samples and seeds" if seeds > 1 else "samples only, not over training runs"
    caption = (
        f"Difference to {suite.reference} in points, same test samples, with {CONFIDENCE:.0%} interval over {over} "
        f"({_seeds(rows)}); ↑ ↓ where it excludes 0. The verdict uses the cross-fitted thirds and is corrected for four tests "
        f"per row, not for the number of rows: of many variants a few look different by chance. Reference ranking: "
        f"{RANKINGS['reference']}. Epoch: {rule.meaning}."
    )
    heads = ("variant", "runs", *(heading for heading, _, _ in _DIFFERENCES), "verdict")
    return Table(f"{task.name}: difference to {suite.reference}", caption, heads, tuple(lines))


def _seeds(rows: Sequence[Row]) -> str:
    seeds = sorted({seed for row in rows for seed in row.seeds})
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]}–{seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds)) or 'none'}"


def _runs(row: Row) -> str:
    return f"{len(row.reports)}" + (f" + {row.diverged} diverged" if row.diverged else "")


def _plus_minus(value: float, half: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{100 * value:.1f}" + ("" if math.isnan(half) else f" ± {100 * half:.1f}")


def difference(value: float, low: float, high: float) -> str:
    """A difference in points with its interval and an arrow where the interval excludes 0.

    Example:
        >>> difference(0.012, 0.002, 0.022), difference(-0.001, -0.01, 0.008)
        ('+1.2 [+0.2, +2.2] ↑', '-0.1 [-1.0, +0.8]')
    """
    from classgap.measure.render.plain import points

    if math.isnan(value):
        return "–"
    arrow = " ↑" if low > 0 else " ↓" if high < 0 else ""
    return f"{points(value)} [{points(low)}, {points(high)}]{arrow}"
