"""Recipes: Python files that state a run with ``config(quick=False) -> TrainConfig``. Loads no torch."""

from __future__ import annotations

from pathlib import Path

from classgap.checks import InputError
from classgap.registry import load_with_methods
from classgap.scripts import explained
from classgap.training.config import TrainConfig


def load_recipe(name: str | Path, *, quick: bool = False) -> TrainConfig:
    """The configuration a recipe file states."""
    path = Path(name)
    if not path.is_file():
        path = Path("recipes") / f"{str(name).removesuffix('.py')}.py"
    if not path.is_file():
        raise InputError(f"there is no recipe {name}, nor {path}; without a recipe use --set alone")
    module = load_with_methods(path, "recipe")
    if not callable(getattr(module, "config", None)):
        raise InputError(f"recipe {path} must define config(quick=False) -> TrainConfig")
    with explained(path, "recipe"):
        config = module.config(quick=quick)
    if not isinstance(config, TrainConfig):
        raise InputError(f"config() of recipe {path} must return a TrainConfig, got {type(config).__name__}")
    return config
