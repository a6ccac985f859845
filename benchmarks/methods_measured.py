"""What every method reaches with its defaults on the same features, for the cards of docs/methods.md.

python benchmarks/methods_measured.py     # compare the results of evidence/field.py and write methods_measured.json (minutes)
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from classgap.bench import Variant, load_suite, read_results
from classgap.bench.tables import difference, suite_tables
from classgap.measure import Comparison

HERE = Path(__file__).resolve().parent
SUITE = HERE / "evidence" / "field.py"
FIGURES = HERE / "methods_measured.json"
_KINDS = {"sampler": "sampler", "wrapper": "optimizer", "stage": "stage"}


def card_of(variant: Variant) -> tuple[str, str] | None:
    """Kind and name of the method a variant is, if it is one with its defaults and nothing else."""
    if variant.params or variant.seed_shift:
        return None
    if variant.method != "cross_entropy":
        return None if variant.settings else ("loss", variant.method)
    if len(variant.settings) != 1:
        return None
    section, _, name = variant.settings[0].partition("=")
    return (_KINDS[section], name) if section in _KINDS else None


def results_hash() -> str:
    """What the figures were made of."""
    return hashlib.sha256(SUITE.with_suffix(".jsonl").read_bytes()).hexdigest()


def main() -> None:
    suite = load_suite(str(SUITE))
    figures: dict[str, dict[str, dict[str, object]]] = {}
    for table in suite_tables(suite, read_results([SUITE.with_suffix(".jsonl")])):
        for row in table.rows:
            if (owner := card_of(row.variant)) is not None:
                kind, name = owner
                entry = {"runs": len(row.seeds), "diverged": row.diverged}
                entry |= _differences(table.comparisons.get(row.variant.name))
                figures.setdefault(kind, {}).setdefault(name, {})[table.task.name] = entry
    tasks = {task.name: task.note for task in suite.tasks}
    about = {"results": results_hash(), "seeds": len(suite.seeds), "tasks": tasks, "figures": figures}
    FIGURES.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def _differences(found: Comparison | None) -> dict[str, str]:
    """The change overall and in the hard third, cross-fitted, with its interval; nothing where all runs diverged."""
    if found is None:
        return {}
    deltas = {"overall": found.metrics["overall"].delta, "hard": found.groups["cross"]["hard"].delta}
    return {group: difference(delta.value, delta.low, delta.high) for group, delta in deltas.items()}


if __name__ == "__main__":
    main()
