"""Whether every setting has the type that its dataclass declares. Loads no torch."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import numbers
import os
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from classgap.checks import InputError, flag, one_of, shown


@functools.cache
def hints(cls: Any) -> dict[str, Any]:
    """Names and types of the settings of a dataclass."""
    return typing.get_type_hints(cls)


def typed(section: Any, prefix: str = "") -> dict[str, Any]:
    """The settings of ``section`` in the declared types, or an error that names the first that has another type.

    Lists become tuples, paths become texts and numbers of NumPy become those of Python: all of them can be stored as JSON.
    """
    cls: Any = type(section)
    return {name: _typed(prefix + name, getattr(section, name), hint) for name, hint in hints(cls).items()}


def _typed(name: str, value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if type(value) is not hint:
            raise InputError(_wrong_section(name, value, hint))
        return dataclasses.replace(typing.cast(Any, value), **typed(value, f"{name}."))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if origin in (typing.Union, types.UnionType):
        return _one_type(name, value, args)
    if origin is Literal:
        return one_of(name, value, args)
    if origin is tuple:
        return _series(name, value, args)
    if hint is str:
        return _text(name, value)
    if hint is bool:
        return flag(name, value)
    if hint in (int, float):
        return _number(name, value, hint)
    return _parameters(name, value)


def _wrong_section(name: str, value: Any, cls: Any) -> str:
    start = f"{name} must be of the class {cls.__name__}, got {shown(value)}"
    if value is cls:
        return f"{start}; write {name}={cls.__name__}()"
    if isinstance(value, Mapping):
        return f"{start}; write {name}={cls.__name__}(**…) with its settings, or TrainConfig.from_dict for all of them"
    first = next(iter(hints(cls)))
    if isinstance(value, (str, os.PathLike)):
        text = repr(os.fspath(value))
        return f"{start}; write {name}={cls.__name__}({first}={f'({text},)' if first == 'augment' else text})"
    return f"{start}; write {name}={cls.__name__}({first}=…), or leave {name} out"


def _one_type(name: str, value: Any, args: tuple[Any, ...]) -> Any:
    if value is None and type(None) in args:
        return None
    if args == (bool, str):
        return value if isinstance(value, bool) else _text(name, value, " or True or False")
    words = [word for arg in args for word in typing.get_args(arg) if typing.get_origin(arg) is Literal]
    if not words:
        return _typed(name, value, args[0])
    if isinstance(value, str) and value not in words:
        raise InputError(f"{name} must be {', '.join(words)} or a number, got {shown(value)}")
    return value if isinstance(value, str) else _number(name, value, float)


def _number(name: str, value: Any, hint: type) -> float:
    kind, wanted = (numbers.Integral, "whole") if hint is int else (numbers.Real, "finite")
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value):
        raise InputError(f"{name} must be a {wanted} number, got {shown(value)}")
    return value  # type: ignore[return-value]


def _text(name: str, value: Any, other: str = "") -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{name} must be a text{other}, got {shown(value)}")
    return os.fspath(value)


def _series(name: str, value: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        text = value if isinstance(value, str) else "flip"
        example = {str: (text,), int: (60, 80)}.get(args[0], (0.9, 0.999))
        raise InputError(f"{name} must be a tuple such as {example}, got {shown(value)}")
    return tuple(_typed(name, part, args[0]) for part in value)


def _parameters(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{name} must be a dictionary of parameters, e.g. {{'tau': 1.0}}, got {shown(value)}")
    for key, parameter in value.items():
        try:
            json.dumps(parameter)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}[{key!r}] must be a number, a text, or a list of them (it is stored as JSON), got {shown(parameter)}"
            ) from error
    return value
