"""Search spaces: what a method declares, and what a user adds."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from classgap import registry
from classgap.checks import InputError, plain_value
from classgap.losses import ClassLoss
from classgap.registry import Choice, Float, Int, Space
from classgap.training.build import arguments
from classgap.training.config import TrainConfig
from classgap.training.stages.base import stages_of

_CLASSES = 100  # stands for the number of classes while the values of parameters are checked
_KINDS: dict[str, registry.Kind] = {
    "method": "loss",
    "stage": "stage",
    "sampler": "sampler",
    "mix": "mix",
    "wrapper": "optimizer",
}


def search_space(config: TrainConfig) -> dict[str, Space]:
    """The declared parameters of the method of a run, and of its stage, sampler, mix and wrapper where it has them, by setting.

    Example:
        >>> search_space(TrainConfig().override(["method=logit_adjusted"]))
        {'method.tau': Float(low=0.1, high=3.0, default=1.0, log=True)}
    """
    space: dict[str, Space] = {}
    for section, kind in _KINDS.items():
        name = getattr(config, section).name
        if name != "none":
            space |= {f"{section}.{key}": values for key, values in registry.get(kind, name).space.items()}
    return space


def parse_space(texts: Sequence[str]) -> dict[str, Space]:
    """``optim.lr=0.01:0.3:log`` (a range), ``method.c_bar=1,2,3`` (a choice).

    Example:
        >>> parse_space(["method.lam=0.1:0.9", "method.c_bar=1,2,3"])["method.c_bar"].options
        (1, 2, 3)
    """
    return dict(_parse(text) for text in texts)


def _parse(text: str) -> tuple[str, Space]:
    setting, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"--space must be like optim.lr=0.01:0.3:log or method.c_bar=1,2,3, got {text!r}")
    if ":" not in values:
        options = tuple(plain_value(option) for option in values.split(","))
        return setting, Choice(options, options[0])
    low, high, *scale = values.split(":")
    try:
        whole = all(part.lstrip("-").isdecimal() for part in (low, high))
        bounds = (int(low), int(high)) if whole else (float(low), float(high))
    except ValueError:
        bounds = (1, 0)
    if (
        not all(map(math.isfinite, bounds))
        or bounds[0] >= bounds[1]
        or scale not in ([], ["log"])
        or (scale and bounds[0] <= 0)
    ):
        raise InputError(
            f"--space {text!r} must be a range low:high or low:high:log with low below high (above 0 for log)"
        )
    if whole:
        return setting, Int(int(bounds[0]), int(bounds[1]), int(bounds[0]), log=bool(scale))
    return setting, Float(float(bounds[0]), float(bounds[1]), float(bounds[0]), log=bool(scale))


def with_fractions(config: TrainConfig, space: Mapping[str, Space]) -> dict[str, Space]:
    """The same ranges; one between whole numbers, as 0:2, holds all numbers in between where the setting takes them."""
    return {
        setting: Float(float(found.low), float(found.high), float(found.low), log=found.log)
        if isinstance(found, Int) and _takes_fractions(config, setting)
        else found
        for setting, found in space.items()
    }


def _takes_fractions(config: TrainConfig, setting: str) -> bool:
    part, _, name = setting.partition(".")
    if part in _KINDS and name != "name" and getattr(config, part).name != "none":
        return _is_float(registry.get(_KINDS[part], getattr(config, part).name), name)
    try:
        config.override([f"{setting}=0.5"])
    except InputError:
        return False
    return True


def _is_float(spec: registry.Method, name: str) -> bool:
    """Whether a parameter of a method takes all numbers, by its declared range, its default or its type."""
    declared = spec.space.get(name)
    if isinstance(declared, Float | Int):
        return isinstance(declared, Float)
    parameters = inspect.signature(spec.cls).parameters
    shared = inspect.signature(ClassLoss).parameters if spec.kind == "loss" else {}
    found = parameters.get(name) or shared.get(name)
    return found is not None and (isinstance(found.default, float) or "float" in str(found.annotation))


def check_space(config: TrainConfig, space: Mapping[str, Space]) -> None:
    """Raise before anything is trained where a setting is unknown, or where an end of a range or an option is refused."""
    for setting, values in space.items():
        for value in values.options if isinstance(values, Choice) else (values.low, values.high):
            tried = config.override(as_settings({setting: value}))
            _check_parts(tried)
            spec, params = registry.get("loss", tried.method.name), dict(tried.method.params)
            params.pop("class_counts", None)
            spec.check(params)
            if not setting.startswith("method."):
                continue
            offered = {"num_classes": _CLASSES, "class_counts": range(1, _CLASSES + 1), "epochs": config.epochs}
            offered |= {"num_features": 8, "teacher_features": 8}
            spec.build(**arguments(spec, offered, params))


def _check_parts(config: TrainConfig) -> None:
    """Refuse parameters of stage, sampler, mix and wrapper that do not exist, and stages that cannot be tuned."""
    for section, kind in _KINDS.items():
        part = getattr(config, section)
        if section != "method" and part.name != "none":
            registry.get(kind, part.name).check(part.params)
    stages_of(config)
    if config.stage.params.get("refit"):
        raise InputError(
            "tune measures on validation data, and stage.refit=true trains on them; leave it out, and set it in the run with the "
            "chosen values"
        )


def suggest(trial: Any, space: Mapping[str, Space]) -> dict[str, Any]:
    """Values of a trial, by setting."""
    values: dict[str, Any] = {}
    for setting, values_of in space.items():
        if isinstance(values_of, Choice):
            values[setting] = trial.suggest_categorical(setting, list(values_of.options))
        elif isinstance(values_of, Int):
            values[setting] = trial.suggest_int(setting, values_of.low, values_of.high, log=values_of.log)
        else:
            values[setting] = trial.suggest_float(setting, values_of.low, values_of.high, log=values_of.log)
    return values


def as_settings(values: Mapping[str, Any]) -> list[str]:
    """Values as ``--set`` takes them."""
    return [f"{setting}={value if isinstance(value, str) else json.dumps(value)}" for setting, value in values.items()]
