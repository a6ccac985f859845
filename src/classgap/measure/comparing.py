"""``compare``: from predictions before and after a change to a :class:`Comparison`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from classgap import checks
from classgap.arrays import Float64s, Ints, divide
from classgap.checks import InputError
from classgap.measure.audit_report import AuditReport
from classgap.measure.auditing import audit
from classgap.measure.comparison import Change, Comparison, run_std
from classgap.measure.pairing import Side, audited_sides, common_classes, read_run, same_samples, several_runs
from classgap.measure.render.plain import structured
from classgap.measure.statistics import groups
from classgap.measure.statistics.cells import Cells
from classgap.measure.statistics.class_changes import ClassChanges, class_changes
from classgap.measure.statistics.false_discovery import benjamini_hochberg
from classgap.measure.statistics.groups import THIRDS, Remainder
from classgap.measure.statistics.metric_changes import SMALL_ALONE, many_small, metric_changes
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate
from classgap.measure.statistics.pooling import Pooled, group_changes
from classgap.measure.verdict import any_change, judge
from classgap.named import in_class_order
from classgap.predictions import Columns
from classgap.predictions.files import count_two
from classgap.predictions.tables import is_frame


def compare(
    before: Side,
    after: Side,
    *,
    columns: Columns | None = None,
    class_names: Sequence[str] | None = None,
    common: bool = False,
    confidence: float | None = None,
    seed: int = 0,
    reference: ArrayLike | None = None,
    n_boot: int = 1000,
    remainder: Remainder = "first",
) -> Comparison:
    """Which classes improved or got worse between two models, with significance.

    Args:
        before, after: Predictions, audits, prediction files (as paths) or tables of the same samples: one each, or a sequence
            with one per training seed. Rows are matched by ``columns.id`` if it is given, otherwise by their order. Two tables
            of labels in files or in the same engine (polars ``LazyFrame``, DuckDB, PySpark, Dask) are joined and counted there.
        columns: Names of the columns or arrays in files and tables; those not given are found by their usual names.
        class_names: Names in class order, for files and tables.
        common: Compare only the samples that all runs have, matched by ``columns.id``. By default runs on different samples are
            refused.
        confidence: Confidence level of the intervals; by default that of the first audit. ``1 - confidence`` is the false
            discovery rate of the classes called significant.
        seed: Random seed.
        reference: One number per class whose order defines the thirds of ``groups["reference"]``, from other data; without
            it the accuracies *before* define the order.
        n_boot: Number of random exchanges of before and after for the intervals of ranked metrics.
    Example:
        >>> from classgap import audit
        >>> y = [0, 0, 0, 1, 1, 1] * 20
        >>> c = compare(audit(y, [0, 0, 0, 1, 0, 0] * 20), audit(y, [0, 0, 0, 1, 1, 0] * 20))
        >>> c.verdict.kind, round(float(c.per_class["delta"][1]), 2)
        ('closed', 0.33)
    """
    options: dict[str, Any] = {"confidence": confidence, "seed": seed, "reference": reference}
    options |= {"n_boot": n_boot, "remainder": remainder}
    given = several_runs(before), several_runs(after)
    columns = columns or Columns()
    if (
        not common
        and len(given[0]) == len(given[1]) == 1
        and all(isinstance(run, (str, Path)) or is_frame(run) for (run,) in given)
    ):
        counted = count_two(given[0][0], given[1][0], columns, class_names=class_names)
        if counted is not None:
            reports = [audit(found, confidence=confidence or 0.95, seed=seed) for found in counted[:2]]
            return compare_counts(reports[0], reports[1], counted[2], **options)
    read = [[read_run(run, columns, class_names) for run in side] for side in given]
    sides = audited_sides(read[0], read[1], confidence or 0.95, seed, common)
    classes = common_classes(sides[0] + sides[1])
    y_true, predictions = same_samples(sides[0] + sides[1], classes)
    split = len(sides[0])
    cells = Cells.from_samples(y_true, predictions[:split], predictions[split:], len(classes))
    return _assemble(sides, classes, cells, confidence, seed, reference, n_boot, remainder)


def compare_counts(
    before: AuditReport,
    after: AuditReport,
    tables: ArrayLike,
    *,
    confidence: float | None = None,
    seed: int = 0,
    reference: ArrayLike | None = None,
    n_boot: int = 1000,
    remainder: Remainder = "first",
) -> Comparison:
    """The comparison without samples, from one 2×2 table per class.

    Args:
        tables: ``(K, 2, 2)`` counts: ``tables[k, b, a]`` samples of class k that *before* predicted correctly (b = 1) or not
            (b = 0) and that *after* predicted correctly (a = 1) or not (a = 0).
    """
    counts = np.asarray(tables)
    if before.classes != after.classes:
        raise InputError("before and after must have the same classes in the same order")
    if counts.shape != (before.num_classes, 2, 2) or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise InputError(f"tables must be ({before.num_classes}, 2, 2) counts, got {counts.shape} of {counts.dtype}")
    for name, report, right in (("before", before, counts[:, 1].sum(1)), ("after", after, counts[:, :, 1].sum(1))):
        total = counts.sum((1, 2))
        if (total != report.confusion.support).any() or (right != report.confusion.correct).any():
            raise InputError(
                f"tables must add up to the counts of {name}, but do not; check that both describe the same samples"
            )
    cells = Cells.from_tables(counts.astype(np.int64))
    return _assemble(((before,), (after,)), before.classes, cells, confidence, seed, reference, n_boot, remainder)


def _assemble(
    sides: tuple[tuple[AuditReport, ...], tuple[AuditReport, ...]],
    classes: tuple[str, ...],
    cells: Cells,
    confidence: float | None,
    seed: int,
    reference: ArrayLike | None,
    n_boot: int,
    remainder: Remainder,
) -> Comparison:
    confidence = sides[0][0].confidence if confidence is None else checks.fraction("confidence", confidence)
    rng = np.random.default_rng(checks.whole("seed", seed, low=0))
    metrics = _metrics(
        sides, cells, confidence, checks.whole("n_boot", n_boot, low=100, high=checks.MOST_DRAWS), rng, remainder
    )
    ranking = divide(cells.class_sum(cells.before), cells.support)
    own_groups = groups.thirds(ranking, remainder)
    fixed = own_groups
    if reference is not None:
        ranks = in_class_order("reference", reference, classes)
        fixed = groups.thirds(checks.float_vector("reference", ranks, length=len(classes)), remainder)
    weight = groups.membership(fixed, cells.support > 0)
    tested = judged_changes(cells, confidence, rng, remainder)
    by_seed = np.where(weight.any(axis=1, keepdims=True), weight @ np.nan_to_num(cells.accuracy), np.nan)
    referred = dict(zip(THIRDS, group_changes(cells, weight**2, by_seed), strict=True))
    per_class = _per_class(classes, cells, own_groups, tested, confidence)
    return Comparison(
        classes=classes,
        num_samples=int(cells.support.sum()),
        confidence=confidence,
        seed=seed,
        before=sides[0],
        after=sides[1],
        metrics=metrics,
        groups={
            "own": {name: metrics[name] for name in THIRDS},
            "reference": _changes(referred, by_seed, cells, confidence),
            "cross": _changes(tested.crossed, tested.means, cells, confidence),
        },
        per_class=per_class,
        verdict=judge(
            tested.judged,
            tested.hard_minus_easy,
            metrics,
            per_class,
            confidence,
            changed=tested.changed,
            one_run=cells.paired_once,
        ),
        method=_method(cells),
        notes=tuple(_notes(cells, reference is not None)),
    )


@dataclass(frozen=True, eq=False)
class JudgedChanges:
    """The changes that a verdict is about.

    Attributes:
        crossed: Third → view → change, by the cross-fitted ranking; ``means`` are their accuracies in every run.
        hard_minus_easy: Change of the hard third minus that of the easy third.
        judged: Overall accuracy and thirds, the means that are tested.
        by_class: Changes of single classes; ``q_value`` are their p-values after Benjamini-Hochberg correction.
        changed: Whether anything changed (:func:`~classgap.measure.verdict.any_change`); otherwise nothing is claimed.
    """

    crossed: Mapping[str, Mapping[str, Pooled]]
    means: Float64s
    hard_minus_easy: Pooled
    judged: Mapping[str, Pooled]
    by_class: ClassChanges
    q_value: Float64s
    changed: bool


def judged_changes(cells: Cells, confidence: float, rng: np.random.Generator, remainder: Remainder) -> JudgedChanges:
    """The tests of a comparison, without its intervals of ranked metrics."""
    fit = groups.cross_fit(
        cells.class_of, cells.count, cells.before, cells.right, cells.num_classes, rng=rng, remainder=remainder
    )
    crossed = dict(zip(THIRDS, group_changes(cells, fit.squared, fit.means), strict=True))
    hard_minus_easy = group_changes(cells, fit.squared[2:] + fit.squared[:1], fit.means[2:] - fit.means[:1])[0]["delta"]
    share = cells.support / cells.support.sum()
    overall = group_changes(cells, share[None] ** 2, share[None] @ np.nan_to_num(cells.accuracy))[0]["delta"]
    judged = {"overall": overall, **{name: views["delta"] for name, views in crossed.items()}}
    by_class = class_changes(cells, confidence)
    q_value = benjamini_hochberg(by_class.p_value)
    changed = any_change(judged.values(), q_value, confidence)
    return JudgedChanges(crossed, fit.means, hard_minus_easy, judged, by_class, q_value, changed)


def _metrics(
    sides: tuple[tuple[AuditReport, ...], tuple[AuditReport, ...]],
    cells: Cells,
    confidence: float,
    n_boot: int,
    rng: np.random.Generator,
    remainder: Remainder,
) -> dict[str, Change]:
    """Changes of all metrics; with one run per side, before and after are the reports' own estimates, unless the thirds of the
    reports are divided otherwise (``remainder``)."""
    changes = {}
    by_run = _metrics_of_runs(cells, remainder)
    found = metric_changes(cells, n_boot=n_boot, confidence=confidence, rng=rng, remainder=remainder)
    for name, change in found.items():
        levels = change.before, change.after
        if cells.paired_once and confidence == sides[0][0].confidence == sides[1][0].confidence:
            reported = sides[0][0].metrics[name], sides[1][0].metrics[name]
            if np.allclose([e.value for e in reported], by_run[name], equal_nan=True):
                levels = reported
        changes[name] = Change(*levels, change.delta.at(confidence), *_run_stds(by_run[name], cells))
    return changes


def _changes(
    groups_of: Mapping[str, Mapping[str, Pooled]], by_run: Float64s, cells: Cells, confidence: float
) -> dict[str, Change]:
    """Changes of groups of classes; ``by_run`` (groups, runs) holds the accuracies of the groups in each run."""
    pairs = zip(groups_of.items(), by_run, strict=True)
    return {name: _change(views, confidence, _run_stds(values, cells)) for (name, views), values in pairs}


def _change(views: Mapping[str, Pooled], confidence: float, stds: tuple[float, float]) -> Change:
    before, after = (views[view].at(confidence, low=0.0) for view in ("before", "after"))
    return Change(before, after, views["delta"].at(confidence), *stds)


def _metrics_of_runs(cells: Cells, remainder: Remainder) -> dict[str, Float64s]:
    """Every metric of every run, ``(S,)`` each, by the own ranking of the run."""
    present = cells.support > 0
    accuracy = cells.accuracy[present].T
    overall = accuracy @ (cells.support[present] / cells.support.sum())
    return {"overall": overall, **dict(zip(FROM_ACCURACY, evaluate(accuracy, remainder=remainder).T, strict=True))}


def _run_stds(by_run: Float64s, cells: Cells) -> tuple[float, float]:
    """Standard deviations over the runs before and over the runs after."""
    return run_std(by_run[: cells.num_before]), run_std(by_run[cells.num_before :])


def _per_class(classes: tuple[str, ...], cells: Cells, group: Ints, tested: JudgedChanges, confidence: float) -> Any:
    changes, q_value = tested.by_class, tested.q_value
    return structured(
        {
            "name": np.array(classes),
            "support": cells.support,
            "before": divide(cells.class_sum(cells.before), cells.support),
            "after": divide(cells.class_sum(cells.after), cells.support),
            "delta": changes.delta,
            "low": changes.low,
            "high": changes.high,
            "gained": changes.gained,
            "lost": changes.lost,
            "p_value": changes.p_value,
            "q_value": q_value,
            "significant": tested.changed & (np.nan_to_num(q_value, nan=1.0) <= 1 - confidence),
            "group": np.array([*THIRDS, ""])[group],
        }
    )


def _method(cells: Cells) -> str:
    ranked = "random exchange of before and after for ranked metrics, Benjamini-Hochberg over classes"
    if cells.paired_once:
        return f"exact McNemar test with mid-p per class; {ranked}"
    return (
        f"{cells.num_before} runs before, {cells.num_after} after: sampling variance plus variance between seeds "
        f"(Student's t); {ranked}"
    )


def _notes(cells: Cells, given_reference: bool) -> list[str]:
    notes = []
    if cells.paired_once:
        notes.append(
            "one run per side: the intervals include the choice of test samples, but not the variation between training seeds; "
            "pass several runs per side to include it"
        )
    elif min(cells.num_before, cells.num_after) == 1:
        notes.append("one side has a single run; the variance between seeds is estimated from the other side")
    if not given_reference:
        notes.append(
            "the reference ranking uses the accuracies before on the same samples: even if only the training seed changes, its "
            "hard third seems to improve and its easy third to get worse (regression to the mean); the verdict uses the "
            "cross-fitted thirds"
        )
    sizes = cells.support[cells.support > 0]
    if (small := int((sizes < SMALL_ALONE).sum())) > 0:
        which = "any third, the worst class" if many_small(sizes) else "the worst class"
        notes.append(
            f"{small} class{'es have' if small > 1 else ' has'} fewer than {SMALL_ALONE} samples, too few to determine the "
            f"change of {which}, the worst tenth and the gap; therefore the intervals of these changes are wide"
        )
    if many_small(sizes):
        notes.append(
            "the cross-fitted thirds are ranked by so few samples that they differ from the true thirds; their changes are "
            "closer to the change of the balanced accuracy than those of the true thirds"
        )
    if (absent := int((cells.support == 0).sum())) > 0:
        notes.append(f"{absent} class{'es have' if absent > 1 else ' has'} no samples and cannot be compared")
    return notes
