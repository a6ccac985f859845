"""What every method reaches with its defaults on the same features, and augmentation on images, for docs/methods.md.

python benchmarks/methods_measured.py     # compare the results of evidence/*.py and write methods_measured.json (minutes)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from classgap.measure import Comparison
from classgap.suites import Result, Suite, Variant, load_suite, read_results
from classgap.suites.tables import difference, suite_tables

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "methods_measured.json"
FIELD = "field"
IMAGES = ("cifar10", "fashion")
_KINDS = {"sampler": "sampler", "wrapper": "optimizer", "stage": "stage", "mix": "mix", "data.augment": "augmentation"}


def card_of(variant: Variant) -> tuple[str, str] | None:
    """Kind and name of the method a variant is, if it is one with its defaults and nothing else."""
    if variant.params or variant.seed_shift:
        return None
    if variant.method != "cross_entropy":
        return None if variant.settings else ("loss", variant.method)
    if len(variant.settings) != 1:
        return None
    section, _, names = variant.settings[0].partition("=")
    return (_KINDS[section], names.rpartition(",")[2]) if section in _KINDS else None


def results_of(suite: str) -> dict[str, Result]:
    """The committed results of a suite."""
    return read_results([HERE / "evidence" / f"{suite}.jsonl"])


def results_hash() -> str:
    """A hash of the runs that the numbers were computed from, whatever file or archive they are in."""
    digest = hashlib.sha256()
    for suite in (FIELD, *IMAGES):
        for line in sorted(json.dumps(_identity(run)) for run in results_of(suite).values()):
            digest.update(line.encode())
    return digest.hexdigest()


def _identity(run: Result) -> list[object]:
    return [run.suite, run.task, run.variant, run.config.seed, run.split_hash, [c.test_correct for c in run.candidates]]


def main() -> None:
    """Every method of the suite *field*; of the suites on images only augmentation."""
    field = _suite(FIELD)
    figures: dict[str, dict[str, dict[str, object]]] = {}
    for name in (FIELD, *IMAGES):
        for (kind, method), task, entry in _entries(name):
            figures.setdefault(kind, {}).setdefault(method, {})[task] = entry
    tasks = {task.name: task.note for task in field.tasks}
    about = {"results": results_hash(), "seeds": len(field.seeds), "tasks": tasks, "figures": figures}
    FIGURES.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def _suite(name: str) -> Suite:
    return load_suite(str(HERE / "evidence" / f"{name}.py"))


def _entries(name: str) -> Iterator[tuple[tuple[str, str], str, dict[str, object]]]:
    """Card, task and numbers of every variant of a suite that has a card."""
    suite = _suite(name)
    found = {variant.name: card_of(variant) for variant in suite.variants}
    cards = {v: card for v, card in found.items() if card and (name == FIELD or card[0] in ("augmentation", "mix"))}
    for table in suite_tables(suite, results_of(name), only=[f"*/{variant}" for variant in cards]):
        task = table.task.name if name == FIELD else f"{name}, {table.task.name}"
        for row in table.rows:
            if (card := cards.get(row.variant.name)) is not None:
                runs = {"runs": len(row.seeds), "diverged": row.diverged}
                yield card, task, runs | _differences(table.comparisons.get(row.variant.name))


def _differences(found: Comparison | None) -> dict[str, str]:
    """The change overall and in the hard third, cross-fitted, with its interval; nothing where all runs diverged."""
    if found is None:
        return {}
    deltas = {"overall": found.metrics["overall"].delta, "hard": found.groups["cross"]["hard"].delta}
    return {group: difference(delta.value, delta.low, delta.high) for group, delta in deltas.items()}


if __name__ == "__main__":
    main()
