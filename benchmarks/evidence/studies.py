"""Two further studies of docs/evidence_details.md: ideas tried on unused training images, and the geometry of features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from committed import COMPACT, HERE

from classgap.measure.render.plain import points
from classgap.measure.statistics.groups import THIRDS
from classgap.suites.records import read_records
from classgap.suites.render import Table
from classgap.suites.tables import mean_interval

TSNE = {"cross_entropy": "ce", COMPACT: "compact_logits"}
IDEA_SETTINGS = ("ten classes", "linear", "tail")  # the names of ideas that were tried in other settings begin so
Ideas = dict[str, dict[int, np.ndarray]]


def ideas() -> str:
    """The tables of benchmarks/ideas.py, from its results."""
    runs = read_records(HERE / "ideas" / "results.jsonl")
    by_idea: Ideas = {}
    for run in runs:
        by_idea.setdefault(run["idea"], {})[run["seed"]] = np.asarray(run["accuracy"])
    ranking = np.mean(list(by_idea.pop("ranking").values()), axis=0)
    hard = ranking.argsort()[: len(ranking) // 3]
    rarest = np.arange(len(ranking))[-(len(ranking) // 3) :]  # classes of a tail are numbered from frequent to rare
    plain = {idea: found for idea, found in by_idea.items() if not idea.startswith(IDEA_SETTINGS)}
    rows = _against(plain, "", "cross-entropy", hard) + _ten_classes(by_idea)
    caption = (
        "Difference to cross-entropy in points, mean ± half the 95% t-interval over seeds, on 400 training images per class "
        "that no run trains on; classes are ranked by other runs of cross-entropy. Held-out error is the error of those runs, "
        "which is more than any running statistic knows. Scatter of logits is the pull of compact logits, without margins. "
        "CIFAR-100 embeddings, one hidden layer, 100 samples per class. Repeat with python benchmarks/ideas.py."
    )
    probe = "The same without a hidden layer: classes overlap, and a stronger pull costs hard classes accuracy."
    tail = (
        "The same on a long tail, 400 to 4 samples per class, with three draws of which classes are rare: difference to logit "
        "adjustment. The pull on the logit of class j for samples of class y is weighted by the given expression, of mean 1; by "
        "rarity means by 1/n_y, with a constant pull."
    )
    heads = ("idea", "runs", "overall", "hard")
    tables = [
        Table("Ideas tried on unused training images", caption, heads, tuple(rows)),
        Table("On a linear probe", probe, heads, tuple(_against(by_idea, "linear, ", "cross-entropy", hard))),
    ]
    for title, prefix, text in (
        ("On a long tail", "tail, ", tail),
        ("On a long tail, linear probe", "linear tail, ", "As above, without a hidden layer."),
    ):
        found = _against(by_idea, prefix, "logit adjustment", rarest)
        tables.append(Table(title, text, (*heads[:3], "rarest third"), tuple(found)))
    return "\n".join(table.render("md", level=2 + (i > 0)) for i, table in enumerate(tables))


def _against(by_idea: Ideas, prefix: str, reference: str, group: np.ndarray) -> list[tuple[str, ...]]:
    """A row for each idea with this prefix: its difference to the reference overall and in a group of classes."""
    plain, rows = by_idea[prefix + reference], []
    for idea, found in by_idea.items():
        if idea.startswith(prefix) and found is not plain:
            changes = [found[seed] - plain[seed] for seed in found]
            cells = (mean_interval([float(c.mean()) for c in part]) for part in (changes, [c[group] for c in changes]))
            name = idea.removeprefix(prefix)
            rows.append((name, str(len(found)), *(f"{points(mean)} ± {100 * half:.1f}" for mean, half in cells)))
    return rows


def _ten_classes(by_idea: Mapping[str, Mapping[int, np.ndarray]]) -> list[tuple[str, ...]]:
    """Over random subsets of ten classes, where hard means the worst three of each run."""
    changes: dict[str, list[tuple[float, float]]] = {}
    for idea, found in by_idea.items():
        if not idea.startswith("ten classes"):
            continue
        subset, weight = idea.rsplit(" ", 1)
        for seed, accuracy in found.items():
            pair = [(a.mean(), np.sort(a)[:3].mean()) for a in (accuracy, by_idea[f"{subset} 0"][seed])]
            changes.setdefault(weight, []).append((pair[0][0] - pair[1][0], pair[0][1] - pair[1][1]))
    rows = []
    for weight, pairs in changes.items():
        if weight != "0":
            cells = (mean_interval(column) for column in zip(*pairs, strict=True))
            name = f"ten classes at a time: scatter of logits, {weight}"
            rows.append((name, str(len(pairs)), *(f"{points(mean)} ± {100 * half:.1f}" for mean, half in cells)))
    return rows


def geometry(path: Path) -> str:
    """Output margins, angles of the head and spread of features from benchmarks/evidence/geometry.py, with its pictures."""
    found = json.loads(path.read_text())
    by_variant: dict[str, list[dict[str, float]]] = {}
    for row in found["rows"]:
        by_variant.setdefault(row["variant"], []).append(row)
    columns = [*(f"margin_{third}" for third in THIRDS), "angle", *(f"spread_{third}" for third in THIRDS)]
    rows = []
    for variant, runs in by_variant.items():
        cells = (mean_interval([run[column] for run in runs]) for column in columns)
        rows.append((variant, str(len(runs)), *(f"{mean:.2f} ± {half:.2f}" for mean, half in cells)))
    heads = ("variant", "runs", *(column.replace("_", ", ") for column in columns))
    caption = (
        "Test samples, mean ± half the 95% t-interval over seeds; thirds by each run's own ranking. Margin: probability of the "
        "true class minus the highest probability of another class. Angle: the smallest angle between two class vectors of the "
        "last layer, in degrees. Spread: standard deviation of the features of a class. Repeat with python "
        "benchmarks/evidence/geometry.py."
    )
    table = Table(f"Margins and geometry ({found['suite']}, {found['task']})", caption, heads, tuple(rows))
    pictures = [
        f"![t-SNE, {variant}](images/evidence_tsne_{short}.svg)\n\nt-SNE of the features of test samples of the hardest "
        f"classes and of the classes they are confused with, {variant}, first seed; crosses are wrong predictions.\n"
        for variant, short in TSNE.items()
    ]
    return "\n".join([table.render("md", level=2), *pictures])
