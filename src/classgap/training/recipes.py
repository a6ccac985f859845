"""Recipes: Python files that state a run with ``config(quick=False) -> TrainConfig``. Loads no torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from classgap.checks import InputError
from classgap.training.config import TrainConfig


def load_recipe(name: str | Path, *, quick: bool = False) -> TrainConfig:
    """The configuration a recipe file states."""
    path = Path(name)
    if not path.is_file():
        path = Path("recipes") / f"{str(name).removesuffix('.py')}.py"
    if not path.is_file():
        raise InputError(f"there is no recipe {name}, nor {path}; without a recipe use --set alone")
    spec = importlib.util.spec_from_file_location("recipe", path)
    if spec is None or spec.loader is None:
        raise InputError(f"recipe {path} must be a Python file ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # a recipe may import files of its folder, as a script may
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    if not callable(getattr(module, "config", None)):
        raise InputError(f"recipe {path} must define config(quick=False) -> TrainConfig")
    config = module.config(quick=quick)
    if not isinstance(config, TrainConfig):
        raise InputError(f"config() of recipe {path} must return a TrainConfig, got {type(config).__name__}")
    return config
