"""``classgap bench``: methods × tasks × seeds under one protocol, resumable, with tables at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.checks import InputError, one_of

if TYPE_CHECKING:
    from rich.console import Console

    from classgap.suites.running import BenchReport, Plan


def bench(
    suite: Annotated[str, typer.Argument(help="Python file with suite() -> Suite, or the built-in 'smoke'.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="TASK/VARIANT", help="Run and show only these; patterns, repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0:5", help="Instead of the suite's: a range or a list.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the jobs and the processors.")] = 1,
    threads: Annotated[int, typer.Option(min=0, help="Of each worker; 0 for its share of the processors.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where jobs live; by default runs/bench/SUITE.")
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Runs in these files, and in their archives FILE.xz, count as done; new ones are added to the first. By "
            "default SUITE.jsonl beside the suite's file, or results.jsonl in --out.",
        ),
    ] = None,
    rule: Annotated[
        str, typer.Option(help="Which epoch counts: last, val_hard, val_balanced or test_oracle (for insight only).")
    ] = "last",
    form: Annotated[str, typer.Option("--format", help="Of the tables: md, tex or html.")] = "md",
    list_jobs: Annotated[bool, typer.Option("--list", help="List the jobs and which are done; run nothing.")] = False,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="Print tables of what is there.")] = False,
) -> None:
    """Run methods × tasks × seeds and say what differs from the reference beyond noise.

    Every job is a folder named by the hash of its configuration. Stop with
    Ctrl-C and start again at any time: finished jobs are not repeated, others
    go on from their checkpoint. Start it on several machines with one --out on
    a shared disk, and they divide the jobs.

    \b
    classgap bench smoke
    classgap bench benchmarks/evidence/digits.py --list
    classgap bench my_suite.py --workers 4 --seeds 0:5
    classgap bench my_suite.py --only "mlp/*" --only "*/cross_entropy"
    classgap bench my_suite.py --tables-only --rule val_hard --format tex
    classgap bench my_suite.py --results mine.jsonl --results theirs.jsonl
    classgap bench benchmarks/papers/mr2.py --tables-only   # published numbers

    A suite is a few lines of Python:

    \b
    from classgap.suites import Suite, Task, Variant
    from classgap.training import TrainConfig
    def suite():
        base = TrainConfig().override(["data=digits", "epochs=30"])
        return Suite("mine", (Task("digits", base),), (
            Variant("erm"),                       # the first is the reference
            Variant("re-run", seed_shift=1000),   # the null: what chance does
            Variant("mr2", "mr2", {"lam": 0.3})))

    Exit codes: 0 fine, 1 some jobs could not be run, 2 the input cannot be
    used, 130 interrupted.
    """
    from rich.console import Console

    from classgap.suites import RULES
    from classgap.suites.render import FORMATS
    from classgap.suites.running import plan
    from classgap.suites.suite import parse_seeds

    one_of("--rule", rule, RULES)
    one_of("--format", form, FORMATS)
    screen = Console(stderr=True, highlight=False)
    with screen.status("reading the suite"):
        chosen = None if seeds is None else parse_seeds(seeds)
        planned = plan(suite, seeds=chosen, only=only or (), out=out, results=results or ())
        if not (list_jobs or tables_only):
            planned.collect()
        found = planned.report()
    if list_jobs:
        _list(found)
        return
    if not tables_only:
        found = _run(planned, found, workers, threads, screen)
    _print_tables(found, rule, form, screen)
    if found.failed:
        raise typer.Exit(1)


def _list(found: BenchReport) -> None:
    missing = {job.key for job in found.missing}
    for job in found.jobs:
        state = "open" if job.key in missing else "done"
        typer.echo(f"{job.key}  {state}  {job.name}")
    typer.echo(f"{len(found.jobs) - len(missing)} of {len(found.jobs)} jobs done", err=True)


def _run(planned: Plan, found: BenchReport, workers: int, threads: int, screen: Console) -> BenchReport:
    """Run what is not done, say what failed, and return what is known then."""
    from rich.text import Text

    from classgap.cli.bench_progress import BenchProgress
    from classgap.training.precision import set_up_precision

    suite, missing = planned.suite, found.missing
    if not missing:
        screen.print(f"all {len(found.jobs)} jobs of {suite.name} are done")
        return found
    planned.find_data(missing)
    sentences = {set_up_precision(precision, children=True) for precision in {job.config.precision for job in missing}}
    for sentence in sentences - {""}:
        screen.print(sentence, soft_wrap=True)
    counted = f"{len(missing)} of {len(found.jobs)} jobs"
    screen.print(f"{suite.name}: {counted} to run in {planned.folder} → {planned.results[0]}", soft_wrap=True)
    by_key = {job.key: job for job in missing}
    try:
        with BenchProgress(screen, by_key, list(found.results.values()), workers) as progress:
            failed = planned.run(missing, workers=workers, threads=threads, tell=progress.tell)
    except KeyboardInterrupt:
        screen.print("interrupted; the same command continues from here")
        raise typer.Exit(130) from None
    for name, error in failed.items():
        screen.print(Text(f"{name} could not be run: {error.strip()}", style="red"), soft_wrap=True)
    return planned.report(failed)


def _print_tables(found: BenchReport, rule: str, form: str, screen: Console) -> None:
    with screen.status("comparing"):
        tables, published = found.tables(rule), found.published(rule)
    if not tables and not published:
        raise InputError(f"there are no results of {found.suite.name} yet; run it without --tables-only")
    for task in tables:
        typer.echo(task.accuracy.render(form))  # type: ignore[arg-type]
        if task.differences.rows:
            typer.echo(task.differences.render(form))  # type: ignore[arg-type]
    for table in published:
        typer.echo(table.render(form))  # type: ignore[arg-type]
