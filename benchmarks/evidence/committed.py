"""The committed results of all suites, and texts filled with them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from classgap.measure import Comparison, compare
from classgap.measure.statistics.groups import THIRDS
from classgap.suites import RULES, Result, Suite, Variant, load_suite, read_results
from classgap.suites.tables import Row, TaskTables, difference, suite_tables

HERE = Path(__file__).resolve().parent
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
Part = tuple[Suite, Mapping[str, Result], list[TaskTables]]
Found = list[Part]
MR2 = "MR²"
RELEASED = "MR² released"
COMPACT = "compact logits"
DIAL = " + gap dial"
MORE = "cross_entropy, more samples"  # the reference that is trained with the dial's validation samples too
EQUAL = (f"{COMPACT}{DIAL}, refit", f"{COMPACT}, more samples", f"{COMPACT}{DIAL}", f"cross_entropy{DIAL}, refit")
LONG = "cross_entropy, 3 × the epochs"
LONG_AUGMENTED = "cross_entropy + AutoAugment, 3 × the epochs"
AUGMENTED_LOSSES = tuple(f"{name} + AutoAugment, 3 × the epochs" for name in (RELEASED, COMPACT))
LONG_LOSSES = (*(f"{name}, 3 × the epochs" for name in (MR2, RELEASED, COMPACT)), *AUGMENTED_LOSSES)
EQUALLY_LONG = (
    *(LONG_AUGMENTED, *LONG_LOSSES),
    *(f"{name}, flipped views + gap dial" for name in (LONG, LONG_AUGMENTED, *LONG_LOSSES)),
)
# Task and variant against cross-entropy of another task of the suite, whose test samples are the same in the same order.
ACROSS_TASKS = (("banking77", "frozen, hidden layer", COMPACT, "fine-tuned"),)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured of one variant of a task."""

    comparison: Comparison
    runs: int

    def deltas(self, *groups: str) -> list[str]:
        """The difference to the reference overall or in a cross-fitted third, e.g. ``+2.2 [+1.7, +2.7] ↑``."""
        changes = {"overall": self.comparison.metrics["overall"]}
        changes |= {third: self.comparison.groups["cross"][third] for third in THIRDS}
        estimates = (changes[group].delta for group in groups)
        return [difference(estimate.value, estimate.low, estimate.high) for estimate in estimates]


def committed_results() -> Found:
    found = []
    for name in SUITES:
        results = read_results([HERE / f"{name}.jsonl"])
        if results:
            suite = load_suite(str(HERE / f"{name}.py"))
            found.append((suite, results, suite_tables(suite, results, rule=RULE)))
    return found


def superseded_results(found: Found) -> Found:
    """Runs that no suite can repeat any more, as variants of their suite beside its reference.

    The reference is the present one, or a superseded one on tasks that have such runs.
    """
    made = []
    for suite, results, _ in found:
        old = read_results([HERE / "superseded" / f"{suite.name}.jsonl"])
        own = {run.task for run in old.values() if run.variant == suite.reference}
        for has_own in (False, True):
            runs = {key: run for key, run in old.items() if (run.task in own) == has_own}
            if runs:
                made.append(_superseded_part(suite, results, runs))
    return made


def _superseded_part(suite: Suite, results: Mapping[str, Result], old: Mapping[str, Result]) -> Part:
    variants: dict[str, Variant] = {}
    for run in old.values():
        method, before = run.config.method, variants.get(run.variant)
        tasks = {run.task, *(before.tasks if before else ())}
        note = str(method.params["superseded"])
        shift = run.config.seed - run.seed
        variants[run.variant] = Variant(
            run.variant, method.name, method.params, tasks=tuple(tasks), note=note, seed_shift=shift
        )
    present = next(variant for variant in suite.variants if variant.name == suite.reference)
    reference = variants.pop(suite.reference, present)
    changed = dataclasses.replace(suite, variants=(reference, *variants.values()))
    only = [f"*/{name}" for name in variants]
    return changed, old, suite_tables(changed, {**results, **old}, rule=RULE, only=only)


def turned_to(found: Found, reference: str, *variants: str) -> Found:
    """These variants with another method as the reference, wherever it was run."""
    turned = []
    for suite, results, _ in found:
        if reference in {variant.name for variant in suite.variants}:
            other = dataclasses.replace(suite, reference=reference)
            only = [f"*/{variant}" for variant in variants]
            turned.append((other, results, suite_tables(other, results, rule=RULE, only=only)))
    return turned


def with_other_references(found: Found) -> dict[str, Found]:
    """Comparisons with cross-entropy at equal cost.

    *Equal samples*: cross-entropy is trained with the dial's validation samples as well. *Equal epochs*: both sides have
    three times the epochs. *Equal augmentation*: both have AutoAugment too.
    """
    return {
        "equal samples": turned_to(found, MORE, *EQUAL),
        "equal epochs": turned_to(found, LONG, *EQUALLY_LONG),
        "equal augmentation": turned_to(found, LONG_AUGMENTED, *AUGMENTED_LOSSES),
    }


def all_measured(found: Found, superseded: Found, turned: Mapping[str, Found]) -> dict[str, Measured]:
    """Every comparison as ``suite:task/variant``, or ``suite:task/variant, equal samples`` where that has another reference."""
    others = {f"{name}, {how}": one for how, part in turned.items() for name, one in _by_name(part).items()}
    return {**_by_name(superseded), **_by_name(found), **others, **_across_tasks(found)}


def _across_tasks(found: Found) -> dict[str, Measured]:
    """Comparisons with cross-entropy of another task as ``suite:task/variant, against other task``."""
    rows: dict[tuple[str, str, str], Row] = {
        (suite.name, table.task.name, row.variant.name): row
        for suite, _, tables in found
        for table in tables
        for row in table.rows
    }
    made = {}
    for suite, task, variant, other in ACROSS_TASKS:
        row, reference = rows[suite, task, variant], rows[suite, other, "cross_entropy"]
        comparison = compare(reference.reports, row.reports)
        made[f"{suite}:{task}/{variant}, against {other}"] = Measured(comparison, len(row.seeds))
    return made


def _by_name(found: Found) -> dict[str, Measured]:
    return {
        f"{suite.name}:{table.task.name}/{row.variant.name}": Measured(
            table.comparisons[row.variant.name], len(row.seeds)
        )
        for suite, _, tables in found
        for table in tables
        for row in table.rows
        if row.variant.name in table.comparisons
    }


def filled(text: str, measured: Mapping[str, Measured]) -> str:
    """The text with every ``{suite:task/variant}`` replaced by what was measured, so that no number in it can become outdated.

    ``{suite:task/variant; easy}`` also has the easy third, ``{suite:task/variant; runs}`` is the number of runs alone.
    """

    def figures_of(match: re.Match[str]) -> str:
        name, _, further = match[1].partition("; ")
        if name not in measured:
            raise SystemExit(f"there is no result {name!r}")
        if further == "runs":
            return str(measured[name].runs)
        groups = ("overall", "hard", *further.split())
        return ", ".join(
            f"{group} {delta}" for group, delta in zip(groups, measured[name].deltas(*groups), strict=True)
        )

    return re.sub(r"\{([^{}]+)\}", figures_of, text)
