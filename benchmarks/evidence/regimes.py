"""One short table for each regime, and the study of the collapse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collapse import IMAGE, RESULTS, end_of
from committed import LONG, LONG_LOSSES, Found, Measured, filled
from costs import costs

from classgap.measure.render.plain import escape
from classgap.suites.render import Table
from classgap.suites.tables import Row, TaskTables, difference
from classgap.training import TrainConfig

# Title, suite:task, and what the numbers stand for.
REGIMES = (
    (
        "Remedies besides a loss, from scratch",
        "remedies_images:wrn-10-1",
        "CIFAR-10, 500 training images per class, a small network",
    ),
    (
        "Remedies besides a loss, from scratch, training images fitted",
        "remedies_images:resnet20",
        "CIFAR-10, 500 training images per class, ResNet-20, 100 epochs",
    ),
    ("From scratch, ResNet-20, ten classes", "cifar10:resnet20", "CIFAR-10, 500 training images per class"),
    ("From scratch, ResNet-20", "cifar100:resnet20", "CIFAR-100, 100 training images per class, 60 epochs"),
    (
        "From scratch, ResNet-20, training images fitted",
        "cifar100:resnet20, equal epochs",
        "the same with 180 epochs, cross-entropy included",
    ),
    (
        "From scratch, small network",
        "cifar100:wrn-10-1",
        "CIFAR-100, 100 training images per class; 30 epochs, far from fitted",
    ),
    (
        "Fine-tuning on images, 3 epochs",
        "finetune:EfficientNet-Lite0",
        "CIFAR-100 at 64 pixels, 100 training images per class",
    ),
    (
        "Fine-tuning on images, 9 epochs",
        "finetune:EfficientNet-Lite0, 9 epochs",
        "the same, until the training images are fitted",
    ),
    (
        "More labels for some classes, fine-tuning",
        "finetune:EfficientNet-Lite0, 60 images per class",
        "CIFAR-100 at 64 pixels, 60 training images per class, 9 epochs; 990 more labels in every row",
    ),
    ("Frozen image features, hidden layer", "embeddings:mlp", "CIFAR-100, 100 training samples per class"),
    (
        "Remedies besides a loss, frozen features",
        "remedies:hidden layer",
        "frozen image features, CIFAR-100, hidden layer, 100 samples per class",
    ),
    ("Frozen image features, linear head", "embeddings:linear", "CIFAR-100, 100 training samples per class"),
    ("Frozen image features, cosine head", "cosine:hidden layer", "CIFAR-100, 100 training samples per class"),
    (
        "Text, frozen encoder, hidden layer",
        "banking77:frozen, hidden layer",
        "Banking77, 77 intents, 35 to 187 training samples per class",
    ),
    ("Text, frozen encoder, linear head", "banking77:frozen, linear", "the same with a linear head"),
    ("Text, fine-tuned", "banking77:fine-tuned", "the same, all layers of the encoder trained in bfloat16"),
    (
        "Long tail, linear head",
        "embeddings:linear, tail 100",
        "CIFAR-100 embeddings, 400 to 4 training samples per class",
    ),
)
# The same learning rate or schedule for all; variants of interest to few readers stay in docs/evidence_runs.md.
LEFT_OUT = (
    "compact logits, constant pull",
    "squeeze",
    "uniform temperature",
    "γ only, c̄=1",
    "γ only, c̄=3",
    "strength 2",
    "p=",
)


# What a verdict says of hard classes and of the cost, and the kinds of verdicts that say it.
OUTCOMES = {
    "Better on hard classes, no cost found": ("closed", "better", "better_hard"),
    "Better, uncertain on hard classes": ("likely_hard", "not_hard", "elsewhere"),
    "Better for some classes, worse for others": ("traded", "widened"),
    "Worse": ("worse",),
    "No significant change": ("noise",),
}
COST_HEADS = ("Δ worst class", "training cost", "prediction cost")
HEADS = ("method", "Δ overall", "Δ hard", "Δ easy", *COST_HEADS, "verdict", "runs")


def regime_tables(found: Found, equally_long: Found) -> str:
    """A table for each regime that has runs; in ``equally_long`` cross-entropy has three times the epochs too."""
    by_task = {
        f"{suite.name}:{table.task.name}{how}": table
        for how, part in (("", found), (", equal epochs", equally_long))
        for suite, _, tables in part
        for table in tables
    }
    parts = [_regime(title, note, by_task[name]) for title, name, note in REGIMES if name in by_task]
    return "\n".join(["## Regime by regime\n", HEAD, *parts])


HEAD = """\
Differences to the mean of all runs of cross-entropy in points, with 95 % intervals over test samples and seeds; ↑ ↓ where the
interval excludes 0. Hard and easy are cross-fitted thirds. For a method with one run the variation between seeds is taken from
the runs of cross-entropy; where that has one run too, a difference is one between two trained networks, not between two methods.
*Re-run* is cross-entropy with other seeds: what chance alone does. The verdict is corrected for four tests per row, the arrows
are not, so a row with arrows may have no significant change. Costs are in runs of cross-entropy, as the settings tell; where hard
classes get more labels or another augmentation, the first run that finds these classes counts too.
"""


def by_outcome(tables: TaskTables, names: Sequence[str]) -> dict[str, list[str]]:
    """These variants by what their verdicts say."""
    kinds = {name: tables.comparisons[name].verdict.kind for name in names}
    return {outcome: [name for name in names if kinds[name] in group] for outcome, group in OUTCOMES.items()}


def _regime(title: str, note: str, tables: TaskTables) -> str:
    """The table of one regime; above it, what its verdicts say."""
    table = _table(title, note, tables)
    outcomes = by_outcome(tables, [row[0] for row in table.rows])
    lines = (f"- **{outcome}:** {'; '.join(map(escape, names))}" for outcome, names in outcomes.items() if names)
    heading, _, rest = table.render("md", level=3).partition("\n\n")
    return "\n".join([heading, "", *lines, "", rest])


def _table(title: str, note: str, tables: TaskTables) -> Table:
    """The table of one regime; where a row costs more than a run of cross-entropy, with costs and the worst class."""
    reference = tables.rows[0]
    overall, hard, easy = (100 * reference.mean(metric)[0] for metric in ("overall", "hard", "easy"))
    shown = [row for row in tables.rows if row.variant.name in tables.comparisons and not _left_out(row, reference)]
    spent = [costs(_config(row), _config(reference)) for row in shown]
    with_costs = any(cost != (1, 1) for cost in spent)
    heads = [head for head in HEADS if with_costs or head not in COST_HEADS]
    lines = []
    for row, cost in zip(shown, spent, strict=True):
        comparison = tables.comparisons[row.variant.name]
        metrics, thirds = comparison.metrics, comparison.groups["cross"]
        deltas = (c.delta for c in (metrics["overall"], thirds["hard"], thirds["easy"], metrics["worst"]))
        cells = (
            row.variant.name,
            *(difference(d.value, d.low, d.high) for d in deltas),
            *(f"{times:.2g}" for times in cost),
            comparison.verdict.title,
            str(len(row.seeds)),
        )
        lines.append(tuple(dict(zip(HEADS, cells, strict=True))[head] for head in heads))
    fitted = 100 * sum(reference.train_accuracy) / len(reference.train_accuracy)
    caption = (
        f"{note}. Cross-entropy: overall {overall:.1f} %, hard {hard:.1f} %, easy {easy:.1f} % (own ranking, runs: "
        f"{len(reference.seeds)}), training accuracy {fitted:.0f} %."
    )
    return Table(title, caption, tuple(heads), tuple(lines))


def _left_out(row: Row, reference: Row) -> bool:
    name = row.variant.name
    alone_longer = name.startswith(LONG_LOSSES) and reference.variant.name != LONG
    return alone_longer or any(part in name for part in LEFT_OUT)


def _config(row: Row) -> TrainConfig:
    return row.variant.config(row.task, 0)


def collapse_section(measured: Mapping[str, Measured]) -> str:
    """Why training with the published weight stops: the reading of it, and the picture."""
    text = filled(Path(__file__).with_name("collapse.md").read_text(), measured)
    picture = f"![Norm and rank of the features, representation term and training accuracy]({IMAGE.parent.name}/{IMAGE.name})\n"
    return f"{text}\n{picture}"


def collapse_table() -> Table:
    """The settings of the study, one change at a time."""
    found: dict[str, dict[str, list[dict[str, float]]]] = json.loads(RESULTS.read_text())
    rows = [
        (task, name, *_shown(end_of(records))) for task, settings in found.items() for name, records in settings.items()
    ]
    caption = (
        "Mean of the last training batches after 210 (ResNet-20) or 420 steps; one run each. Active: share of features above "
        "0. Rank: effective rank of the centred features. Between classes: share of the scatter between class means "
        "(with one to two samples of a class in a batch it is above a half even for random features). Repeat with python "
        "benchmarks/evidence/collapse.py."
    )
    heads = ("network", "setting", *COLLAPSE_HEADS)
    return Table("Why the published weight stops training: one change at a time", caption, heads, tuple(rows))


COLLAPSE_HEADS = ("norm", "active", "rank", "between classes", "logit term", "rep. term", "training accuracy")


def _shown(last: dict[str, Any]) -> tuple[str, ...]:
    names = ("norm", "active", "rank", "between", "logit_term", "rep_term", "accuracy")
    return tuple("diverges" if abs(last[name]) > 1e6 else f"{last[name]:.3g}" for name in names)
