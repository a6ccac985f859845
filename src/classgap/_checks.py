"""Every check of user input that needs no torch, and its wording.

A message names the argument, says what was wanted, shows what came, and offers the way out.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class InputError(ValueError):
    """The caller passed something that cannot be used; the text says what to do. The CLI prints it and exits with 2."""


def did_you_mean(name: str, known: Iterable[str], *, what: str) -> str:
    """The sentence for an unknown name: ``unknown loss 'mr3'; did you mean 'mr2'? (known: …)``."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(choices)})"


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """``value`` if it is among ``choices``."""
    choices = list(choices)
    if value not in choices:
        raise InputError(did_you_mean(str(value), choices, what=f"value for {name}"))
    return value


def number(name: str, value: float, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False) -> float:
    """``value`` if it is a finite number in ``[low, high]`` (``(low, high]`` with ``open_low``)."""
    bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    if bad or value < low or value > high or (open_low and value == low):
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise InputError(f"{name} must be a finite number in {left}{low:g}, {high:g}{right}, got {value!r}")
    return value
