"""Rows of several runs brought into one order by the ids of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, as_numpy, is_missing

if TYPE_CHECKING:
    from classgap.predictions.predictions import Predictions


def align(runs: Sequence[Predictions], *, common: bool = False) -> list[Predictions]:
    """The runs with their rows in the order of the first run, matched by sample id; unchanged if a run has no ids.

    Args:
        common: Keep only the samples that all runs have, instead of refusing runs on different samples.
    """
    ids = [run.ids for run in runs]
    if common and any(one is None for one in ids):
        raise InputError("common=True (--common) needs sample ids: name their column with --id or Columns(id=…)")
    if any(one is None for one in ids):
        return list(runs)
    rows = matching_rows([np.asarray(one) for one in ids], common=common)
    return [run.take(place) for run, place in zip(runs, rows, strict=True)]


def matching_rows(ids: Sequence[NDArray[Any]], *, common: bool = False) -> list[NDArray[np.int64]]:
    """For each run, its rows in the order of the ids of the first run.

    Args:
        common: Only the ids that all runs have; by default runs on different samples are refused.
    """
    ids = _of_one_type(ids)
    kept = [np.arange(len(one)) for one in ids]
    if common:
        shared = ids[0]
        for one in ids[1:]:
            shared = np.intersect1d(shared, one)
        if len(shared) == 0:
            raise InputError(
                "the runs have no sample id in common; check that --id names the same kind of id in all files"
            )
        kept = [np.flatnonzero(np.isin(one, shared)) for one in ids]
    first = ids[0][kept[0]]
    rows = []
    for one, row in zip(ids, kept, strict=True):
        values = one[row]
        order = np.argsort(values, kind="stable")
        twice = values[order][1:][values[order][1:] == values[order][:-1]]
        if len(twice):
            raise repeated_id(twice[0])
        unknown, missing = np.setdiff1d(values, first), np.setdiff1d(first, values)
        if len(unknown) or len(missing):
            raise different_ids(missing.tolist(), unknown.tolist())
        place = np.empty(len(values), dtype=np.int64)
        place[np.argsort(first, kind="stable")] = order
        rows.append(row[place])
    return rows


def _of_one_type(ids: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The ids of all runs as numbers, or all as text: text sorts in another order than numbers."""
    kinds = {one.dtype.kind for one in ids}
    if not kinds & set("biuf") or (kinds <= set("biuf") and not {"i", "u"} <= kinds):
        return list(ids)  # only together, signed and unsigned numbers would be rounded
    return [_as_whole(one) for one in ids]


def _as_whole(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids as text, with whole numbers as 7, not 7.0: pandas writes 7.0 where a column had missing values."""
    values = ids.tolist()
    if ids.dtype.kind == "f":
        values = [int(value) if value.is_integer() else value for value in values]
    return np.array([str(value).removesuffix(".0") for value in values], dtype=object)


def present_ids(ids: Any, title: str = "ids") -> NDArray[Any]:
    """Sample ids as an array; a missing one is refused. ``title`` is what holds them."""
    values = np.asarray(as_numpy(ids))
    if values.dtype.kind in "fMmO" and any(missing := [is_missing(value) for value in values.ravel().tolist()]):
        raise InputError(
            f"{title} must have a value for every sample, but that of row {missing.index(True)} is missing"
        )
    return values


def missing_ids(column: str, number: int) -> InputError:
    """The error for rows of a table without an id."""
    rows = "1 row" if number == 1 else f"{number:,} rows"
    return InputError(f"column {column!r} has {rows} without a value; fill or remove them")


def repeated_id(example: object) -> InputError:
    """The error for a sample id that is not unique."""
    return InputError(f"sample ids must be unique, but {example!s} occurs more than once")


def different_ids(missing: Sequence[Any], unknown: Sequence[Any]) -> InputError:
    """The error for runs on different samples: the ids that a run lacks, and those that only it has."""
    examples = ", ".join(str(entry) for entry in (*missing[:3], *unknown[:3]))
    return InputError(
        f"all runs must have the same sample ids, but one run lacks {len(missing):,} ids of the first run and has "
        f"{len(unknown):,} others (e.g. {examples}); pass common=True (--common) to compare only the samples that all runs have"
    )
