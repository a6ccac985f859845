"""From audits before and after a change to a :class:`Comparison`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from classgap import checks
from classgap.arrays import Float64s, Ints, divide
from classgap.checks import InputError
from classgap.measure.audit_report import AuditReport, Estimate
from classgap.measure.auditing import audit
from classgap.measure.comparison import Change, Comparison, Verdict, run_std
from classgap.measure.render.plain import points, structured
from classgap.measure.statistics import groups
from classgap.measure.statistics.groups import THIRDS, Remainder
from classgap.measure.statistics.metrics import FROM_ACCURACY, evaluate
from classgap.measure.statistics.paired import (
    SMALL,
    SMALL_ALONE,
    Cells,
    Pooled,
    benjamini_hochberg,
    class_changes,
    group_changes,
    metric_changes,
)
from classgap.predictions import Columns, Predictions, Progress, align
from classgap.predictions.files import count_two_tables
from classgap.predictions.frames import is_frame

Side = Any
"""Predictions, an audit, the path of a prediction file or a table; or a sequence of one of these, one per training seed."""


def compare(
    before: Side,
    after: Side,
    *,
    columns: Columns | None = None,
    class_names: Sequence[str] | None = None,
    confidence: float | None = None,
    seed: int = 0,
    reference: ArrayLike | None = None,
    n_boot: int = 1000,
    remainder: Remainder = "first",
    progress: Progress | None = None,
) -> Comparison:
    """Which classes improved or got worse between two models, with significance.

    Args:
        before, after: Predictions, audits, prediction files (as paths) or tables of the same samples: one each, or a sequence
            with one per training seed. Rows are matched by ``columns.id`` where it is given, otherwise by their order.
        columns: Names of the columns or arrays in files and tables; what is left open is guessed.
        class_names: Names in class order, for files and tables.
        confidence: Confidence level of the intervals; that of the first audit unless given. One minus it is the rate
            of false discoveries among the classes called significant.
        seed: Random seed.
        reference: One number per class whose order defines the thirds of ``groups["reference"]``, from other data; without
            it the accuracies *before* rank the classes.
        n_boot: Number of random exchanges of before and after behind the intervals of ranked metrics.
        progress: Called with (rows done, rows in total) while tables are counted.
    Example:
        >>> from classgap import audit
        >>> y = [0, 0, 0, 1, 1, 1] * 20
        >>> c = compare(audit(y, [0, 0, 0, 1, 0, 0] * 20), audit(y, [0, 0, 0, 1, 1, 0] * 20))
        >>> c.verdict.kind, round(float(c.per_class["delta"][1]), 2)
        ('closed', 0.33)
    """
    options: dict[str, Any] = {"confidence": confidence, "seed": seed, "reference": reference}
    options |= {"n_boot": n_boot, "remainder": remainder}
    given = _several(before), _several(after)
    columns = columns or Columns()
    if len(given[0]) == len(given[1]) == 1 and all(isinstance(side[0], (str, Path)) for side in given):
        counted = count_two_tables(given[0][0], given[1][0], columns, class_names=class_names, progress=progress)
        if counted is not None:
            reports = [audit(found, confidence=confidence or 0.95, seed=seed) for found in counted[:2]]
            return compare_counts(reports[0], reports[1], counted[2], **options)
    read = [[_read(run, columns, class_names) for run in side] for side in given]
    sides = _audited(read[0], read[1], confidence or 0.95, seed)
    classes = _common_classes(sides[0] + sides[1])
    y_true, predictions = _same_samples(sides[0] + sides[1], classes)
    split = len(sides[0])
    cells = Cells.from_samples(y_true, predictions[:split], predictions[split:], len(classes))
    return _assemble(sides, classes, cells, confidence, seed, reference, n_boot, remainder)


def _several(side: Side) -> list[Any]:
    """One side of a comparison as a list of runs."""
    runs = list(side) if isinstance(side, (list, tuple)) else [side]
    if not runs:
        raise InputError("a side of the comparison is empty; pass predictions, an audit, or a sequence of them")
    return runs


def _read(run: Any, columns: Columns, class_names: Sequence[str] | None) -> AuditReport | Predictions:
    if isinstance(run, (AuditReport, Predictions)):
        return run
    if isinstance(run, (str, Path)):
        return Predictions.read(run, columns, class_names=class_names, rows=True)
    if is_frame(run):
        return Predictions.from_frame(run, columns, class_names=class_names)
    raise InputError(
        f"a side of a comparison must be predictions, an audit, a file or a table, got {type(run).__name__}; "
        "pass audit(y_true, y_pred) for arrays"
    )


def _audited(
    before: Sequence[AuditReport | Predictions],
    after: Sequence[AuditReport | Predictions],
    confidence: float,
    seed: int,
) -> tuple[tuple[AuditReport, ...], tuple[AuditReport, ...]]:
    """Audits of both sides; predictions with sample ids are brought into one order first."""
    runs = [*before, *after]
    if all(isinstance(run, Predictions) for run in runs):
        runs = list(align([run for run in runs if isinstance(run, Predictions)]))
    reports = tuple(
        run if isinstance(run, AuditReport) else audit(run.labels_only(), confidence=confidence, seed=seed)
        for run in runs
    )
    for report in reports:
        if report.samples is None:
            raise InputError(
                "predictions of which only counts are known cannot be paired; pass the samples, or use compare_counts"
            )
    return reports[: len(before)], reports[len(before) :]


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
    """The same without the samples, from one 2×2 table per class.

    Args:
        tables: ``(K, 2, 2)`` counts: ``tables[k, b, a]`` samples of class k that *before* had right (b = 1) or wrong
            (b = 0) and *after* right (a = 1) or wrong (a = 0).
    """
    counts = np.asarray(tables)
    if before.classes != after.classes:
        raise InputError("before and after must have the same classes in the same order")
    if counts.shape != (before.num_classes, 2, 2) or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise InputError(f"tables must be ({before.num_classes}, 2, 2) counts, got {counts.shape} of {counts.dtype}")
    for name, report, right in (("before", before, counts[:, 1].sum(1)), ("after", after, counts[:, :, 1].sum(1))):
        total = counts.sum((1, 2))
        if (total != report.confusion.support).any() or (right != report.confusion.correct).any():
            raise InputError(f"tables do not add up to the counts of {name}; are they of the same samples?")
    cells = Cells.from_tables(counts.astype(np.int64))
    return _assemble(((before,), (after,)), before.classes, cells, confidence, seed, reference, n_boot, remainder)


def _common_classes(reports: Sequence[AuditReport]) -> tuple[str, ...]:
    """All class names; a class one model never predicts may be unknown to its report."""
    return tuple(dict.fromkeys(name for report in reports for name in report.classes))


def _same_samples(reports: Sequence[AuditReport], classes: tuple[str, ...]) -> tuple[Ints, list[Ints]]:
    place = {name: k for k, name in enumerate(classes)}
    y_true: Ints | None = None
    predictions = []
    for report in reports:
        samples = report.samples
        assert samples is not None  # checked by _audited
        code = np.array([place[name] for name in report.classes])
        truth = code[samples.y_true]
        if y_true is None:
            y_true = truth
        elif len(truth) != len(y_true):
            raise InputError(
                f"before and after must be of the same samples, got {len(y_true)} and {len(truth)} of them"
            )
        elif (truth != y_true).any():
            rows = np.flatnonzero(truth != y_true)
            raise InputError(
                "before and after must be of the same samples in the same order, but y_true differs in "
                f"{len(rows)} of {len(truth)} rows (first: row {rows[0]}); sort both by a sample id"
            )
        predictions.append(code[samples.y_pred])
    assert y_true is not None
    return y_true, predictions


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
    metrics = _metrics(sides, cells, confidence, checks.whole("n_boot", n_boot, low=100), rng, remainder)
    ranking = divide(cells.class_sum(cells.before), cells.support)
    own_groups = groups.thirds(ranking, remainder)
    fixed = own_groups
    if reference is not None:
        fixed = groups.thirds(checks.float_vector("reference", reference, length=len(classes)), remainder)
    weight = groups.membership(fixed, cells.support > 0)
    fit = groups.cross_fit(
        cells.class_of, cells.count, cells.before, cells.right, len(classes), rng=rng, remainder=remainder
    )
    crossed = dict(zip(THIRDS, group_changes(cells, fit.squared, fit.means), strict=True))
    hard_minus_easy = group_changes(cells, fit.squared[2:] + fit.squared[:1], fit.means[2:] - fit.means[:1])[0]["delta"]
    by_seed = np.where(weight.any(axis=1, keepdims=True), weight @ np.nan_to_num(cells.accuracy), np.nan)
    referred = dict(zip(THIRDS, group_changes(cells, weight**2, by_seed), strict=True))
    per_class = _per_class(classes, cells, own_groups, confidence)
    share = cells.support / cells.support.sum()
    overall = group_changes(cells, share[None] ** 2, share[None] @ np.nan_to_num(cells.accuracy))[0]["delta"]
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
            "cross": _changes(crossed, fit.means, cells, confidence),
        },
        per_class=per_class,
        verdict=_verdict(
            overall,
            {name: views["delta"] for name, views in crossed.items()},
            hard_minus_easy,
            metrics,
            per_class,
            confidence,
            one_run=cells.paired_once,
        ),
        method=_method(cells),
        notes=tuple(_notes(cells, reference is not None)),
    )


def _metrics(
    sides: tuple[tuple[AuditReport, ...], tuple[AuditReport, ...]],
    cells: Cells,
    confidence: float,
    n_boot: int,
    rng: np.random.Generator,
    remainder: Remainder,
) -> dict[str, Change]:
    """Changes of all metrics; with one run per side, before and after are the reports' own estimates."""
    changes = {}
    by_run = _metrics_of_runs(cells, remainder)
    found = metric_changes(cells, n_boot=n_boot, confidence=confidence, rng=rng, remainder=remainder)
    for name, change in found.items():
        levels = change.before, change.after
        if cells.paired_once and confidence == sides[0][0].confidence == sides[1][0].confidence:
            levels = sides[0][0].metrics[name], sides[1][0].metrics[name]
        changes[name] = Change(*levels, change.delta.at(confidence), *_run_stds(by_run[name], cells))
    return changes


def _changes(
    groups_of: Mapping[str, Mapping[str, Pooled]], by_run: Float64s, cells: Cells, confidence: float
) -> dict[str, Change]:
    """Changes of groups of classes; ``by_run`` (groups, runs) are their numbers in each run."""
    pairs = zip(groups_of.items(), by_run, strict=True)
    return {name: _change(views, confidence, _run_stds(values, cells)) for (name, views), values in pairs}


def _change(views: Mapping[str, Pooled], confidence: float, stds: tuple[float, float]) -> Change:
    before, after = (views[view].at(confidence, low=0.0) for view in ("before", "after"))
    return Change(before, after, views["delta"].at(confidence), *stds)


def _metrics_of_runs(cells: Cells, remainder: Remainder) -> dict[str, Float64s]:
    """Every metric of every run, ``(S,)`` each, under the run's own ranking."""
    present = cells.support > 0
    accuracy = cells.accuracy[present].T
    overall = accuracy @ (cells.support[present] / cells.support.sum())
    return {"overall": overall, **dict(zip(FROM_ACCURACY, evaluate(accuracy, remainder=remainder).T, strict=True))}


def _run_stds(by_run: Float64s, cells: Cells) -> tuple[float, float]:
    """Standard deviations over the runs before and over those after."""
    return run_std(by_run[: cells.num_before]), run_std(by_run[cells.num_before :])


def _per_class(classes: tuple[str, ...], cells: Cells, group: Ints, confidence: float) -> Any:
    changes = class_changes(cells, confidence)
    q_value = benjamini_hochberg(changes.p_value)
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
            "significant": q_value <= 1 - confidence,
            "group": np.array([*THIRDS, ""])[group],
        }
    )


TITLES = {
    "closed": "Closed the gap without cost",
    "better": "Better everywhere",
    "better_hard": "Better on the hard classes without cost",
    "traded": "Traded easy for hard",
    "likely_hard": "Better, probably on the hard classes too",
    "not_hard": "Better, but not shown on the hard classes",
    "elsewhere": "Better, shown on easier classes only",
    "widened": "Traded hard for easy",
    "worse": "Worse",
    "noise": "Within noise",
}
# The same where single classes, the worst class or the gap got significantly worse: nothing then is without cost.
_WITH_LOSSES = {
    "closed": "Closed the gap on average",
    "better": "Better on average",
    "better_hard": "Better on the hard classes on average",
    "noise": "Within noise on average",
}
ONE_RUN = "on these test predictions (one run per side does not judge the training method)"


def _verdict(
    overall: Pooled,
    thirds: Mapping[str, Pooled],
    narrowing: Pooled,
    metrics: Mapping[str, Change],
    per_class: Any,
    confidence: float,
    *,
    one_run: bool,
) -> Verdict:
    """One of :data:`TITLES`, from the cross-fitted thirds and the overall accuracy.

    The intervals behind it are widened (Bonferroni over these four), so that two runs of the same model are
    "within noise" with the stated confidence. Once one change is beyond doubt, the other side of a trade is believed at the
    stated confidence already: "without cost" means that no loss could be seen, and the sentence shows how large a loss the
    data would still allow. Significant losses of single classes, of the worst class and of the gap are named in the title.
    """
    strict = 1 - (1 - confidence) / 4
    judged = {"overall": overall, **thirds}
    shown = {name: pooled.at(confidence) for name, pooled in judged.items()}
    up = {name for name, pooled in judged.items() if pooled.at(strict).low > 0}
    down = {name for name, pooled in judged.items() if pooled.at(strict).high < 0}
    hard_gains, someone_pays = shown["hard"].low > 0, any(estimate.high < 0 for estimate in shown.values())
    if ("hard" in up and someone_pays) or (hard_gains and down):
        kind = "traded"
    elif "hard" in up:
        closed = narrowing.at(confidence).low > 0
        kind = "closed" if closed else "better" if "easy" in up else "better_hard"
    elif "hard" in down and up:
        kind = "widened"
    elif up and not down:
        elsewhere = "overall" not in up or shown["hard"].high < 0
        kind = "likely_hard" if hard_gains else "elsewhere" if elsewhere else "not_hard"
    else:
        kind = "worse" if down else "noise"
    short, long = _losses(metrics, per_class)
    title = TITLES[kind] if not short else f"{_WITH_LOSSES.get(kind, TITLES[kind])}; {_joined(short)} got worse"
    headline = f"{title} {ONE_RUN}" if one_run else title
    parts = [_evidence(shown, sure=up | down), *long, _tally(per_class)]
    return Verdict(kind, title, f"{headline}: {'; '.join(parts)}.", tuple(long), headline)


def _losses(metrics: Mapping[str, Change], per_class: Any) -> tuple[list[str], list[str]]:
    """What got significantly worse: in a few words, and with the numbers."""
    short, long = [], []
    lost = per_class[per_class["significant"] & (per_class["delta"] < 0)]
    if len(lost):
        largest = lost[np.argmin(lost["delta"])]
        name = str(largest["name"])
        short.append(f"class {name!r}" if len(lost) == 1 else f"{len(lost)} classes")
        which = f"class {name!r}" if len(lost) == 1 else f"of {len(lost)} classes that lost, {name!r} most:"
        long.append(f"{which} {_points(largest)} (q = {largest['q_value']:.2g})")
    worst, gap = metrics["worst"].delta, metrics["gap"].delta
    if worst.high < 0:
        short.append("the worst class")
        long.append(f"lowest class accuracy {_points(worst)}")
    if gap.low > 0:
        short.append("the gap")
        long.append(f"gap {_points(gap)}")
    return short, long


def _points(found: Any) -> str:
    """A difference with its interval, from an estimate or a record of a class."""
    if isinstance(found, Estimate):
        return f"{points(found.value)} points [{points(found.low)}, {points(found.high)}]"
    return f"{points(found['delta'])} points [{points(found['low'])}, {points(found['high'])}]"


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _evidence(shown: Mapping[str, Estimate], sure: set[str]) -> str:
    words = {"hard": "classes hard before", "easy": "classes easy before", "overall": "overall"}
    # an interval may leave out 0 where its widened form, which decides, does not: that has to be said
    doubt = {name for name, e in shown.items() if name not in sure and not e.low <= 0 <= e.high}
    parts = [
        f"{words[name]} {_points(shown[name])}"
        + (" (not significant after Bonferroni correction, 4 tests)" if name in doubt else "")
        for name in words
        if not np.isnan(shown[name].value)
    ]
    return ", ".join(parts)


def _tally(per_class: Any) -> str:
    gained = int((per_class["significant"] & (per_class["delta"] > 0)).sum())
    lost = int((per_class["significant"] & (per_class["delta"] < 0)).sum())
    if gained + lost == 0:
        return "no single class changed significantly"
    return f"{gained} class{'' if gained == 1 else 'es'} gained and {lost} lost significantly"


def _method(cells: Cells) -> str:
    ranked = "random exchange of before and after for ranked metrics, Benjamini-Hochberg over classes"
    if cells.paired_once:
        return f"exact McNemar test with mid-p per class; {ranked}"
    return (
        f"{cells.num_before} runs before, {cells.num_after} after: variance of sampling plus variance between seeds "
        f"(Student's t); {ranked}"
    )


def _notes(cells: Cells, given_reference: bool) -> list[str]:
    notes = []
    if cells.paired_once:
        notes.append(
            "one run per side: the intervals cover the choice of test samples, not how training varies from seed to seed; "
            "pass several runs to include it"
        )
    elif min(cells.num_before, cells.num_after) == 1:
        notes.append("one side has a single run; its seed variance is taken from the other side")
    if not given_reference:
        notes.append(
            "the reference ranking is that of *before* on these same samples: its hard third gains and its easy third "
            "loses even from a mere re-run (regression to the mean); the verdict uses the cross-fitted thirds"
        )
    sizes = cells.support[cells.support > 0]
    if (small := int((sizes < SMALL_ALONE).sum())) > 0:
        which = "any third, the worst class" if np.median(sizes) < SMALL else "the worst class"
        notes.append(
            f"{small} class{'es have' if small > 1 else ' has'} fewer than {SMALL_ALONE} samples, too few to say what happened "
            f"to {which}, the worst tenth or the gap, each ranked anew: hence the wide intervals of these differences"
        )
    if (absent := int((cells.support == 0).sum())) > 0:
        notes.append(f"{absent} class{'es have' if absent > 1 else ' has'} no samples and cannot be compared")
    return notes
