"""The tables of the report page: columns with kind and meaning, and values as plain lists for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.measure.statistics.metrics import METRICS, label

if TYPE_CHECKING:
    from classgap.measure.audit_report import AuditReport
    from classgap.measure.comparison import Change, Comparison
    from classgap.measure.render.sections import Listing
    from classgap.predictions.confusion import Confusion

Table = dict[str, Any]

# Limits the size of the page. In addition, the most frequent confusions of every class are kept.
MAX_PAIRS = 4000
_PAIRS_PER_CLASS = 6
_MAX_PAIRS_OF_CLASSES = 30_000  # with more classes, fewer of each class are kept

# key: (heading, kind, meaning); a column without an entry is shown as a number with its key as heading.
_COLUMNS: dict[str, tuple[str, str, str]] = {
    "name": ("class", "text", "name of the class"),
    "group": ("third", "group", "third of classes by accuracy: easy, medium or hard"),
    "support": ("samples", "int", "number of test samples of this class"),
    "effective_support": (
        "effective samples",
        "number",
        "number of equally weighted samples with the same information about the accuracy of this class",
    ),
    "train_count": ("training samples", "int", "number of training samples of this class"),
    "accuracy": (
        "accuracy",
        "share",
        "share of the class's samples that are predicted correctly (recall); the bar shows the interval",
    ),
    "precision": ("precision", "share", "share of the predictions of this class that are correct"),
    "f1": ("F1", "share", "harmonic mean of accuracy and precision"),
    "top5": ("top-5", "share", "share of the class's samples whose true class is among the five highest scores"),
    "auc": (
        "ROC AUC",
        "share",
        "probability that a sample of this class gets a higher probability of the class than a sample of another class",
    ),
    "average_precision": (
        "average precision",
        "share",
        "area under the curve of precision by recall, by the probability of this class; a random ranking has the share of "
        "samples of this class",
    ),
    "common_set_coverage": (
        "in the set",
        "share",
        "share of the class's samples whose prediction set holds their class, with one threshold for all classes "
        "(90 % on average)",
    ),
    "common_set_size": ("set size", "number", "mean number of classes in these sets"),
    "class_set_coverage": (
        "in the set, per class",
        "share",
        "share of the class's samples whose prediction set holds their class, with one threshold per class (90 % in every class)",
    ),
    "class_set_size": ("set size, per class", "number", "mean number of classes in these sets"),
    "output_margin": (
        "probability margin",
        "number",
        "mean of: probability of the true class minus the highest probability of another class",
    ),
    "logit_margin": (
        "logit margin",
        "number",
        "mean of: score of the true class minus the highest score of another class",
    ),
    "logit_margin_variance": ("margin variance", "number", "variance of the logit margin within the class"),
    "logit_margin_median": ("margin median", "number", "median of the logit margin"),
    "ece": (
        "ECE",
        "share",
        "expected calibration error: difference between confidence and accuracy, over the samples of this class",
    ),
    "classwise_ece": ("classwise ECE", "share", "calibration error of the probability of this class, over all samples"),
    "log_loss": ("log-loss", "number", "mean negative logarithm of the probability of the true class"),
    "brier": ("Brier score", "number", "mean squared distance of the probabilities from the true class, 0 to 2"),
    "overconfidence": ("overconfidence", "points", "mean confidence minus accuracy over the samples of this class"),
    "spread": ("spread", "number", "root mean squared distance of the class's features from the class mean"),
    "spread_unbiased": ("spread (n−1)", "number", "spread with divisor n − 1"),
    "spread_ratio": ("spread / mean", "number", "spread divided by the length of the class mean"),
    "variance_norm": ("variance norm", "number", "length of the vector of per-dimension variances"),
    "max_distance": (
        "max distance",
        "number",
        "largest distance between two samples of the class, divided by the length of the longest feature vector",
    ),
    "mean_max_distance": (
        "mean d_max",
        "number",
        "mean of ELM's d_max: distance of a sample to the farthest sample of its class",
    ),
    "mr2_excess_distance": (
        "MR² excess",
        "number",
        "mean of MR² eq. 3: squared distance to the farthest sample of the class minus 2 s̄, at least 0",
    ),
    "fisher": ("Fisher", "number", "mean Fisher separability from all other classes"),
    "nearest_fisher": ("Fisher, nearest", "number", "Fisher separability from the least separable other class"),
    "boundary_error": (
        "boundary error",
        "share",
        "share of samples on the wrong side of the best linear boundary to the nearest other class",
    ),
    "nearest_angle": (
        "angle of means",
        "number",
        "angle in degrees between this class mean and the nearest other class mean",
    ),
    "weight_norm": ("weight norm", "number", "length of the class's weight vector in the head"),
    "weight_angle": (
        "weight angle",
        "number",
        "angle in degrees between this weight vector and the nearest other weight vector",
    ),
    "average_logit": ("average logit", "number", "mean score of this class over its own samples, per unit of weight"),
    "average_margin": ("average margin", "number", "MARC's average margin of the class"),
    "sample_angle": (
        "sample angle",
        "number",
        "mean angle in degrees between the class's features and its weight vector",
    ),
    "mr2_gamma": (
        "MR² γ",
        "number",
        "margin of this class in MR² (eq. 1, scaled to mean 1), from the second moment of its features",
    ),
    "mr2_ramp_risk": (
        "MR² ramp risk",
        "number",
        "mean of MR² eq. 9: 1 for a misclassified sample, 0 for a logit margin of at least γ, linear between",
    ),
    "mr2_bound": (
        "MR² bound",
        "number",
        "upper bound on the error of this class; a bound above 1 only serves to compare classes",
    ),
    "mr2_bound_paper": ("MR² bound (paper)", "number", "the bound as printed in the paper, which omits factors"),
    "elm_pull": ("ELM pull", "number", "mean pull term of ELM over the pairs of samples of the class"),
    "elm_pull_lower": ("ELM pull, lower bound", "number", "lower bound of the pull term, from the spread"),
    "before": ("before", "share", "accuracy before"),
    "after": ("after", "share", "accuracy after"),
    "delta": ("change", "points", "accuracy after minus before, in percentage points"),
    "low": ("from", "points", "lower end of the interval of the change"),
    "high": ("to", "points", "upper end of the interval of the change"),
    "gained": ("became correct", "number", "samples that were wrong before and are correct after"),
    "lost": ("became wrong", "number", "samples that were correct before and are wrong after"),
    "p_value": ("p", "number", "p-value: probability of a difference at least this large if there were no change"),
    "q_value": ("q", "number", "p-value after Benjamini-Hochberg correction over the classes"),
    "significant": ("significant", "flag", "whether the change is significant after Benjamini-Hochberg correction"),
}


def plain(values: Iterable[Any]) -> list[Any]:
    """Values for JSON: Python numbers rounded to 7 significant digits, nan as None.

    With fewer digits, one number in 200 would be rounded twice in the page, and differ from the same number elsewhere.
    """
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return [
            float(f"{v:.7g}") if v - v == 0 else None for v in array.tolist()
        ]  # nan and infinity minus themselves are nan
    return list(array.tolist())


def _column(key: str, known: Mapping[str, tuple[str, str, str]]) -> dict[str, Any]:
    heading, kind, meaning = known.get(key) or _COLUMNS.get(key, (key.replace("_", " "), "number", ""))
    return {"key": key, "label": heading, "kind": kind, "help": meaning}


def records_table(
    records: NDArray[np.void],
    hidden: Sequence[str],
    first: Sequence[str],
    title: str,
    headings: Mapping[str, tuple[str, str, str]] | None = None,
) -> Table:
    """Records as a table: the columns ``first``, then the others; ``hidden`` ones are data of the page without a column.

    Args:
        headings: Heading, kind and meaning of columns, where they differ from those of classes.
    """
    fields = list(records.dtype.names or ())
    shown = [key for key in first if key in fields] + [k for k in fields if k not in first and k not in hidden]
    known = [key for key in shown if not _all_missing(records[key])]
    keep = known + [key for key in hidden if key in fields]
    return {
        "label": title,
        "columns": [_column(key, headings or {}) for key in known],
        "data": {k: plain(records[k]) for k in keep},
    }


def _all_missing(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).all())


def class_table(report: AuditReport) -> Table:
    """Every class of an audit, worst first."""
    first = ("name", "accuracy", "group", "support", "train_count", "precision", "f1", "top5")
    intervals = {"accuracy": ("low", "high")}
    intervals |= {key: (f"{key}_low", f"{key}_high") for key in ("auc", "average_precision")}
    hidden = [bound for pair in intervals.values() for bound in pair]
    table = records_table(report.per_class, hidden, first, "classes")
    for column in table["columns"]:
        if column["key"] in intervals:
            column["interval"] = list(intervals[column["key"]])
    return table | {"sort": {"key": "accuracy", "down": False}}


def change_table(comparison: Comparison) -> Table:
    """Every class of a comparison, largest gain first."""
    first = ("name", "group", "support", "before", "after", "delta", "low", "high", "significant", "q_value")
    table = records_table(comparison.per_class, (), first, "classes")
    return table | {"sort": {"key": "delta", "down": True}}


def pair_table(confusion: Confusion, classes: Sequence[str], groups: Sequence[str]) -> tuple[Table, str]:
    """Confused pairs, most frequent first, and a sentence that says how many are shown."""
    every = confusion.ordered_pairs()
    num_pairs = len(every[0])
    each = min(_PAIRS_PER_CLASS, _MAX_PAIRS_OF_CLASSES // confusion.num_classes)
    keep = np.arange(num_pairs) < MAX_PAIRS
    for side in every[:2]:  # the most frequent ones of each true and of each predicted class
        keep |= _rank_within(side) < each
    true, predicted, count, share, reverse = (values[keep] for values in every)
    data = {
        "true": [classes[k] for k in true],
        "predicted": [classes[k] for k in predicted],
        "count": count.tolist(),
        "share": plain(share),
        "reverse": reverse.tolist(),
        "reverse_share": plain(reverse / np.maximum(confusion.support[predicted], 1)),
        "group": [groups[k] for k in true],
    }
    columns = [
        {"key": "true", "label": "true", "kind": "text", "help": "true class of the samples"},
        {"key": "predicted", "label": "predicted", "kind": "text", "help": "class that the model predicts"},
        {
            "key": "count",
            "label": "samples",
            "kind": "int",
            "help": "number of samples that are confused in this direction",
        },
        {"key": "share", "label": "share of true", "kind": "share", "help": "share of the true class"},
        {
            "key": "reverse",
            "label": "reverse",
            "kind": "int",
            "help": "number of samples that are confused in the other direction",
        },
        {"key": "group", "label": "third", "kind": "group", "help": "third of the true class"},
    ]
    complete = len(true) == num_pairs
    which = f"all {num_pairs:,}" if complete else f"the {len(true):,} most frequent of {num_pairs:,}"
    note = f"The page contains {which} confused pairs{', most frequent first' if complete else ''}."
    sort = {"key": "count", "down": True}
    return {"label": "confused pairs", "columns": columns, "data": data, "sort": sort, "least": "count",
            "complete": complete}, note  # fmt: skip


def pair_change_table(comparison: Comparison) -> tuple[Table, str]:
    """Confused pairs before and after, largest change first, and a sentence that says how many are shown."""
    every = comparison.confusions(n=None)
    kept = every.head(MAX_PAIRS)
    group = dict(zip(comparison.classes, comparison.per_class["group"].tolist(), strict=True))
    data = {
        "true": kept["true"].to_list(),
        "predicted": kept["predicted"].to_list(),
        "before": plain(kept["before"].to_numpy()),
        "count": plain(kept["after"].to_numpy()),
        "change": plain(kept["change"].to_numpy()),
        "share_before": plain(kept["share_before"].to_numpy()),
        "share": plain(kept["share_after"].to_numpy()),
        "group": [group[name] for name in kept["true"]],
        "size": plain(kept["change"].abs().to_numpy()),
    }
    columns = [
        {"key": "true", "label": "true", "kind": "text", "help": "true class of the samples"},
        {"key": "predicted", "label": "predicted", "kind": "text", "help": "class that the model predicts"},
        {"key": "before", "label": "before", "kind": "number", "help": "number of samples before (mean over runs)"},
        {"key": "count", "label": "after", "kind": "number", "help": "number of samples after (mean over runs)"},
        {"key": "change", "label": "change", "kind": "signed", "help": "number after minus number before; not tested"},
        {"key": "share", "label": "share of true, after", "kind": "share", "help": "share of the true class after"},
        {"key": "group", "label": "third before", "kind": "group", "help": "third of the true class before"},
    ]
    which = "all" if kept.height == every.height else f"{kept.height:,} of"
    note = (
        f"The page contains {which} {every.height:,} confused pairs, largest change first, as numbers of samples before and "
        "after. Changes of single pairs are not tested for significance."
    )
    return {"label": "confused pairs", "columns": columns, "data": data, "sort": {"key": "size", "down": True},
            "complete": kept.height == every.height}, note  # fmt: skip


def _rank_within(code: NDArray[Any]) -> NDArray[Any]:
    """For each entry, how many earlier entries are equal to it."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    start = np.searchsorted(ordered, ordered, side="left")
    rank = np.empty(len(code), dtype=np.int64)
    rank[order] = np.arange(len(code)) - start
    return rank


def listing_table(title: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[Sequence[Any]]) -> Table:
    """A table from rows; each column is (key, heading, kind)."""
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    data = {key: plain(column) for (key, _, _), column in zip(columns, values, strict=True)}
    return {
        "label": title,
        "columns": [{"key": key, "label": heading, "kind": kind, "help": ""} for key, heading, kind in columns],
        "data": data,
    }


def section_table(part: Listing) -> Table:
    """A table of an optional part of the report."""
    return listing_table(part.title, part.columns, part.rows)


def group_table(report: AuditReport) -> Table:
    """Mean accuracy of each group of classes under each ranking."""
    rows = [
        (ranking, group, e.value, e.low, e.high)
        for ranking, groups in report.groups.items()
        for group, e in groups.items()
    ]
    columns = [("ranking", "ranking", "text"), ("third", "group", "text"), ("value", "mean accuracy", "share"),
               ("low", "from", "share"), ("high", "to", "share")]  # fmt: skip
    return listing_table("groups", columns, rows)


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
    return listing_table("margins", columns, rows) if rows else None


def metric_table(report: AuditReport) -> Table:
    """Every aggregate of an audit, then the overall numbers of scores and features."""
    rows: list[Sequence[Any]] = [
        (label(name), e.value, e.low, e.high, METRICS[name.removesuffix("_corrected")].meaning)
        for name, e in report.metrics.items()
    ]
    kinds = [_metric_kind(name) for name in report.metrics]
    sections = {"margins": report.margins, "calibration": report.calibration, "ranking": report.ranking,
                "prediction sets": report.prediction_sets, "geometry": report.geometry, "bounds": report.bounds}  # fmt: skip
    for title, section in sections.items():
        if section is not None:
            found = section.summary()
            rows += [(f"{title}: {key.replace('_', ' ')}", v, math.nan, math.nan, "") for key, v in found.items()]
            kinds += ["share" if any(word in key for word in _SHARES) else "number" for key in found]
    columns = [("name", "number", "text"), ("value", "value", "value"), ("low", "from", "value"),
               ("high", "to", "value"), ("meaning", "meaning", "long")]  # fmt: skip
    return listing_table("numbers", columns, rows) | {"kinds": kinds}


_SHARES = ("ece", "share", "confidence", "accuracy")  # words in the names of numbers that are shares


def _metric_kind(name: str) -> str:
    """Kind of a metric: all are shares but the Gini index."""
    return "number" if name.startswith("gini") else "share"


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
    return listing_table("groups", columns, rows)


def _run_stds(comparison: Comparison) -> tuple[Callable[[Change], tuple[float, ...]], list[tuple[str, str, str]]]:
    """Cells and columns of the standard deviations over runs; none if both sides have a single run."""
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
    columns = [("name", "number", "text"), ("before", "before", "value"), ("after", "after", "value"),
               ("delta", "change", "change"), ("low", "from", "change"), ("high", "to", "change"),
               *((key, heading, "value") for key, heading, _ in std_columns), ("meaning", "meaning", "long")]  # fmt: skip
    return listing_table("numbers", columns, rows) | {"kinds": [_metric_kind(name) for name in comparison.metrics]}
