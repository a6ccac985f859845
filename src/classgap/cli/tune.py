"""``classgap tune``: search for parameters on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classgap.cli.options import Plugins
from classgap.cli.output import echo


def tune(
    recipe: Annotated[
        str | None,
        typer.Argument(help="Recipe: a name such as mr2_cifar100, or a Python file with config() -> TrainConfig."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all trials, e.g. method=elm. Repeatable."),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Values to search: a range optim.lr=0.01:0.3:log, or a choice method.c_bar=1,2,3. Repeatable. By default the "
            "ranges that the method declares.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the study. Processes with the same folder share it.")
    ] = (Path("tuned")),
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in the study, over all processes.")] = 20,
    slack: Annotated[
        float, typer.Option(help="How many points the overall accuracy may lie below that of cross-entropy.")
    ] = 0.0,
    prune: Annotated[bool, typer.Option(help="End trials early that are below the median of the others.")] = True,
    seed: Annotated[int, typer.Option(help="Random seed of the search.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short runs on few samples or a stand-in of the data.")
    ] = False,
    train: Annotated[
        bool,
        typer.Option("--train", help="Then train with the chosen values and test once, in the folder best of --out."),
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Search for the parameters with the best hard third whose overall accuracy is not worse than cross-entropy's.

    Trials see training and validation data only; the test set is not touched. Start the same command several times, also on
    several machines with a shared folder, and the processes divide the trials among them. The chosen values and all trials are
    written to tuned.json.

    \b
    classgap tune --set data=cifar100 --set model=resnet32 --set method=mr2_published --space method.c_bar=1,2,3 \\
        --space method.lam=0.1,0.3,0.5,0.7,0.9 --trials 15
    classgap tune elm_cifar_lt --set data.val_fraction=0.1 --trials 30 --out studies/elm
    """
    from classgap.training.config import TrainConfig
    from classgap.training.recipes import load_recipe, quickened
    from classgap.tuning import parse_space
    from classgap.tuning import tune as search

    plain = quickened(TrainConfig()) if quick else TrainConfig()
    config = plain if recipe is None else load_recipe(recipe, quick=quick)
    found = search(
        config,
        out,
        settings=settings or (),
        space=parse_space(space) if space else None,
        trials=trials,
        slack=slack / 100,
        prune=prune,
        seed=seed,
        tell=echo,
    )
    if not found.feasible:
        echo("no trial kept the overall accuracy of cross-entropy; the values below have the best overall accuracy")
    gain = 100 * (found.hard - found.reference["hard"])
    echo(
        f"chosen of {len(found.trials)} trials: hard {found.hard:.1%} ({gain:+.1f} points), overall {found.overall:.1%}"
    )
    echo("  " + " ".join(f"--set {setting}" for setting in found.settings))
    echo(f"on validation data, chosen among many, so expect less on new data; all trials: {out / 'tuned.json'}")
    if train:
        result = found.train()
        echo(f"tested once: classgap audit {result.folder}/predictions_test.npz")
