"""Accuracy per class and slice (site, camera, age group …): which cells are worse than the rest of their class.

Slices are always compared within classes: a slice with more samples of a hard class is not worse for that reason. Small slices
and small cells are pooled, not dropped. A claim about a slice, a class or a cell is made only if the test of the whole column is
significant (Benjamini-Hochberg correction over the columns), and if its own p-value is significant after Benjamini-Hochberg
correction; so the probability of any false claim is at most 5 % where slices do not matter, and the false discovery rate is
limited where they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Float64s, Ints, divide
from classgap.measure.audit_report import Estimate, Homogeneity
from classgap.measure.render.plain import p_value, percent, records, structured
from classgap.measure.statistics.deconvolution import expected_accuracy, fit
from classgap.measure.statistics.estimating import estimate_metrics
from classgap.measure.statistics.false_discovery import benjamini_hochberg
from classgap.measure.statistics.intervals import mean_interval, wilson
from classgap.measure.statistics.stratified import StratifiedTests, stratified_tests
from classgap.predictions import SliceCounts

FEWEST = 10  # cells and slices with fewer samples are pooled
POOLED = "(pooled)"
_GAPS_ESTIMATED = 100  # classes whose gap between slices is estimated, those with the smallest p-values first


@dataclass(frozen=True, eq=False)
class SliceColumn:
    """The slices of one column.

    Attributes:
        name: The column.
        homogeneity: Test of "within each class, all slices have the same accuracy".
        q_value: Its p-value after Benjamini-Hochberg correction over the columns.
        real: Whether this test is significant, so that slices differ.
        verdict: The result in one sentence.
        metrics: ``worst`` and ``worst_decile`` over the cells, observed and ``*_corrected`` for sampling noise.
        per_slice: One record per slice: ``name, support, accuracy, low, high`` and the ``difference`` to the other slices of the
            same classes with its interval, ``p_value``, ``q_value`` and ``significant``.
        per_class: One record per class: the number of ``cells``, the ``gap`` between its best and worst cell, ``gap_corrected``
            for sampling noise with the interval ``low``, ``high``, ``p_value``, ``q_value``, ``significant``, ``worst_slice``.
        cells: One record per class and slice with samples, worst first (see ``docs/slices.md``).
        pooled: How small slices and cells were pooled, in one sentence; empty if none were.
    """

    name: str
    homogeneity: Homogeneity
    q_value: float
    real: bool
    verdict: str
    metrics: Mapping[str, Estimate]
    per_slice: NDArray[np.void]
    per_class: NDArray[np.void]
    cells: NDArray[np.void]
    pooled: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "homogeneity": {
                "p_value": self.homogeneity.p_value,
                "q_value": self.q_value,
                "real": self.real,
                "method": self.homogeneity.method,
            },
            "verdict": self.verdict,
            **{name: asdict(estimate) for name, estimate in self.metrics.items()},
            "per_slice": records(self.per_slice),
            "per_class": records(self.per_class),
            "cells": records(self.cells),
            "pooled": self.pooled,
        }


@dataclass(frozen=True, eq=False)
class Slices:
    """All columns of an audit with ``by=``."""

    columns: Mapping[str, SliceColumn]

    def __getitem__(self, name: str) -> SliceColumn:
        return self.columns[name]

    def to_dict(self) -> dict[str, Any]:
        """As plain data; ``docs/slices.md`` describes every key."""
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        return {"worst": asdict(self.worst), "worse": self.worse, "columns": columns}

    @property
    def worst(self) -> Estimate:
        """The lowest accuracy of a cell, over all columns, with the interval of the lowest true accuracy.

        The truly lowest cell may be in another column than the observed one, so every end is the lowest of all columns.
        """
        found = [column.metrics["worst"] for column in self.columns.values()]
        return Estimate(min(e.value for e in found), min(e.low for e in found), min(e.high for e in found))

    @property
    def worse(self) -> list[str]:
        """Slices, and classes within slices, that are significantly less accurate than the rest of the same classes."""
        found = []
        for column in self.columns.values():
            slices, cells = column.per_slice, column.cells
            found += [
                f"{column.name}={row['name']}" for row in slices[slices["significant"] & (slices["difference"] < 0)]
            ]
            found += [
                f"class {str(row['class'])!r} in {column.name}={row['slice']}"
                for row in cells[cells["significant"] & (cells["difference"] < 0)]
            ]
        return found


def describe(
    counts: Mapping[str, SliceCounts],
    classes: Sequence[str],
    *,
    confidence: float,
    draws: int,
    rng: np.random.Generator,
) -> Slices:
    """Tests, estimates and verdicts of every column."""
    tables = {name: _Pooled.of(table) for name, table in counts.items()}
    tests = {name: stratified_tests(t.cells, (t.correct, t.support), rng) for name, t in tables.items()}
    q_values = benjamini_hochberg(np.array([test.overall for test in tests.values()]))
    columns = {}
    for (name, table), q_value in zip(tables.items(), q_values.tolist(), strict=True):
        columns[name] = _column(name, table, tests[name], q_value, np.array(classes), confidence, draws, rng)
    return Slices(columns)


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Counts of one column after pooling.

    ``correct`` and ``support`` are ``(K, S)``, with small slices pooled; ``cells`` are ``(K, S + 1)``, with the small cells of a
    class in the last column; ``members`` is the number of cells before pooling in each of them.
    """

    names: tuple[str, ...]
    correct: Ints
    support: Ints
    cells: tuple[Ints, Ints]
    members: Ints
    sentence: str

    @classmethod
    def of(cls, table: SliceCounts) -> _Pooled:
        names, correct, support = table.names, table.correct, table.support
        few = support.sum(0) < FEWEST
        small_slices = int(few.sum()) if few.sum() > 1 else 0
        if small_slices:
            names = (*np.array(names)[~few].tolist(), POOLED)
            correct, support = (
                np.column_stack([counts[:, ~few], counts[:, few].sum(1)]) for counts in (correct, support)
            )
        small = (support > 0) & (support < FEWEST)
        small &= small.sum(1, keepdims=True) > 1
        cells = tuple(
            np.column_stack([np.where(small, 0, counts), np.where(small, counts, 0).sum(1)])
            for counts in (correct, support)
        )
        members = np.column_stack([(support > 0) & ~small, small.sum(1)]).astype(np.int64)
        sentence = _pooling_sentence(small_slices, int(small.sum()), int((support > 0).sum()), int(small.any(1).sum()))
        return cls(names, correct, support, (cells[0], cells[1]), members, sentence)


def _pooling_sentence(slices: int, cells: int, of_cells: int, classes: int) -> str:
    parts = []
    if slices:
        parts.append(f"{slices} slices with fewer than {FEWEST} samples were pooled into one slice {POOLED}")
    if cells:
        parts.append(
            f"{cells} of {of_cells} cells (class × slice) have fewer than {FEWEST} samples and were pooled within their class "
            f"into {classes} cell{'s' if classes > 1 else ''} {POOLED}, because single cells of this size show nothing reliable"
        )
    return "; ".join(parts)


def _column(
    name: str,
    table: _Pooled,
    tests: StratifiedTests,
    q_value: float,
    classes: NDArray[Any],
    confidence: float,
    draws: int,
    rng: np.random.Generator,
) -> SliceColumn:
    level = 1 - confidence
    real = q_value <= level
    cells = _cells(table, tests, classes, real, confidence)
    used = table.cells[1] > 0
    found = estimate_metrics(table.cells[0][used], table.cells[1][used], confidence=confidence, draws=draws, rng=rng)
    wanted = [f"{metric}{kind}" for metric in ("worst", "worst_decile") for kind in ("", "_corrected")]
    test = Homogeneity(float("nan"), tests.overall, tests.method)
    per_slice = _per_slice(table, tests, real, confidence)
    per_class = _per_class(table, tests, classes, real, confidence, draws, rng)
    return SliceColumn(
        name=name,
        homogeneity=test,
        q_value=q_value,
        real=real,
        verdict=_untested(name, table)
        if test.method == "no variation to test"
        else _verdict(name, test, real, per_slice, cells),
        metrics={metric: found.metrics[metric] for metric in wanted},
        per_slice=per_slice,
        per_class=per_class,
        cells=cells,
        pooled=table.sentence,
    )


def difference_interval(
    first: tuple[Float64s, Float64s, Float64s], second: tuple[Float64s, Float64s, Float64s]
) -> tuple[Float64s, Float64s, Float64s]:
    """First minus second, from the (value, low, high) of two independent shares (Newcombe's hybrid interval, 1998)."""
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    low = a - b - np.sqrt((a - a_low) ** 2 + (b_high - b) ** 2)
    high = a - b + np.sqrt((a_high - a) ** 2 + (b - b_low) ** 2)
    return a - b, np.clip(low, -1, 1), np.clip(high, -1, 1)


def _cells(
    table: _Pooled, tests: StratifiedTests, classes: NDArray[Any], real: bool, confidence: float
) -> NDArray[np.void]:
    """Cells, worst first: those significantly worse than the rest of their class, then by corrected accuracy."""
    correct, support = table.cells
    k, s = np.nonzero(support > 0)
    c, n = correct[k, s], support[k, s]
    rest, rest_n = correct.sum(1)[k] - c, support.sum(1)[k] - n
    own, other = divide(c, n), divide(rest, rest_n)
    low, high = wilson(own, n, confidence)
    other_low, other_high = wilson(other, rest_n, confidence)
    difference, difference_low, difference_high = difference_interval((own, low, high), (other, other_low, other_high))
    p = tests.cell[k, s]
    q = benjamini_hochberg(p)
    significant = real & (np.nan_to_num(q, nan=1.0) <= 1 - confidence)
    corrected = expected_accuracy(fit(c, n), c, n)
    columns = {
        "slice": np.array([*table.names, POOLED])[s], "class": classes[k], "support": n, "accuracy": own, "low": low,
        "high": high, "corrected": corrected, "other_accuracy": other, "difference": difference,
        "difference_low": difference_low, "difference_high": difference_high, "p_value": p, "q_value": q,
        "significant": significant, "cells": table.members[k, s],
    }  # fmt: skip
    worse = significant & (difference < 0)
    return structured(columns)[np.lexsort((corrected, np.where(worse, q, np.inf)))]


def _per_slice(table: _Pooled, tests: StratifiedTests, real: bool, confidence: float) -> NDArray[np.void]:
    """Slices, in the order of their difference to the other slices of the same classes."""
    correct, support = table.correct, table.support
    n, value = support.sum(0), divide(correct.sum(0), support.sum(0))
    low, high = wilson(value, n, confidence)
    total = support.sum(1, keepdims=True)
    rest, rest_n = correct.sum(1, keepdims=True) - correct, total - support
    weight = np.nan_to_num(divide(support * rest_n, total))  # of the classes, as in the Mantel-Haenszel difference
    weight = np.nan_to_num(divide(weight, weight.sum(0))).T
    known = np.asarray(weight.any(1))
    sides: list[tuple[Float64s, Float64s, Float64s]] = []
    for hits, size in ((correct, support), (rest, rest_n)):
        mean = np.where(known, np.clip((weight * np.nan_to_num(divide(hits, size)).T).sum(1), 0, 1), np.nan)
        ends = np.full((2, len(n)), np.nan)
        for s in np.flatnonzero(known):
            found = mean_interval(mean[[s]], weight[[s]] ** 2, hits[:, s], size[:, s], confidence)
            ends[:, s] = found[0][0], found[1][0]
        sides.append((mean, ends[0], ends[1]))
    difference, difference_low, difference_high = difference_interval(sides[0], sides[1])
    q = benjamini_hochberg(tests.per_slice)
    columns = {
        "name": np.array(table.names), "support": n, "accuracy": value, "low": low, "high": high, "difference": difference,
        "difference_low": difference_low, "difference_high": difference_high, "p_value": tests.per_slice, "q_value": q,
        "significant": real & (np.nan_to_num(q, nan=1.0) <= 1 - confidence),
    }  # fmt: skip
    return structured(columns)[np.argsort(difference, kind="stable")]


def _per_class(
    table: _Pooled,
    tests: StratifiedTests,
    classes: NDArray[Any],
    real: bool,
    confidence: float,
    draws: int,
    rng: np.random.Generator,
) -> NDArray[np.void]:
    """Classes, in the order of their p-values. The corrected gap is nan for a class in a single cell."""
    correct, support = table.cells
    accuracy = divide(correct, support)
    cells = (support > 0).sum(1)
    lowest = np.where(support > 0, accuracy, np.inf)
    highest = np.where(support > 0, accuracy, -np.inf)
    gap = np.where(cells > 0, highest.max(1) - np.where(cells > 0, lowest.min(1), 0), np.nan)
    order = np.argsort(tests.per_class, kind="stable")
    values = np.full((len(classes), 3), np.nan)
    for k in order[:_GAPS_ESTIMATED]:
        if cells[k] > 1:
            used = support[k] > 0
            found = estimate_metrics(correct[k, used], support[k, used], confidence=confidence, draws=draws, rng=rng)
            e = found.metrics["gap_corrected"]
            values[k] = e.value, e.low, e.high
    q = benjamini_hochberg(tests.per_class)
    columns = {
        "name": classes, "support": support.sum(1), "cells": cells, "gap": gap, "gap_corrected": values[:, 0],
        "low": values[:, 1], "high": values[:, 2], "p_value": tests.per_class, "q_value": q,
        "significant": real & (np.nan_to_num(q, nan=1.0) <= 1 - confidence),
        "worst_slice": np.where(cells > 0, np.array([*table.names, POOLED])[lowest.argmin(1)], ""),
    }  # fmt: skip
    return structured(columns)[order]


def _untested(name: str, table: _Pooled) -> str:
    """Why nothing could be tested."""
    hits, total = table.correct.sum(1), table.support.sum(1)
    if ((hits > 0) & (hits < total) & ((table.support > 0).sum(1) > 1)).any():
        return (
            f"'{name}' cannot be tested: within each class, the cells with fewer than {FEWEST} samples are pooled, and no class "
            "with both correct and wrong predictions has two cells left."
        )
    return f"'{name}' cannot be tested: no class has both correct and wrong predictions in more than one slice."


def _verdict(name: str, test: Homogeneity, real: bool, per_slice: NDArray[np.void], cells: NDArray[np.void]) -> str:
    if not real:
        return (
            f"No difference between the slices of '{name}' is shown ({p_value(test.p_value)}): within each class, slices of "
            "equal accuracy would often differ this much."
        )
    sentence = f"Accuracy differs between the slices of '{name}' within classes ({p_value(test.p_value)})."
    worse = per_slice[per_slice["significant"] & (per_slice["difference"] < 0)]
    if len(worse):
        listed = ", ".join(f"{row['name']} ({100 * row['difference']:+.1f} points)" for row in worse[:3])
        more = f" and {len(worse) - 3} more" if len(worse) > 3 else ""
        sentence += f" Less accurate than the other slices of the same classes: {listed}{more}."
    low = cells[cells["significant"] & (cells["difference"] < 0)]
    if len(low):
        first = low[0]
        sentence += (
            f" {len(low)} cell{'s are' if len(low) > 1 else ' is'} worse than the rest of the class; first: class "
            f"'{first['class']}' in {first['slice']}, {percent(first['accuracy'])} against {percent(first['other_accuracy'])}."
        )
    if not len(worse) and not len(low):
        sentence += " No slice or cell is significantly worse by itself."
        better = per_slice[per_slice["significant"] & (per_slice["difference"] > 0)]
        if len(better):
            listed = ", ".join(f"{row['name']} ({100 * row['difference']:+.1f} points)" for row in better[:3])
            sentence += f" Significantly more accurate than the others: {listed}."
    return sentence
