"""The tables of the report page: columns with their kind and meaning, values as plain lists ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.statistics.metrics import METRICS, label

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Change, Comparison
    from classgap.predictions.confusion import Confusion

Table = dict[str, Any]

# A page stays small and quick with this many confused pairs; every class keeps its own most frequent ones besides.
MAX_PAIRS = 4000
_PAIRS_PER_CLASS = 6

# key: (heading, kind, meaning); a per-class column without an entry is shown as a plain number under its own name.
_COLUMNS: dict[str, tuple[str, str, str]] = {
    "name": ("class", "text", "the class"),
    "group": ("third", "group", "third of classes by accuracy: easy, medium or hard"),
    "support": ("samples", "int", "samples of this class that were evaluated"),
    "train_count": ("trained on", "int", "training samples of this class"),
    "accuracy": ("accuracy", "share", "share of the class's samples that are right (recall); the bar shows its interval"),
    "precision": ("precision", "share", "share of the predictions of this class that are right"),
    "f1": ("F1", "share", "harmonic mean of accuracy and precision"),
    "top5": ("top-5", "share", "share of the class's samples whose true class is among the five best scores"),
    "output_margin": ("prob. margin", "number", "mean probability of the true class minus the best other"),
    "logit_margin": ("logit margin", "number", "mean score of the true class minus the best other"),
    "logit_margin_variance": ("margin var.", "number", "variance of the logit margin within the class"),
    "logit_margin_median": ("margin median", "number", "median of the logit margin"),
    "ece": ("ECE", "share", "gap between confidence and accuracy over the samples of this class"),
    "classwise_ece": ("classwise ECE", "share", "calibration of the probability given to this class, over all samples"),
    "overconfidence": ("overconfidence", "points", "mean confidence minus accuracy over the samples of this class"),
    "spread": ("spread", "number", "root mean squared distance of the class's features from their mean"),
    "spread_unbiased": ("spread (n−1)", "number", "the same with divisor n − 1"),
    "spread_ratio": ("spread / mean", "number", "spread over the length of the class mean"),
    "variance_norm": ("variance norm", "number", "length of the vector of per-dimension variances"),
    "max_distance": ("max distance", "number", "largest distance within the class over the longest feature"),
    "mean_max_distance": ("mean d max", "number", "ELM's d_max, the distance to the farthest sample of the class; mean"),
    "mr2_excess_distance": ("MR² excess", "number", "MR² eq. 3: squared distance to that sample beyond 2 s̄; mean"),
    "fisher": ("Fisher", "number", "mean Fisher separability from all other classes"),
    "nearest_fisher": ("Fisher, nearest", "number", "Fisher separability from the least separable other class"),
    "boundary_error": ("boundary error", "share", "error of the best straight boundary to the nearest other class"),
    "nearest_angle": ("mean angle", "number", "degrees between this class mean and the nearest other"),
    "weight_norm": ("weight norm", "number", "length of the head's weight vector"),
    "weight_angle": ("weight angle", "number", "degrees between this weight vector and the nearest other"),
    "average_logit": ("avg. logit", "number", "mean score of this class over its own samples, per unit of weight"),
    "average_margin": ("avg. margin", "number", "MARC's average margin of the class"),
    "sample_angle": ("sample angle", "number", "mean degrees between features and the class's weight vector"),
    "mr2_gamma": ("MR² γ", "number", "margin MR² would give this class (eq. 1, mean 1), from the second moment of its features"),
    "mr2_ramp_risk": ("MR² ramp risk", "number", "MR² eq. 9: mean loss, 1 where misclassified, 0 from a logit margin of γ on"),
    "mr2_bound": ("MR² bound", "number", "upper bound on this class's error; above 1 it only compares classes"),
    "mr2_bound_paper": ("MR² bound (paper)", "number", "the same as printed in the paper, which leaves out factors"),
    "elm_pull": ("ELM pull", "number", "mean pull term of ELM over the class's pairs"),
    "elm_pull_lower": ("ELM pull, least", "number", "lower bound of the pull term from the spread"),
    "before": ("before", "share", "accuracy before"),
    "after": ("after", "share", "accuracy after"),
    "delta": ("change", "points", "accuracy after minus before, in percentage points"),
    "low": ("from", "points", "lower end of the change's interval"),
    "high": ("to", "points", "upper end of the change's interval"),
    "gained": ("turned right", "number", "samples wrong before and right after"),
    "lost": ("turned wrong", "number", "samples right before and wrong after"),
    "p_value": ("p", "number", "chance of a difference this large if nothing had changed"),
    "q_value": ("q", "number", "p-value adjusted so that few of the classes called significant are false"),
    "significant": ("beyond noise", "flag", "whether the change is significant with false discoveries controlled"),
}  # fmt: skip


def plain(values: Iterable[Any]) -> list[Any]:
    """Values for JSON: Python numbers rounded to 5 significant digits, nan as None."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return [float(f"{v:.5g}") if math.isfinite(v) else None for v in array.tolist()]
    return list(array.tolist())


def _column(key: str) -> dict[str, Any]:
    heading, kind, meaning = _COLUMNS.get(key, (key.replace("_", " "), "number", ""))
    return {"key": key, "label": heading, "kind": kind, "help": meaning}


def _records_table(records: NDArray[np.void], hidden: Sequence[str], first: Sequence[str], title: str) -> Table:
    fields = list(records.dtype.names or ())
    shown = [key for key in first if key in fields] + [k for k in fields if k not in first and k not in hidden]
    known = [key for key in shown if not _all_missing(records[key])]
    keep = known + [key for key in hidden if key in fields]
    return {"label": title, "columns": [_column(key) for key in known], "data": {k: plain(records[k]) for k in keep}}


def _all_missing(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).all())


def class_table(report: AuditReport) -> Table:
    """Every class of an audit, worst first."""
    first = ("name", "accuracy", "group", "support", "train_count", "precision", "f1", "top5")
    table = _records_table(report.per_class, ("low", "high"), first, "classes")
    for column in table["columns"]:
        if column["key"] == "accuracy":
            column["interval"] = ["low", "high"]
    return table | {"sort": {"key": "accuracy", "down": False}}


def change_table(comparison: Comparison) -> Table:
    """Every class of a comparison, largest gain first."""
    first = ("name", "group", "support", "before", "after", "delta", "low", "high", "significant", "q_value")
    table = _records_table(comparison.per_class, (), first, "classes")
    return table | {"sort": {"key": "delta", "down": True}}


def pair_table(confusion: Confusion, classes: Sequence[str], groups: Sequence[str]) -> tuple[Table, str]:
    """Confused pairs, most frequent first, and a sentence saying how many are shown."""
    total = max(1, _num_pairs(confusion))
    every = confusion.worst_pairs(total)
    seen_true: dict[int, int] = {}
    seen_predicted: dict[int, int] = {}
    kept = []
    for rank, pair in enumerate(every):
        mine = min(seen_true.get(pair.true, 0), seen_predicted.get(pair.predicted, 0))
        if rank < MAX_PAIRS or mine < _PAIRS_PER_CLASS:
            kept.append(pair)
            seen_true[pair.true] = seen_true.get(pair.true, 0) + 1
            seen_predicted[pair.predicted] = seen_predicted.get(pair.predicted, 0) + 1
    share_back = [pair.reverse / max(1, int(confusion.support[pair.predicted])) for pair in kept]
    data = {
        "true": [classes[pair.true] for pair in kept],
        "predicted": [classes[pair.predicted] for pair in kept],
        "count": [pair.count for pair in kept],
        "share": plain([pair.share for pair in kept]),
        "reverse": [pair.reverse for pair in kept],
        "reverse_share": plain(share_back),
        "group": [groups[pair.true] for pair in kept],
    }
    columns = [
        {"key": "true", "label": "true", "kind": "text", "help": "what the sample is"},
        {"key": "predicted", "label": "predicted", "kind": "text", "help": "what the model says"},
        {"key": "count", "label": "samples", "kind": "int", "help": "how many samples are confused this way"},
        {"key": "share", "label": "of true", "kind": "share", "help": "share of the true class"},
        {"key": "reverse", "label": "reverse", "kind": "int", "help": "samples confused in the other direction"},
        {"key": "group", "label": "third", "kind": "group", "help": "third of the true class"},
    ]
    note = f"The {len(kept):,} most frequent of {len(every):,} confused pairs." if len(kept) < len(every) else (
        f"All {len(every):,} confused pairs, most frequent first."
    )  # fmt: skip
    sort = {"key": "count", "down": True}
    return {"label": "confused pairs", "columns": columns, "data": data, "sort": sort, "least": "count"}, note


def _num_pairs(confusion: Confusion) -> int:
    counts = confusion.counts
    return int(np.count_nonzero(counts)) if isinstance(counts, np.ndarray) else int(counts.nnz)


def _listing(title: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[Sequence[Any]]) -> Table:
    """A table from rows; columns are (key, heading, kind)."""
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    data = {key: plain(column) for (key, _, _), column in zip(columns, values, strict=True)}
    return {
        "label": title,
        "columns": [{"key": key, "label": heading, "kind": kind, "help": ""} for key, heading, kind in columns],
        "data": data,
    }


def group_table(report: AuditReport) -> Table:
    """Mean accuracy of each group of classes under each ranking."""
    rows = [
        (ranking, group, e.value, e.low, e.high)
        for ranking, groups in report.groups.items()
        for group, e in groups.items()
    ]
    columns = [("ranking", "ranking", "text"), ("third", "group", "text"), ("value", "mean accuracy", "share"),
               ("low", "from", "share"), ("high", "to", "share")]  # fmt: skip
    return _listing("groups", columns, rows)


def margin_table(report: AuditReport) -> Table | None:
    """Output margins of the thirds and the angle of the classifier; None without scores and without a head."""
    levels = report.margin_levels
    if levels is None:
        return None
    rows: list[Sequence[Any]] = [
        ("output", group, e.value, e.low, e.high) for group, e in levels.output.items() if math.isfinite(e.value)
    ]
    if math.isfinite(levels.classifier):
        rows.append(("classifier, degrees", "all pairs", levels.classifier, math.nan, math.nan))
    columns = [("level", "level", "text"), ("third", "group", "text"), ("value", "margin", "number"),
               ("low", "from", "number"), ("high", "to", "number")]  # fmt: skip
    return _listing("margins", columns, rows) if rows else None


def metric_table(report: AuditReport) -> Table:
    """Every aggregate of an audit, then the global numbers of scores and features."""
    rows: list[Sequence[Any]] = [
        (label(name), e.value, e.low, e.high, METRICS[name.removesuffix("_corrected")].meaning)
        for name, e in report.metrics.items()
    ]
    sections = {"margins": report.margins, "calibration": report.calibration, "geometry": report.geometry,
                "bounds": report.bounds}  # fmt: skip
    for title, section in sections.items():
        if section is not None:
            rows += [
                (f"{title}: {key.replace('_', ' ')}", v, math.nan, math.nan, "") for key, v in section.summary().items()
            ]
    columns = [("name", "number", "text"), ("value", "value", "number"), ("low", "from", "number"),
               ("high", "to", "number"), ("meaning", "meaning", "long")]  # fmt: skip
    return _listing("numbers", columns, rows)


def group_change_table(comparison: Comparison) -> Table:
    """Change of each group of classes under each ranking."""
    stds, std_columns = _run_stds(comparison)
    rows = [
        (ranking, group, c.before.value, c.after.value, c.delta.value, c.delta.low, c.delta.high, *stds(c))
        for ranking, groups in comparison.groups.items()
        for group, c in groups.items()
    ]
    columns = [("ranking", "ranking", "text"), ("third", "group", "text"), ("before", "before", "share"),
               ("after", "after", "share"), ("delta", "change", "points"), ("low", "from", "points"),
               ("high", "to", "points"), *std_columns]  # fmt: skip
    return _listing("groups", columns, rows)


def _run_stds(comparison: Comparison) -> tuple[Callable[[Change], tuple[float, ...]], list[tuple[str, str, str]]]:
    """Cells and columns of the standard deviations over runs; none where both sides have a single run."""
    if not comparison.several_runs:
        return lambda change: (), []
    columns = [(f"{side}_run_std", f"std over runs {side}", "share") for side in ("before", "after")]
    return lambda change: (change.before_run_std, change.after_run_std), columns


def metric_change_table(comparison: Comparison) -> Table:
    """Every aggregate before and after."""
    stds, std_columns = _run_stds(comparison)
    rows = [
        (label(name), c.before.value, c.after.value, c.delta.value, c.delta.low, c.delta.high, *stds(c),
         METRICS[name.removesuffix("_corrected")].meaning)
        for name, c in comparison.metrics.items()
    ]  # fmt: skip
    columns = [("name", "number", "text"), ("before", "before", "number"), ("after", "after", "number"),
               ("delta", "change", "number"), ("low", "from", "number"), ("high", "to", "number"),
               *((key, heading, "number") for key, heading, _ in std_columns), ("meaning", "meaning", "long")]  # fmt: skip
    return _listing("numbers", columns, rows)
