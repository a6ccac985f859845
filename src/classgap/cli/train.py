"""``classgap train``: train a classifier from a recipe or from settings."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.checks import InputError
from classgap.cli.options import Plugins
from classgap.writing import check_folder

if TYPE_CHECKING:
    from rich.console import Console

    from classgap.training import TrainConfig, TrainResult


def train(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Recipe: a name such as mr2_cifar100, or a Python file with config(quick=False) -> TrainConfig."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. optim.lr=0.05; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a folder in runs/ named after the settings.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in this folder from its last checkpoint.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short test run: two epochs on few samples or a stand-in.")
    ] = False,
    devices: Annotated[
        str | None,
        typer.Option(
            help="Number of devices on each machine, or auto for all. One by default, or as many as torchrun or srun started."
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="Number of machines. One by default, or as many as torchrun or srun started."),
    ] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that decode image files, for each device; one per processor core by default, at most 8. Results do "
            "not depend on it."
        ),
    ] = None,
    memory: Annotated[
        int,
        typer.Option(metavar="MB", help="Image files that take more than this when decoded are read during training."),
    ] = 1000,
    precision: Annotated[
        str | None,
        typer.Option(
            help="32-true, bf16-mixed, 16-mixed, bf16-true or 64-true. On a CPU, a child process first tests whether bf16 works, "
            "with which setting, and whether it is slower than float32."
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Train a classifier and write its log, checkpoints and predictions to one folder.

    Without a recipe, --set changes the defaults: a small network on scikit-learn's digits.

        classgap train --set data=cifar10 --set model=resnet32 --set method=mr2 --set method.lam=0.06 --set epochs=200

    Your own data are named by their path: a folder of images (train/CLASS/… beside test or val, or CLASS/…), a CSV, TSV or
    Parquet table with columns path, label and optionally split, a list file with a path and a label per line, or an NPZ archive:

        classgap train --set data=photos/ --set data.size=224 --set data.augment=resized_crop,flip --set model=timm:resnet18

    On SIGTERM or SIGUSR1 a run saves a checkpoint and ends; under SLURM, SIGUSR1 also puts the job into the queue again.
    """
    from classgap.cli.output import console as make_console

    if precision is not None:
        settings = [*(settings or []), f"precision={precision}"]
    _check_words([*([] if recipe is None else [recipe]), *context.args])
    config, folder = _resolve(recipe, settings or [], out, resume, quick)
    check_folder(folder)
    # With several devices there is one process per device; only the first one prints.
    console = make_console(quiet=not _is_first_process())
    from classgap.cli.run_progress import RunProgress
    from classgap.training.precision import set_up_precision

    if accelerator in ("auto", "cpu") and (sentence := set_up_precision(config.precision)):  # before torch is loaded
        console.print(sentence, highlight=False, soft_wrap=True)
    from classgap.training import train as run
    from classgap.training.interruption import noting_signals

    what = " · ".join((config.data.name, config.model.name, config.method.name, *config.parts))
    console.print(f"{what} → {folder}", highlight=False)
    where = {"devices": devices, "nodes": nodes, "strategy": None if strategy == "auto" else strategy}
    with _ending_well(console, folder, "".join(f" --{name} {value}" for name, value in where.items() if value)):
        with noting_signals(), RunProgress(console) as progress:
            progress.start(config.method.name)
            result = run(
                config,
                folder,
                resume=resume,
                devices=devices,
                nodes=nodes,
                accelerator=accelerator,
                strategy=strategy,
                workers=workers,
                memory=memory,
                watch=progress.watch,
            )
        _report(console, result)


def _is_first_process() -> bool:
    """Whether this is the first process of a run, which prints; Fabric, torchrun and SLURM number processes differently."""
    ranks = ["RANK"] if "RANK" in os.environ else ["LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"]
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)


@contextlib.contextmanager
def _ending_well(console: Console, folder: Path, where: str = "") -> Iterator[None]:
    """Say how to continue where a run was interrupted; ``where`` are the options of its devices."""
    from classgap.training.interruption import RunInterrupted, requeue
    from classgap.training.processes import LostProcessError, SharedProblem

    again = f"continue with the same command and --resume, or: classgap train --resume --out {folder}{where}"
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; {again}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except RunInterrupted as stopped:
        job = requeue(stopped.number) if _is_first_process() else None
        how = (
            again if job is None else f"SLURM job {job} is in the queue again and continues if its command has --resume"
        )
        console.print(f"{stopped}; {how}", highlight=False, soft_wrap=True)
        raise typer.Exit(128 + stopped.number) from None
    except SharedProblem:
        raise typer.Exit(2) from None
    except LostProcessError as lost:
        if lost.is_first():
            raise
        raise typer.Exit(2) from None


def _check_words(words: list[str]) -> None:
    """Reject arguments without an option, except one recipe; explain a setting that lacks its --set."""
    if loose := [word for word in words if "=" in word]:
        raise InputError(f"every setting needs its own --set: write {' '.join(f'--set {word}' for word in loose)}")
    if len(words) > 1:
        raise InputError(f"train takes one recipe, got {', '.join(words)}")


def _resolve(
    recipe: str | None, settings: list[str], out: Path | None, resume: bool, quick: bool
) -> tuple[TrainConfig, Path]:
    """Configuration and folder. The folder alone identifies a run to resume."""
    from classgap.training import TrainConfig

    if resume and out is not None and recipe is None and not settings and not quick:
        from classgap.training.config import read_run

        stored = read_run(out)
        if stored is None:
            raise InputError(f"--resume: there is no run in {out}; to start one, give its recipe or settings")
        return stored, out
    if recipe is not None:
        from classgap.training.recipes import load_recipe

        config = load_recipe(recipe, quick=quick)
    else:
        config = TrainConfig().override(["epochs=2", "data.per_class=16"] if quick else [])
    config = config.override(settings)
    return config, out or Path("runs") / config.slug


def _report(console: Console, result: TrainResult) -> None:
    """Print the accuracy of each group on the test set, and the command for a full audit."""
    import classgap

    test = result.test
    report = classgap.audit(test.y_true, test.y_pred, class_names=test.class_names)
    for name in ("overall", "easy", "medium", "hard", "worst"):
        estimate = getattr(report, name)
        if math.isnan(estimate.value):  # two classes have no medium third
            continue
        interval = f"[{estimate.low:.1%}, {estimate.high:.1%}]"
        console.print(f"{name:>8}  {estimate.value:6.1%}  {interval}", highlight=False)
    console.print(
        f"on the test set, with {report.confidence:.0%} intervals; for the full report: "
        f"classgap audit {result.folder}/predictions_test.npz",
        highlight=False,
        soft_wrap=True,
    )
