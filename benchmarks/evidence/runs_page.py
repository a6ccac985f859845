"""docs/evidence_runs.md: the tables of every suite, and the runs of code that has been removed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from committed import Found

from classgap.cli.bench_progress import duration
from classgap.suites import Result, Suite
from classgap.suites.tables import TaskTables
from classgap.training import TrainConfig

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


def runs_page(found: Found, superseded: Found) -> str:
    """The text of the page."""
    old = (_superseded_section(*part) for part in superseded)
    return "\n".join([RUNS_HEAD, *(_section(*part) for part in found), SUPERSEDED_HEAD, *old])


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
    tasks = ", ".join(sorted({result.task for result in results.values()}))
    lines = [f"### {suite.name}, superseded: {tasks}\n", f"{len(results)} runs, {spent} of training.\n"]
    lines += [f"- **{v.name}**: {v.note}" for v in suite.variants[1:]]
    lines += [f"\n{table.differences.render('md', level=4)}" for table in tables]
    return "\n".join(lines)


def _settings(config: TrainConfig) -> list[str]:
    """The settings that differ from the defaults of ``classgap train``."""
    changes = (text.partition(": ") for text in TrainConfig().differences(config))
    return [f"{key}={values.partition(' → ')[2].strip('[]') or 'none'}".replace("'", "") for key, _, values in changes]
