"""Write docs/evidence.md, and docs/evidence_runs.md with the tables of every suite, from the committed results.

python benchmarks/evidence/page.py
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures
import numpy as np
from regimes import Found, collapse_section, regime_tables

from classgap.cli.bench_progress import duration
from classgap.measure import Comparison
from classgap.measure.render.plain import points
from classgap.measure.statistics.groups import THIRDS
from classgap.suites import RULES, Result, Suite, Variant, load_suite, read_results
from classgap.suites.records import read_records
from classgap.suites.render import Table
from classgap.suites.tables import TaskTables, difference, mean_interval, suite_tables
from classgap.training import TrainConfig

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
SUITES = (
    "finetune",
    "banking77",
    "cosine",
    "remedies",
    "remedies_images",
    "cifar10",
    "cifar100",
    "fashion",
    "embeddings",
    "sensitivity",
    "digits",
    "field",
)
RULE = RULES["last"]
MR2 = "MR²"
COMPACT = "compact logits"
DIAL = " + gap dial"
MORE = "cross_entropy, more samples"  # the reference that is trained with the dial's validation samples too
EQUAL = (f"{COMPACT}{DIAL}, refit", f"{COMPACT}, more samples", f"{COMPACT}{DIAL}", f"cross_entropy{DIAL}, refit")
RIVALS = ("logit adjustment", "squeeze logits, weight 0.01", "label smoothing 0.1")
TSNE = {"cross_entropy": "ce", COMPACT: "compact_logits"}
RUNS_HEAD = """\
# Every run

All tasks and variants behind [evidence.md](evidence.md), which says how to read the tables and what follows from them.
Written by `python benchmarks/evidence/page.py`.
"""

SUPERSEDED_HEAD = """\
## Superseded runs

Runs of code that has been removed or changed since, so that no suite can repeat them; differences to the cross-entropy runs
of the same suite. They were made with classgap 0.1.0, in which `MR2Loss` had further parameters (`form`, `spread`, `queue`,
`weight_by_gamma`). Their archives are in `benchmarks/evidence/superseded/`; their code is in the history of the repository,
at commit `f25ad60`.
"""

IDEA_SETTINGS = ("ten classes", "linear", "tail")  # the names of ideas that were tried in other settings begin so
Ideas = dict[str, dict[int, np.ndarray]]


def pages() -> dict[str, str]:
    """The text of both pages by file name; draws the pictures too."""
    found = committed_results()
    superseded = _superseded(found)
    sections = [
        RUNS_HEAD,
        *(_section(*f) for f in found),
        SUPERSEDED_HEAD,
        *(_superseded_section(*f) for f in superseded),
    ]
    return {"evidence.md": summary(found, superseded), "evidence_runs.md": "\n".join(sections)}


def summary(found: Found, superseded: Found) -> str:
    """What follows from all results, with pictures."""
    equal = turned_to(found, MORE, *EQUAL)
    measured = {**by_name(superseded), **by_name(found)}
    measured |= {f"{name}, equal samples": comparison for name, comparison in by_name(equal).items()}
    head = (HERE / "reading.md").read_text().format(rule=RULE.meaning)
    parts = [head, _filled((HERE / "situations.md").read_text(), measured), regime_tables(found), collapse_section()]
    parts.append(_filled((HERE / "findings.md").read_text(), measured))
    tables = (
        _on_every_task(found, MR2, "MR² on every task"),
        _on_every_task(found, COMPACT, "Compact logits on every task"),
        _against_rivals(found),
        _after_training(found),
        _with_equal_samples(equal),
        _overview(found),
    )
    parts += [table.render("md", level=2) for table in tables]
    parts.append(_pictures(figures.draw(found, superseded)))
    parts += [_geometry(path) for path in sorted(HERE.glob("*_geometry.json"))]
    parts.append(_ideas())
    return "\n".join(parts)


def by_name(found: Found) -> dict[str, Comparison]:
    """Every comparison, as ``suite:task/variant``."""
    return {
        f"{suite.name}:{table.task.name}/{name}": comparison
        for suite, _, tables in found
        for table in tables
        for name, comparison in table.comparisons.items()
    }


def committed_results() -> Found:
    found = []
    for name in SUITES:
        results = read_results([HERE / f"{name}.jsonl"])
        if results:
            suite = load_suite(str(HERE / f"{name}.py"))
            found.append((suite, results, suite_tables(suite, results, rule=RULE)))
    return found


def _superseded(found: Found) -> Found:
    """Runs whose method no suite can state any more, as variants of their suite beside its reference."""
    made = []
    for suite, results, _ in found:
        old = read_results([HERE / "superseded" / f"{suite.name}.jsonl"])
        variants: dict[str, Variant] = {}
        for run in old.values():
            method, before = run.config.method, variants.get(run.variant)
            tasks = {run.task, *(before.tasks if before else ())}
            note = str(method.params["superseded"])
            variants[run.variant] = Variant(run.variant, method.name, method.params, tasks=tuple(tasks), note=note)
        if variants:
            reference = next(v for v in suite.variants if v.name == suite.reference)
            changed = dataclasses.replace(suite, variants=(reference, *variants.values()))
            only = [f"*/{name}" for name in variants]
            made.append((changed, old, suite_tables(changed, {**results, **old}, rule=RULE, only=only)))
    return made


def _filled(text: str, comparisons: Mapping[str, Comparison]) -> str:
    """The text with every ``{suite:task/variant}`` replaced by what was measured, so that no number in it can become outdated.

    ``{suite:task/variant; easy}`` also has the easy third; ``{suite:task/variant, equal samples}`` is the difference to
    cross-entropy trained with the dial's validation samples as well.
    """

    def figures_of(match: re.Match[str]) -> str:
        name, _, further = match[1].partition("; ")
        found = comparisons.get(name)
        if found is None:
            raise SystemExit(f"findings.md: there is no result {name!r}")
        changes = {"overall": found.metrics["overall"], **{third: found.groups["cross"][third] for third in THIRDS}}
        shown = {third: changes[third].delta for third in ("overall", "hard", *further.split())}
        return ", ".join(f"{third} {difference(d.value, d.low, d.high)}" for third, d in shown.items())

    return re.sub(r"\{([^{}]+)\}", figures_of, text)


def _on_every_task(found: Found, variant: str, title: str) -> Table:
    """One variant against the reference, a row for each task."""
    rows = _rows_of(variant, found)
    caption = (
        "Difference to cross-entropy in points, with its 95 % interval over samples and seeds, as described above."
    )
    return Table(title, caption, ("task", *_heads(found)), tuple(rows))


def _against_rivals(found: Found) -> Table:
    """Compact logits against what one would try first, wherever both were run."""
    rows = [(rival, *row) for rival in RIVALS for row in _rows_of(COMPACT, turned_to(found, rival, COMPACT))]
    caption = (
        "Difference of compact logits to the method in the first column, which here is the reference and ranks the classes; "
        "otherwise as above. *Squeeze logits* is a penalty on large logits that does not look at classes."
    )
    return Table("Compact logits against other methods", caption, ("against", "task", *_heads(found)), tuple(rows))


def _after_training(found: Found) -> Table:
    """The gap dial as last stage, after compact logits and after cross-entropy."""
    dialled = (f"{COMPACT}{DIAL}", f"cross_entropy{DIAL}")
    rows = [(variant, *row) for variant in dialled for row in _rows_of(variant, found)]
    caption = (
        "Difference to cross-entropy without the dial in points, as above. The dial is fitted on the validation set, and its "
        "strength is chosen there: 50 samples per class, 60 on Fashion-MNIST. Cross-entropy does not use these samples; the next "
        "table corrects for that."
    )
    return Table("The gap dial after training", caption, ("variant", "task", *_heads(found)), tuple(rows))


def _with_equal_samples(equal: Found) -> Table:
    """The dial against using its validation samples for training."""
    rows = [(variant, *row) for variant in EQUAL for row in _rows_of(variant, equal)]
    caption = (
        "Difference in points to cross-entropy with as many additional training samples as the dial has for validation (on "
        "CIFAR-10 the same samples, elsewhere from the same pool). *Refit*: the dial is fitted as before, then the network is "
        "trained again with all samples and the dial is applied to it."
    )
    return Table("Equal numbers of samples on both sides", caption, ("variant", "task", *_heads(equal)), tuple(rows))


def turned_to(found: Found, reference: str, *variants: str) -> Found:
    """These variants with another method as the reference, wherever it was run."""
    turned = []
    for suite, results, _ in found:
        if reference in {variant.name for variant in suite.variants}:
            other = dataclasses.replace(suite, reference=reference)
            only = [f"*/{variant}" for variant in variants]
            turned.append((other, results, suite_tables(other, results, rule=RULE, only=only)))
    return turned


def _rows_of(variant: str, found: Found) -> list[tuple[str, ...]]:
    """The row of this variant in the table of differences of each task, under the name of the task."""
    return [
        (f"{suite.name}: {table.task.name}", *row[1:])
        for suite, _, tables in found
        for table in tables
        for row in table.differences.rows
        if row[0] == variant
    ]


def _heads(found: Found) -> tuple[str, ...]:
    """The columns of every table of differences, without the variant."""
    return tuple(found[0][2][0].differences.heads[1:])


def _overview(found: Found) -> Table:
    kinds = (
        ("closed", "better", "better_hard"),
        ("likely_hard", "not_hard", "elsewhere"),
        ("traded", "widened"),
        ("worse",),
    )
    rows = []
    for suite, _, tables in found:
        for task in tables:
            verdicts = {name: c.verdict.kind for name, c in task.comparisons.items()}
            cells = ("; ".join(n for n, kind in verdicts.items() if kind in group) or "–" for group in kinds)
            noise = sum(kind == "noise" for kind in verdicts.values())
            rows.append((f"{suite.name}: {task.task.name}", *cells, str(noise)))
    heads = ("task", "better on hard, no cost found", "better, uncertain on hard", "traded", "worse", "within noise")
    caption = (
        "Verdicts of classgap compare against the reference, from evidence_runs.md; the last column counts variants."
    )
    return Table("All verdicts", caption, heads, tuple(rows))


def _ideas() -> str:
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


def _geometry(path: Path) -> str:
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


def _pictures(drawn: Sequence[tuple[str, str]]) -> str:
    lines = [f"![{name}](images/{name})\n\n{caption}\n" for name, caption in drawn]
    return "\n".join(["## Pictures\n", *lines])


def _section(suite: Suite, results: Mapping[str, Result], tables: Sequence[TaskTables]) -> str:
    jobs = {job.key for job in suite.jobs()}
    done = [results[key] for key in jobs if key in results]
    spent = duration(sum(result.seconds for result in results.values()))
    versions = ", ".join(sorted({result.version for result in results.values()}))
    lines = [
        f"## {suite.name}\n",
        f"{suite.about}\n",
        f"Done: {len(done)} of {len(jobs)} runs, {spent} of training, classgap {versions}. Repeat with\n",
        f"    classgap bench benchmarks/evidence/{suite.name}.py\n",
    ]
    if others := len(results) - len(done):
        lines.append(f"The file holds {others} more runs that no variant of the suite asks for.\n")
    lines += [f"- **{v.name}**: {v.note}" for v in suite.variants if v.note]
    for task in tables:
        settings = ", ".join(f"`{text}`" for text in _settings(task.task.config))
        lines += [f"\n### {task.task.name}\n", f"{task.task.note}. Settings: {settings}.\n"]
        lines += [table.render("md", level=4) for table in (task.accuracy, task.differences) if table.rows]
    return "\n".join(lines)


def _superseded_section(suite: Suite, results: Mapping[str, Result], tables: Sequence[TaskTables]) -> str:
    spent = duration(sum(result.seconds for result in results.values()))
    lines = [f"### {suite.name}, superseded\n", f"{len(results)} runs, {spent} of training.\n"]
    lines += [f"- **{v.name}**: {v.note}" for v in suite.variants[1:]]
    lines += [f"\n{table.differences.render('md', level=4)}" for table in tables]
    return "\n".join(lines)


def _settings(config: TrainConfig) -> list[str]:
    """The settings that differ from the defaults of ``classgap train``."""
    changes = (text.partition(": ") for text in TrainConfig().differences(config))
    return [f"{key}={values.partition(' → ')[2].strip('[]') or 'none'}".replace("'", "") for key, _, values in changes]


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print(f"written: {DOCS / name}")
