"""``classgap demo``: train, audit and compare in two minutes, on data that scikit-learn contains."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgap.writing import append_line

if TYPE_CHECKING:
    from rich.console import Console

    from classgap import AuditReport, Comparison
    from classgap.training import TrainConfig, TrainResult

BASELINE, METHODS = "cross_entropy", ("cross_entropy", "mr2", "compact_logits")
SEEDS = (0, 1, 2)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for all output; by default a new folder classgap-demo.")
    ] = None,
) -> None:
    """Train cross-entropy, MR² and compact logits with three seeds each, compare them, and write one report page per comparison.

    Nothing is downloaded. The data are handwritten digits with 15 training images per class, so few that some classes are hard.
    """
    import classgap
    from classgap.cli.output import console as make_console

    console = make_console()
    folder = out or _unused(Path("classgap-demo"))
    reports = _train_all(console, folder)
    comparisons = {
        method: classgap.compare(reports[BASELINE], reports[method]) for method in METHODS if method != BASELINE
    }
    pages = [comparison.to_html(folder / f"report-{method}.html") for method, comparison in comparisons.items()]
    _show(console, comparisons)
    written = [(str(page), "comparison: which classes improved or got worse, with significance") for page in pages]
    written.append((str(folder / "results.jsonl"), "one line per run"))
    written.append((f"{folder}/*/", "checkpoint.pt, log.jsonl and predictions_test.npz of each run"))
    console.print("\nwritten:", highlight=False)
    for path, what in written:
        console.print(f"  {path}   {what}", highlight=False, soft_wrap=True)


def demo_config(method: str, seed: int) -> TrainConfig:
    """The task: 15 training digits per class and a network with two hidden layers."""
    from classgap.training import DataConfig, MethodConfig, ModelConfig, OptimConfig, TrainConfig

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
    from classgap.cli.run_progress import RunProgress

    with console.status("loading torch"):
        import torch

        from classgap.training import train

    torch.set_num_threads(1)  # the network is too small for several threads to help
    reports: dict[str, list[AuditReport]] = {method: [] for method in METHODS}
    with RunProgress(console, runs=len(METHODS) * len(SEEDS)) as progress:
        for seed, method in itertools.product(SEEDS, METHODS):
            progress.start(f"{method} seed {seed}")
            result = train(demo_config(method, seed), folder / f"{method}-seed{seed}", watch=progress.watch)
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
    append_line(path, json.dumps(record))


def _show(console: Console, comparisons: Mapping[str, Comparison]) -> None:
    """Accuracies of the classes and of the thirds for every method, and a verdict for each comparison."""
    from rich.table import Table

    first = next(iter(comparisons.values()))
    per_class = Table("class", *METHODS, title="accuracy per class, mean over three seeds", box=None)
    for rows in zip(*(comparison.per_class for comparison in comparisons.values()), strict=True):
        accuracies = [rows[0]["before"], *(row["after"] for row in rows)]
        per_class.add_row(str(rows[0]["name"]), *(f"{value:.1%}" for value in accuracies))
    others = [f"change by {method}" for method in comparisons]
    groups = Table(
        "group", BASELINE, *others, title="change in points; thirds by the own ranking of each method", box=None
    )
    for name in ("overall", "easy", "medium", "hard", "worst"):
        base = getattr(first, name).before
        deltas = [getattr(comparison, name).delta for comparison in comparisons.values()]
        cells = [f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]" for d in deltas]
        groups.add_row(name, f"{base.value:.1%} [{base.low:.1%}, {base.high:.1%}]", *cells)
    console.print(per_class)
    console.print()
    console.print(groups)
    for method, comparison in comparisons.items():
        console.print(f"\n{method} against {BASELINE}: {comparison.verdict.sentence}", highlight=False)


def _unused(folder: Path) -> Path:
    """``folder``, or the first of folder-2, folder-3 … that does not exist: a demo never overwrites an earlier one."""
    names = itertools.chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not name.exists())
