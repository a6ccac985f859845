"""Recipes: Python files that state a run with ``config(quick=False) -> TrainConfig``. Loads no torch, except for a quick run."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from classgap.checks import InputError, did_you_mean, shown
from classgap.registry import load_with_methods
from classgap.scripts import explained
from classgap.training.config import TrainConfig

_SHIPPED = Path(__file__).resolve().parents[1] / "recipes"
_QUICK_SIZE = 32
_QUICK_BATCH = 50
_QUICK_RATE = 0.01  # large networks with random weights do not get absurd scores in their few steps
_QUICK_IMBALANCE = 5.0  # the smallest class of a stand-in then has enough samples to hold some out for validation


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.py") if path.stem != "__init__")


def load_recipe(name: str | Path, *, quick: bool = False) -> TrainConfig:
    """The configuration that a recipe states.

    Args:
        name: The path of a Python file, a file in ``recipes/`` of the current folder, or a recipe of the package.
        quick: A short run on a small stand-in instead.
    """
    path = recipe_file(name)
    module = load_file(path, "recipe")
    if not callable(getattr(module, "config", None)):
        raise InputError(f"recipe {path} must define config(quick=False) -> TrainConfig")
    with explained(path, "recipe"):
        config = module.config(quick=quick)
    if not isinstance(config, TrainConfig):
        raise InputError(f"config() of recipe {path} must return a TrainConfig, got {type(config).__name__}")
    return config


def asked_for(config: TrainConfig | str | Path | None, settings: Sequence[str]) -> TrainConfig:
    """A configuration, the one of a recipe or the default one, with changes."""
    if isinstance(config, (str, Path)):
        config = load_recipe(config)
    elif config is None:
        config = TrainConfig()
    if not isinstance(config, TrainConfig):
        raise InputError(
            f"config must be a TrainConfig, or the name or path of a recipe, got {shown(config)}; write TrainConfig(epochs=3) or "
            "settings=['epochs=3']"
        )
    return config.override(settings)


def recipe_file(name: str | Path) -> Path:
    """The file of a recipe."""
    short = f"{str(name).removesuffix('.py')}.py"
    for path in (Path(name), Path("recipes") / short, _SHIPPED / short):
        if path.is_file():
            return path
    known = did_you_mean(str(name), recipe_names(), what="recipe")
    raise InputError(f"{known}; nor is there a file {name} or recipes/{short}. Without a recipe use --set alone")


def load_file(path: Path, what: str) -> ModuleType:
    """A recipe or suite as a module; those of the package are imported, those of a user may declare methods of their own."""
    if _SHIPPED in path.resolve().parents:
        inner = path.resolve().relative_to(_SHIPPED).with_suffix("").parts
        return importlib.import_module(".".join(("classgap", "recipes", *inner)))
    return load_with_methods(path, what)


def build(settings: Sequence[str], quick: bool) -> TrainConfig:
    """The configuration of these settings, or a short run of it."""
    config = TrainConfig().override(settings)
    return quickened(config) if quick else config


def quickened(config: TrainConfig) -> TrainConfig:
    """The same run in about a minute on a CPU: two epochs, small images, random weights, and a stand-in for a published set.

    The stand-in is scikit-learn's digits in the folders and files of the published set; accuracies on it mean nothing.
    """
    from classgap.data.stand_ins import WRITERS, stand_in

    data = dataclasses.replace(config.data, per_class=16)
    if config.data.name in WRITERS:
        size = None if config.data.size is None else _QUICK_SIZE
        resize = None if config.data.resize is None else _QUICK_SIZE + 4
        root = str(stand_in(config.data.name))
        data = dataclasses.replace(config.data, root=root, partial=True, size=size, resize=resize, per_class=None)
        data = dataclasses.replace(data, imbalance=min(data.imbalance, _QUICK_IMBALANCE))
    elif config.data.name == "two_moons":
        data = config.data
    schedule = dataclasses.replace(
        config.schedule, warmup=min(config.schedule.warmup, 0.5), warmup_steps=min(config.schedule.warmup_steps, 2)
    )
    if schedule.milestones:
        schedule = dataclasses.replace(schedule, milestones=(1,))
    model = dataclasses.replace(config.model, pretrained=False, wise=1.0)
    params = dict(config.stage.params)
    params |= {name: low for name, low in (("passes", 1), ("steps", 100)) if name in params}
    return dataclasses.replace(
        config,
        data=data,
        model=model,
        schedule=schedule,
        stage=dataclasses.replace(config.stage, params=params),
        optim=dataclasses.replace(config.optim, accumulate=1, lr=min(config.optim.lr, _QUICK_RATE)),
        epochs=2,
        batch=min(config.batch, _QUICK_BATCH),
        precision="32-true",
    )
