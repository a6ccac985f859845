"""``classgap bench``: methods × tasks × seeds under one protocol, resumable, with tables at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.checks import InputError, one_of

if TYPE_CHECKING:
    from rich.console import Console

    from classgap.suites import Result, Suite
    from classgap.suites.jobs import Job
    from classgap.suites.tables import TaskTables


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

    from classgap.suites import RULES, append_results, load_suite, read_results
    from classgap.suites.render import FORMATS
    from classgap.suites.results import collect_done
    from classgap.suites.suite import parse_seeds

    one_of("--rule", rule, RULES)
    one_of("--format", form, FORMATS)
    screen = Console(stderr=True, highlight=False)
    with screen.status("reading the suite"):
        chosen = load_suite(suite)
        jobs = chosen.jobs(None if seeds is None else parse_seeds(seeds), only or ())
        folder = out or Path("runs") / "bench" / chosen.name
        files = results or [Path(suite).with_suffix(".jsonl") if Path(suite).is_file() else folder / "results.jsonl"]
        if not (list_jobs or tables_only):
            append_results(files[0], collect_done(jobs, folder))
        found = read_results(files)
    if list_jobs:
        _list(jobs, found)
        return
    failed = 0
    if not tables_only:
        failed = _run(chosen, jobs, found, folder, files[0], workers, threads, screen)
        append_results(files[0], collect_done(jobs, folder))  # also what other machines have finished meanwhile
        found = read_results(files)
    _print_tables(chosen, found, rule, form, seeds, only, screen)
    if failed:
        raise typer.Exit(1)


def _list(jobs: Sequence[Job], found: Mapping[str, Result]) -> None:
    for job in jobs:
        state = "done" if job.key in found else "open"
        typer.echo(f"{job.key}  {state}  {job.name}")
    done = sum(job.key in found for job in jobs)
    typer.echo(f"{done} of {len(jobs)} jobs done", err=True)


def _run(
    suite: Suite,
    jobs: Sequence[Job],
    found: Mapping[str, Result],
    folder: Path,
    results: Path,
    workers: int,
    threads: int,
    screen: Console,
) -> int:
    """Run what is not done, say what failed, and return how many jobs did."""
    from rich.text import Text

    from classgap.cli.bench_progress import BenchProgress
    from classgap.suites.pool import run_jobs
    from classgap.training.precision import set_up_precision

    left = [job for job in jobs if job.key not in found]
    if not left:
        screen.print(f"all {len(jobs)} jobs of {suite.name} are done")
        return 0
    _find_data(suite, left)
    sentences = {set_up_precision(precision, children=True) for precision in {job.config.precision for job in left}}
    for sentence in sentences - {""}:
        screen.print(sentence, soft_wrap=True)
    by_key = {job.key: job for job in left}
    screen.print(f"{suite.name}: {len(by_key)} of {len(jobs)} jobs to run in {folder} → {results}", soft_wrap=True)
    # A batch system's request to end is like Ctrl-C: workers must not outlive this process.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with BenchProgress(screen, by_key, list(found.values()), workers) as progress:
            errors = run_jobs(left, folder, results=results, workers=workers, threads=threads, tell=progress.tell)
    except KeyboardInterrupt:
        screen.print("interrupted; the same command goes on from here")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    for key, error in errors.items():
        screen.print(Text(f"{by_key[key].name} could not be run: {error.strip()}", style="red"), soft_wrap=True)
    return len(errors)


def _find_data(suite: Suite, jobs: Sequence[Job]) -> None:
    """Let workers find the suite's archives, and say at once if one is missing."""
    if suite.data is not None:
        os.environ.setdefault("CLASSGAP_DATA", str(suite.data))
    from classgap.data import data_root

    for name in sorted({job.config.data.name for job in jobs}):
        kind, _, path = name.partition(":")
        if kind == "npz" and not any((place / path).is_file() for place in (Path(), data_root())):
            raise InputError(
                f"suite {suite.name} needs {path}, which is not in {data_root()}; set CLASSGAP_DATA to the folder that "
                "has it (tables of committed results need no data: --tables-only)"
            )


def _print_tables(
    suite: Suite,
    found: Mapping[str, Result],
    rule: str,
    form: str,
    seeds: str | None,
    only: list[str] | None,
    screen: Console,
) -> None:
    from classgap.suites import RULES
    from classgap.suites.published import published_tables
    from classgap.suites.suite import parse_seeds
    from classgap.suites.tables import suite_tables

    chosen = None if seeds is None else parse_seeds(seeds)
    with screen.status("comparing"):
        tables: list[TaskTables] = suite_tables(suite, found, rule=RULES[rule], seeds=chosen, only=only or ())
        published = published_tables(suite, found, rule=RULES[rule], seeds=chosen, only=only or ())
    if not tables and not published:
        raise InputError(f"there are no results of {suite.name} yet; run it without --tables-only")
    for task in tables:
        typer.echo(task.accuracy.render(form))  # type: ignore[arg-type]
        if task.differences.rows:
            typer.echo(task.differences.render(form))  # type: ignore[arg-type]
    for table in published:
        typer.echo(table.render(form))  # type: ignore[arg-type]
