"""``classgap demo``: the whole product in two minutes, on data that come with scikit-learn."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from classgap import AuditReport, Comparison
    from classgap.train import TrainConfig, TrainResult

METHODS = ("cross_entropy", "mr2")
SEEDS = (0, 1, 2)


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for everything; by default a new classgap-demo.")] = None,
) -> None:
    """Train cross-entropy and MR² on three seeds, say whether they differ, and write report.html.

    No download: handwritten digits, few training images a class, so that some classes suffer.
    """
    from rich.console import Console

    import classgap

    console = Console()
    folder = out or _unused(Path("classgap-demo"))
    reports = _train_all(console, folder)
    comparison = classgap.compare(*(reports[method] for method in METHODS))
    page = comparison.to_html(folder / "report.html")
    _show(console, comparison)
    console.print("\nwritten:", highlight=False)
    console.print(f"  {page}   who gained, who paid, is it real", highlight=False, soft_wrap=True)
    console.print(f"  {folder / 'results.jsonl'}   one line a run", highlight=False, soft_wrap=True)
    console.print(f"  {folder}/*/checkpoint.pt, log.jsonl, predictions_test.npz", highlight=False, soft_wrap=True)


def demo_config(method: str, seed: int) -> TrainConfig:
    """The task: 797 training digits minus a validation split, thinned to 15 a class; a network of two hidden layers."""
    from classgap.train import DataConfig, MethodConfig, ModelConfig, OptimConfig, TrainConfig

    return TrainConfig(
        data=DataConfig("digits", per_class=15),
        model=ModelConfig("mlp-128-64"),
        method=MethodConfig(method),
        optim=OptimConfig(lr=0.05),
        epochs=60,
        batch=50,
        seed=seed,
    )


def _train_all(console: Console, folder: Path) -> dict[str, list[AuditReport]]:
    import classgap
    from classgap.cli._progress import RunProgress

    with console.status("loading torch"):
        import torch

        from classgap.train import fit

    torch.set_num_threads(1)  # the network is so small that threads would only wait for each other
    reports: dict[str, list[AuditReport]] = {method: [] for method in METHODS}
    with RunProgress(console, runs=len(METHODS) * len(SEEDS)) as progress:
        for seed, method in itertools.product(SEEDS, METHODS):
            progress.start(f"{method} seed {seed}")
            result = fit(demo_config(method, seed), folder / f"{method}-seed{seed}", watch=progress.watch)
            report = classgap.audit(result.test.y_true, scores=result.test.scores, class_names=result.test.class_names)
            reports[method].append(report)
            _log(folder / "results.jsonl", result, report)
    return reports


def _log(path: Path, result: TrainResult, report: AuditReport) -> None:
    names = ("overall", "easy", "medium", "hard", "worst")
    record = {
        "method": result.config.method.name,
        "seed": result.config.seed,
        "split": "test",
        "split_hash": result.split_hash,
        **{name: getattr(report, name).value for name in names},
        "config": result.config.to_dict(),
    }
    with path.open("a") as handle:
        handle.write(json.dumps(record) + "\n")


def _show(console: Console, comparison: Comparison) -> None:
    from rich.table import Table

    before, after = METHODS
    per_class = Table("class", before, after, "change", title="accuracy by class, mean of three seeds", box=None)
    for row in comparison.per_class:
        change = f"{100 * row['delta']:+.1f}  [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        per_class.add_row(str(row["name"]), f"{row['before']:.1%}", f"{row['after']:.1%}", change)
    groups = Table("group", before, after, "change", title="thirds, each model's own ranking", box=None)
    for name in ("overall", "easy", "medium", "hard", "worst"):
        change = getattr(comparison, name)
        delta = change.delta
        groups.add_row(
            name,
            *(f"{e.value:.1%} [{e.low:.1%}, {e.high:.1%}]" for e in (change.before, change.after)),
            f"{100 * delta.value:+.1f} [{100 * delta.low:+.1f}, {100 * delta.high:+.1f}]",
        )
    console.print(per_class)
    console.print()
    console.print(groups)
    console.print(f"\n{comparison.verdict.sentence}", highlight=False)


def _unused(folder: Path) -> Path:
    """``folder``, or the first of folder-2, folder-3 … that is not there: a demo never overwrites an earlier one."""
    names = itertools.chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not name.exists())
