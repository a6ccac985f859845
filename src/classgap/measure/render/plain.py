"""Helpers of all views: numbers as text, plain data, Markdown, data frames."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


def json_ready(value: Any) -> Any:
    """``value`` with NumPy types as Python ones, tuples as lists, and nan and infinity as None.

    Example:
        >>> json_ready({"a": (np.float64(1), float("nan")), 2: np.int64(3)})
        {'a': [1.0, None], '2': 3}
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return json_ready(value.tolist())
    if isinstance(value, (list, tuple)):
        return [json_ready(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def confidence_level(confidence: float) -> str:
    """A confidence level or coverage in per cent, with all its digits.

    Example:
        >>> confidence_level(0.95), confidence_level(0.975), confidence_level(0.999)
        ('95%', '97.5%', '99.9%')
    """
    return f"{100 * confidence:.10g}%"


def percent(share: float) -> str:
    """A share in per cent with one decimal; a dash for nan.

    Example:
        >>> percent(0.123), percent(float("nan"))
        ('12.3 %', '–')
    """
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def p_value(value: float) -> str:
    """A p-value as text: ``p = 0.031`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def points(share: float) -> str:
    """A difference of shares in percentage points with its sign; never "-0.0"; a dash for nan."""
    return "–" if math.isnan(share) else f"{round(100 * share, 1) + 0.0:+.1f}"


def deviation(share: float) -> str:
    """A standard deviation of shares in percentage points; a dash for nan, e.g. for a single run."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; special characters in cells are escaped."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(escape(text) for text in line) + " |" for line in lines)


def escape(text: str) -> str:
    r"""``text`` with the special characters of Markdown escaped: no table cell, link, image or HTML element can begin in it.

    Example:
        >>> print(escape("![a|b](https://example.org)"))
        ![a\|b\](https://example.org)
    """
    # Only where a link or an element can begin: "[1 %, 2 %]" and "p < 0.001" stay readable.
    return re.sub(r"([\\|`*]|\](?=[(\[:]))", r"\\\1", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)).replace("\n", " ")


def columns_frame(array: NDArray[np.void]) -> pd.DataFrame:
    """A structured array as a data frame indexed by ``name``."""
    import pandas as pd

    return pd.DataFrame({field: array[field] for field in array.dtype.names or ()}).set_index("name")


def records(array: NDArray[np.void]) -> list[dict[str, Any]]:
    """A structured array as a list with one dict per record."""
    return [dict(zip(array.dtype.names or (), record, strict=True)) for record in array.tolist()]


def structured(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.void]:
    """Columns of equal length as one structured array."""
    array = np.empty(len(next(iter(columns.values()))), dtype=[(name, c.dtype) for name, c in columns.items()])
    for name, column in columns.items():
        array[name] = column
    return array


def html_module() -> Any:
    """The page renderer, imported on demand because it imports Altair and Jinja."""
    return importlib.import_module("classgap.measure.render.html")
