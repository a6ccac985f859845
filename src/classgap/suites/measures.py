"""What papers print beside accuracies: margins of the output, angles of the last layer, spread and separability of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, class_means, rows_of_classes
from classgap.checks import InputError
from classgap.measure.diagnostics import margins
from classgap.measure.diagnostics.geometry.angles import angles_between
from classgap.measure.diagnostics.geometry.fisher import fisher_separability
from classgap.measure.diagnostics.geometry.spread import Spread, measure_spread
from classgap.measure.statistics.groups import FREQUENCIES, THIRDS, by_frequency, thirds
from classgap.training.outputs import SplitOutputs

GROUPS = (*THIRDS, *(f"{name}-shot" for name in FREQUENCIES))


class _Quantity(NamedTuple):
    meaning: str
    by_class: Callable[[SplitOutputs], Float64s]
    over: Callable[[Float64s], float] = lambda values: float(np.nanmean(values))


def _output_margin(outputs: SplitOutputs) -> Float64s:
    return margins.describe(outputs.scores, outputs.y_true, len(outputs.class_names), kind="logits").output.mean


def _angle(outputs: SplitOutputs) -> Float64s:
    if outputs.weight is None:
        return np.full(len(outputs.class_names), np.nan)
    return angles_between(outputs.weight).nearest


def _separability(outputs: SplitOutputs) -> Float64s:
    found = fisher_separability(outputs.features, outputs.y_true, len(outputs.class_names), covariance="pairwise")
    return found.separability


def _features(outputs: SplitOutputs) -> Spread:
    return measure_spread(outputs.features, outputs.y_true, rows_of_classes(outputs.y_true, len(outputs.class_names)))


QUANTITIES: Mapping[str, _Quantity] = {
    "output margin": _Quantity("probability of the true class minus the largest of the others", _output_margin),
    "classifier angle": _Quantity(
        "smallest angle between two rows of the last layer, in degrees", _angle, lambda values: float(np.nanmin(values))
    ),
    "separability": _Quantity("Fisher criterion to the other classes, of features of length 1", _separability),
    "feature spread": _Quantity(
        "root of the mean squared distance of features to their class mean", lambda o: _features(o).spread
    ),
    "feature ratio": _Quantity("feature spread divided by the norm of the class mean", lambda o: _features(o).ratio),
    "feature mean": _Quantity("norm of the class mean of the features", lambda o: _features(o).mean_norm),
}


def check_measure(name: str) -> str:
    """``name``, if it is ``QUANTITY`` or ``QUANTITY, GROUP``, where a group is a third, ``many-shot`` … or ``class NAME``."""
    quantity, _, group = name.partition(", ")
    if quantity not in QUANTITIES or not (group in ("", *GROUPS) or group.startswith("class ")):
        raise InputError(
            f"a measure must be one of {', '.join(QUANTITIES)}, alone or as 'QUANTITY, GROUP' with {', '.join(GROUPS)} or "
            f"'class NAME', got {name!r}"
        )
    return name


def measure(outputs: SplitOutputs, names: Sequence[str]) -> dict[str, float]:
    """The measures of these names; see :func:`check_measure`. Groups are means over classes, thirds by the run's own ranking."""
    by_class: dict[str, Float64s] = {}
    found = {}
    for name in names:
        quantity, _, group = check_measure(name).partition(", ")
        kind = QUANTITIES[quantity]
        if quantity not in by_class:
            by_class[quantity] = np.asarray(kind.by_class(outputs), np.float64)
        values = by_class[quantity][_members(outputs, group)]
        found[name] = float(f"{kind.over(values):.6g}") if np.isfinite(values).any() else float("nan")
    return found


def _members(outputs: SplitOutputs, group: str) -> NDArray[np.bool_]:
    names = outputs.class_names
    if group.startswith("class "):
        return np.array([name == group.removeprefix("class ") for name in names])
    if group in THIRDS:
        right = (outputs.y_pred == outputs.y_true).astype(np.float64)
        return np.asarray(thirds(class_means(right, outputs.y_true, len(names))) == THIRDS.index(group))
    if group:
        place = FREQUENCIES.index(group.removesuffix("-shot"))
        return np.asarray(by_frequency(np.asarray(outputs.train_counts)) == place)
    return np.ones(len(names), dtype=bool)
