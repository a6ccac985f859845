"""``classgap bench``: run methods × tasks × seeds under one protocol and print tables; can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.checks import InputError, one_of
from classgap.cli.options import Plugins
from classgap.cli.output import console, echo

if TYPE_CHECKING:
    from rich.console import Console

    from classgap.suites.running import BenchReport, Plan


def bench(
    suite: Annotated[
        str,
        typer.Argument(
            help="Python file with suite() -> Suite, tables of a paper (mr2, mr2_large, elm, …), a recipe, or smoke."
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK/VARIANT", help="Run and show only these jobs; may be a pattern. Repeatable."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0:5", help="Seeds to use instead of those of the suite: a range or a list.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting of all runs, e.g. data.root=/data. Repeatable."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Two epochs of every run on small stand-ins of the data: does everything work?"),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Number of worker processes; 0 for one per processor core, or one where there is a GPU."
        ),
    ] = 0,
    threads: Annotated[
        int,
        typer.Option(min=0, help="Threads per worker; 0 for OMP_NUM_THREADS, else an equal share of the processors."),
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the jobs; by default runs/bench/SUITE.")
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Results file. Runs in it, and in its archive FILE.xz, count as done. New runs are appended to the first file. "
            "By default SUITE.jsonl beside the file of the suite, or results.jsonl in --out. Repeatable.",
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="Epoch whose results are shown: last, val_hard, val_balanced or test_oracle (chosen on the test set)."
        ),
    ] = "last",
    form: Annotated[str, typer.Option("--format", help="Format of the tables: md, tex or html.")] = "md",
    list_jobs: Annotated[bool, typer.Option("--list", help="List the jobs and their state; run nothing.")] = False,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Print tables of the existing results; run nothing.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Run methods × tasks × seeds and report significant differences from the reference.

    Every job has a folder named by the hash of its configuration. You can stop
    with Ctrl-C and start again at any time: finished jobs are not repeated,
    other jobs continue from their checkpoint. Several machines that use the
    same --out on a shared disk divide the jobs among them.

    \b
    classgap bench smoke
    classgap bench benchmarks/evidence/digits.py --list
    classgap bench my_suite.py --workers 4 --seeds 0:5
    classgap bench my_suite.py --only "mlp/*" --only "*/cross_entropy"
    classgap bench my_suite.py --tables-only --rule val_hard --format tex
    classgap bench my_suite.py --results mine.jsonl --results theirs.jsonl
    classgap bench mr2 --tables-only              # published results
    classgap bench elm_imagenet_lt --set data.root=/data
    classgap bench dbm_large --quick --only "ImageNet-LT, ResNet-50/*"

    A suite is a few lines of Python:

    \b
    from classgap.suites import Suite, Task, Variant
    from classgap.training import TrainConfig
    def suite():
        base = TrainConfig().override(["data=digits", "epochs=30"])
        return Suite("mine", (Task("digits", base),), (
            Variant("erm"),                       # first variant: the reference
            Variant("re-run", seed_shift=1000),   # control: differs by chance only
            Variant("mr2", "mr2", {"lam": 0.3})))

    Exit codes: 0 success; 1 some jobs failed; 2 the input cannot be used;
    130 interrupted.
    """
    from classgap.suites import RULES
    from classgap.suites.render import FORMATS
    from classgap.suites.running import plan
    from classgap.suites.suite import parse_seeds

    one_of("--rule", rule, RULES)
    one_of("--format", form, FORMATS)
    screen = console(stderr=True)
    with screen.status("reading the suite"):
        chosen = None if seeds is None else parse_seeds(seeds)
        planned = plan(
            suite,
            seeds=chosen,
            only=only or (),
            settings=settings or (),
            quick=quick,
            out=out,
            results=results or (),
        )
        if not (list_jobs or tables_only):
            planned.collect()
        found = planned.report()
    if list_jobs:
        _list(found)
        return
    if not tables_only:
        found = _run(planned, found, workers, threads, screen)
    _print_tables(found, rule, form, screen, tables_only=tables_only)
    if found.failed:
        raise typer.Exit(1)


def _list(found: BenchReport) -> None:
    for job in found.jobs:
        state = "done" if job.key in found.results else "open"
        echo(f"{job.key}  {state}  {job.name}")
    echo(f"{len(found.jobs) - len(found.missing)} of {len(found.jobs)} jobs done", err=True)


def _run(planned: Plan, found: BenchReport, workers: int, threads: int, screen: Console) -> BenchReport:
    """Run the missing jobs, print the failures, and return the updated report."""
    from rich.text import Text

    from classgap.cli.bench_progress import BenchProgress
    from classgap.suites.pool import team_size
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
        workers, threads = team_size(len(missing), workers, threads)
        with BenchProgress(screen, by_key, list(found.results.values()), workers) as progress:
            failed = planned.run(missing, workers=workers, threads=threads, tell=progress.tell)
    except KeyboardInterrupt:
        screen.print("interrupted; the same command continues from here")
        raise typer.Exit(130) from None
    for name, error in failed.items():
        screen.print(Text(f"{name} failed: {error.strip()}", style="red"), soft_wrap=True)
    return planned.report(failed)


def _print_tables(found: BenchReport, rule: str, form: str, screen: Console, *, tables_only: bool) -> None:
    with screen.status("comparing"):
        tables, published = found.tables(rule), found.published(rule)
    if not tables and not published and not found.failed:
        way_out = "run the suite without --tables-only first" if tables_only else "check --only and --seeds"
        raise InputError(f"there are no results of {found.suite.name} to show; {way_out}")
    for task in tables:
        echo(task.accuracy.render(form))  # type: ignore[arg-type]
        if task.differences.rows:
            echo(task.differences.render(form))  # type: ignore[arg-type]
    for table in published:
        echo(table.render(form))  # type: ignore[arg-type]
