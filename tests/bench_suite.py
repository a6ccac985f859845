"""The smallest suite there is, for tests of the bench; ``done`` in conftest.py has run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from classgap.suites import Result, Suite, Task, Variant, append_results, read_results
from classgap.suites.jobs import JobFolder
from classgap.suites.results import collect_done
from classgap.suites.work import run_job
from classgap.training import TrainConfig

EPOCHS = 2
SUITE_FILE = """
    from classgap.suites import Suite, Task, Variant
    from classgap.training import TrainConfig

    def suite():
        base = TrainConfig().override(["data.per_class=13", "epochs=2", "batch=24", "optim.lr=0.05", "model=mlp-16"])
        return Suite("mine", (Task("digits", base),), (Variant("erm"), Variant("mr2", "mr2")), seeds=(0, 1))
"""


def tiny(**changes: Any) -> Suite:
    settings = ["data.per_class=13", f"epochs={EPOCHS}", "batch=24", "optim.lr=0.05", "model=mlp-16"]
    base = TrainConfig().override([*settings, "checkpoint_steps=2"])
    variants = (Variant("erm"), Variant("re-run", seed_shift=1000), Variant("mr2", "mr2"))
    given: dict[str, Any] = {"name": "tiny", "tasks": (Task("digits", base),), "variants": variants, "seeds": (0, 1)}
    return Suite(**{**given, **changes})


def run_all(out: Path) -> tuple[Suite, Path, dict[str, Result]]:
    """The tiny suite, its jobs run here one after the other, and their results."""
    suite = tiny()
    for job in suite.jobs():
        folder = JobFolder(out, job)
        with folder.claimed() as mine:
            assert mine
            run_job(job, folder)
    append_results(out / "results.jsonl", collect_done(suite.jobs(), out))
    return suite, out, read_results([out / "results.jsonl"])


def same(one: Result, two: Result) -> bool:
    skipped = {"seconds"}
    records = [{k: v for k, v in r.to_record().items() if k not in skipped} for r in (one, two)]
    return json.dumps(records[0]) == json.dumps(records[1])
