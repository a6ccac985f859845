"""From raw labels (numbers, names, names that look like numbers) to class indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, printable
from classgap.predictions.spelling import (
    are_flags,
    canonical,
    folded,
    in_order,
    is_numeric,
    is_whole,
    label_text,
    one_spelling,
    spelled_alike,
    spelling_difference,
    without_decimals,
)

MAX_CLASSES = 65_536
# Integer labels within this range are looked up in a table; others by binary search, which is several times slower.
_TABLE_RANGE = 1 << 22


@dataclass(frozen=True, eq=False)
class LabelCoder:
    """Turns raw labels into class indices. ``values`` are the sorted distinct raw labels, ``codes`` their indices."""

    values: NDArray[Any]
    codes: NDArray[np.int64]

    def __call__(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        low, high = self.values[0], self.values[-1]
        narrow = self.values.dtype.kind in "iu" and int(high) - int(low) < _TABLE_RANGE
        if narrow and int(high) <= np.iinfo(np.int64).max:
            table = np.zeros(int(high) - int(low) + 1, dtype=np.int64)
            table[self.values.astype(np.int64) - int(low)] = self.codes
            return table[raw.astype(np.int64, copy=False) - int(low)]
        return self.codes[np.searchsorted(self.values, raw)]


def resolve_classes(
    distinct: Sequence[tuple[str, NDArray[Any]]],
    *,
    names: Sequence[str] | None = None,
    width: int | None = None,
    option: str = "class_names",
    numbered: bool = False,
    only_names: bool = False,
) -> tuple[tuple[str, ...], list[LabelCoder], tuple[str, ...]]:
    """Class names, one coder per label column, and notes about assumptions.

    Args:
        distinct: For each label column its title (for messages) and its sorted distinct raw labels.
        names: Class names in index order. Labels stored as whole numbers are indices into ``names``; if some cannot be
            indices, they are names. Labels stored as text, as in every CSV file, are names; if some are not names, they are
            indices. All label columns are read alike; if one is stored as text, all are names if they can be.
        numbered: Labels stored as text that can be indices are indices too, since the score columns are numbered.
        only_names: Labels stored as whole numbers are names, never indices, since numbers are names of score columns.
        width: Number of score columns. With it and without ``names``, labels must be column indices of the scores.
        option: How the user gives class names, for messages: an argument or a command-line option.
    Example:
        >>> resolve_classes([("label", np.array(["cat", "dog"]))])[0]
        ('cat', 'dog')
        >>> classes, (coder,), _ = resolve_classes([("label", np.array([0, 2]))], names=["a", "b", "c"])
        >>> classes, coder(np.array([2, 0])).tolist()
        (('a', 'b', 'c'), [2, 0])
    """
    if names is None and width is None and are_flags([values.tolist() for _, values in distinct]):
        names = ["False", "True"]
        labels = [[int(str(value).lower() == "true") for value in values.tolist()] for _, values in distinct]
    else:
        labels = one_spelling([canonical(title, values, names or ()) for title, values in distinct], names, width)
    notes: tuple[str, ...] = ()
    if names is None and width is not None:
        _check_indices(
            distinct, labels, width, "the scores have {} columns, so labels must be numbers from 0 to {}", option
        )
        classes, index = [str(k) for k in range(width)], [{k: k for k in range(width)}] * len(labels)
    elif names is None:
        classes, shared = _classes_from_labels(distinct, labels, option)
        index, notes = [shared] * len(labels), spelled_alike(classes)
    else:
        classes = check_names(names, width)
        index, notes = _index_by_name(distinct, labels, classes, option, numbered, only_names)
    if len(classes) > MAX_CLASSES:
        raise InputError(
            f"{distinct[0][0]} has {len(classes):,} distinct values, more than the {MAX_CLASSES:,} classes that "
            "an audit supports; check that it is the label column"
        )
    coders = [
        LabelCoder(values, np.array([place[label] for label in column], dtype=np.int64))
        for (_, values), column, place in zip(distinct, labels, index, strict=True)
    ]
    return printable_names(classes), coders, notes


def printable_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names as reports show them: what cannot be printed (control characters, half of a pair) is written as ``\\x07``.

    Raw control characters would reach the terminal, and they end the process that renders figures.
    """
    shown = tuple(printable(name) for name in names)
    if len(set(shown)) < len(shown):
        raise InputError(
            "class names must differ in characters that can be printed; rename those with control characters"
        )
    return shown


def names_of(values: NDArray[Any], title: str) -> list[str]:
    """Class names from an array of text or whole numbers."""
    if values.ndim != 1 or values.dtype.kind not in "USiu":
        raise InputError(f"{title} must be a list of class names, got shape {values.shape} of {values.dtype}")
    return [label_text(title, name) for name in values.tolist()]


def check_names(names: Sequence[str], width: int | None = None) -> list[str]:
    """``names`` as a list, after checking that they are unique and that there is one per score column."""
    if width is not None and len(names) != width:
        raise InputError(
            f"there are {len(names)} class names but the scores have {width} columns; give one name per column"
        )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"class names must be unique, but {name!r} occurs twice")
        seen.add(name)
    return list(names)


def _classes_from_labels(
    distinct: Sequence[tuple[str, NDArray[Any]]], labels: list[list[Any]], option: str
) -> tuple[list[str], dict[Any, int]]:
    if len({is_numeric(column) for column in labels}) > 1:
        texts = {label for column in labels for label in column if isinstance(label, str)}
        for (title, _), column in zip(distinct, labels, strict=True):
            if any(str(label) not in texts for label in column):
                raise InputError(
                    f"{title} holds numbers (e.g. {column[0]}) but the other label column holds names "
                    f"(e.g. {min(texts)!r}); give the class names in index order ({option})"
                )
        names = in_order(texts)
        index = {name: k for k, name in enumerate(names)}
        return names, index | {int(name): k for name, k in index.items() if is_whole(name)}
    _refuse_disjoint(distinct, labels, option)
    union = in_order({label for column in labels for label in column})
    return check_names([str(label) for label in union]), {label: k for k, label in enumerate(union)}


def _refuse_disjoint(distinct: Sequence[tuple[str, NDArray[Any]]], labels: list[list[Any]], option: str) -> None:
    """Two columns without a common label are two spellings, or one of them is not a label column."""
    if len(labels) < 2 or set(labels[0]) & set(labels[1]):
        return
    (one, _), (other, _) = distinct[:2]
    sentence = f"{one} and {other} have no label in common (e.g. {labels[0][0]!r} and {labels[1][0]!r})"
    spellings = [{folded(str(label)): label for label in column} for column in labels[:2]]
    if alike := sorted(spellings[0].keys() & spellings[1].keys()):
        first, second = str(spellings[0][alike[0]]), str(spellings[1][alike[0]])
        how = spelling_difference([(first, second)])
        raise InputError(f"{sentence}; {first!r} and {second!r} differ only in {how}: use one spelling")
    raise InputError(
        f"{sentence}, so no sample would be correct; check that both hold labels of the same classes, or give the class names "
        f"({option})"
    )


def _index_by_name(
    distinct: Sequence[tuple[str, NDArray[Any]]],
    labels: list[list[Any]],
    names: list[str],
    option: str,
    numbered: bool,
    only_names: bool = False,
) -> tuple[list[dict[Any, int]], tuple[str, ...]]:
    """Index of every label in each column, and a note if numbers can be read in two ways."""
    by_name = {name: k for k, name in enumerate(names)}
    by_number = {number: k for k, number in enumerate(without_decimals(names))}
    numeric: list[_Numbers] = []
    for (title, values), column in zip(distinct, labels, strict=True):
        known_names = by_number if is_numeric(column) else by_name
        for label in column:
            if (only_names or isinstance(label, str)) and str(label) not in known_names:
                known = ", ".join(map(repr, names[:8])) + (" …" if len(names) > 8 else "")
                raise InputError(f"{title} has the label {label!r}, which is not among the class names ({known})")
        if is_numeric(column):
            numeric.append(_Numbers(title, column, values.dtype.kind not in "iubf" and not numbered))
    text = any(column.text for column in numeric) or len(numeric) < len(labels)
    reading = True if only_names else _reading(numeric, by_number, text=text)
    as_names = {
        column.title: _reading_of_some(numeric, column.text, by_number, option) if reading is None else reading
        for column in numeric
    }
    indices = [
        {n: by_number[str(n)] if as_names[title] else n for n in column} if is_numeric(column) else by_name
        for (title, _), column in zip(distinct, labels, strict=True)
    ]
    if only_names or (reading is not None and not all(column.fits_both(by_number) for column in numeric)):
        return indices, ()  # only one reading was possible
    return indices, tuple(_note(column, as_names[column.title]) for column in numeric if column.is_unclear(by_number))


@dataclass(frozen=True)
class _Numbers:
    """The whole numbers in a label column, and whether they are stored as text."""

    title: str
    labels: list[int]
    text: bool

    def are_positions(self, names: Mapping[str, int]) -> bool:
        return all(0 <= n < len(names) for n in self.labels)

    def are_names(self, names: Mapping[str, int]) -> bool:
        return all(str(n) in names for n in self.labels)

    def fits_both(self, names: Mapping[str, int]) -> bool:
        return self.are_positions(names) and self.are_names(names)

    def is_unclear(self, names: Mapping[str, int]) -> bool:
        """Whether positions and names are both possible, and are different classes."""
        return self.fits_both(names) and any(names[str(n)] != n for n in self.labels)


def _reading(columns: Sequence[_Numbers], names: Mapping[str, int], *, text: bool) -> bool | None:
    """Whether the numbers of all columns are names (True) or positions (False); None if they are neither throughout."""
    positions = all(column.are_positions(names) for column in columns)
    if all(column.are_names(names) for column in columns) and (text or not positions):
        return True
    return False if positions else None


def _reading_of_some(columns: Sequence[_Numbers], text: bool, names: Mapping[str, int], option: str) -> bool:
    """The reading of the columns that are stored alike, where the others are read otherwise."""
    alike = [column for column in columns if column.text == text]
    reading = _reading(alike, names, text=text)
    if reading is not None:
        return reading
    for column in alike:
        unknown = [n for n in column.labels if not 0 <= n < len(names) and str(n) not in names]
        wanted = "there are {} class names, so a number must be an index from 0 to {} or a class name"
        _check_indices([(column.title, np.array(unknown))], [unknown], len(names), wanted, option)
    found = [(column.title, n) for column in alike for n in column.labels]
    place, label = next((title, n) for title, n in found if not 0 <= n < len(names))
    other, unnamed = next((title, n) for title, n in found if str(n) not in names)
    raise InputError(
        f"numbers must be class names or indices from 0 to {len(names) - 1} in all label columns, but {label} ({place}) is no "
        f"index and {unnamed} ({other}) is no class name; use one of the two throughout"
    )


def _note(column: _Numbers, as_names: bool) -> str:
    stored = "they are" if column.text else "the other labels are"
    reading = f"names, since {stored} stored as text" if as_names else "positions in the list of class names"
    return (
        f"{column.title} holds numbers, and the class names are numbers in another order: labels were read as {reading}"
    )


def _check_indices(
    distinct: Sequence[tuple[str, NDArray[Any]]], labels: list[list[Any]], count: int, reason: str, option: str
) -> None:
    for (title, _), values in zip(distinct, labels, strict=True):
        for label in values:
            if isinstance(label, str) or not 0 <= label < count:
                hint = "; if labels start at 1, subtract 1" if label == count else ""
                names = (
                    f"; give the class names in the order of the scores ({option})" if isinstance(label, str) else ""
                )
                wanted = reason.format(count, count - 1)
                raise InputError(f"{title} has the label {label!r}, but {wanted}{hint}{names}")
