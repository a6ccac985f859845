"""Values that name the classes they belong to: Series and tables of pandas, tables of polars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from classgap.checks import InputError, printable, unique_keys


def by_name(value: Any) -> Any:
    """A pandas Series with names in its index, e.g. of ``value_counts()``, as a dictionary; anything else as it is.

    An index 0, 1, 2 … holds positions, not names.
    """
    if (found := _named_entries(value)) is None:
        return value
    return unique_keys([(index_name(name), entry) for name, entry in found])


def _named_entries(value: Any) -> list[tuple[Any, Any]] | None:
    """The names and entries of a pandas Series; None for anything else, and for an index 0, 1, 2 …"""
    found = _entries(value)
    return None if found is None or [name for name, _ in found] == list(range(len(found))) else found


def _entries(value: Any) -> list[tuple[Any, Any]] | None:
    """The index and entries of a pandas Series; None for anything else, and for an index that only counts the entries."""
    if not hasattr(value, "iloc") or getattr(value, "ndim", 0) != 1 or type(value.index).__name__ == "RangeIndex":
        return None
    index = [name[0] if isinstance(name, tuple) and len(name) == 1 else name for name in value.index]
    return list(zip(index, value.tolist(), strict=True))


def index_name(name: Any) -> str:
    """An entry of a pandas index as the name of a class: 3.0 is 3, as among the labels."""
    whole = not isinstance(name, bool) and hasattr(name, "is_integer") and name.is_integer()
    return printable(str(int(name) if whole else name))


def _names_among(found: Iterable[Any], known: set[str]) -> list[str]:
    """Entries of a pandas index as names, spelled as those that are known: 2 is "2.0" if that is the known name."""
    decimals = {name.partition(".")[0]: name for name in known if re.fullmatch(r"(0|-?[1-9][0-9]*)\.0+", name)}
    names = [text if (text := printable(str(name))) in known else index_name(name) for name in found]
    return [name if name in known else decimals.get(name, name) for name in names]


def by_class(value: Any, classes: Sequence[str], *, positions: bool = False) -> Any:
    """A pandas Series that names the classes, or a mapping, as a dictionary by class; anything else as it is.

    Whole numbers that are no names of classes are positions among them, and so is the index that pandas gives to a plain list.

    Args:
        positions: Numbers are positions also where they are names, since they are so among the labels.
    """
    found = list(value.items()) if isinstance(value, Mapping) else _entries(value)
    if found is None:
        return value
    known, places = set(classes), {str(k): name for k, name in enumerate(classes)}
    names = _names_among((name for name, _ in found), known)
    positions &= not any(isinstance(name, str) for name, _ in found)
    if all(name in places for name in names) and (positions or known.isdisjoint(names)):
        names = [places[name] for name in names]
    return unique_keys(list(zip(names, (entry for _, entry in found), strict=True)))


def in_class_order(name: str, value: Any, classes: Iterable[Any]) -> Any:
    """A pandas Series that names the classes, as a list in their order; anything else as it is."""
    names = [index_name(entry) for entry in classes]
    found = value if isinstance(value, Mapping) else by_class(value, names)
    if found is value:
        return value
    if set(found) != set(names):
        raise _other_names(f"the index of {name}", list(found), names)
    return [found[entry] for entry in names]


def columns_in_order(name: str, value: Any, classes: Iterable[Any]) -> Any:
    """A pandas or polars table whose columns are the classes, as an array in their order; anything else as it is.

    Columns 0, 1, 2 …, and columns of which none is the name of a class, are in the order of the classes already.
    """
    if column_names(value) is None:
        return value
    names = [index_name(entry) for entry in classes]
    found = _names_among(value.columns, set(names))
    if found == names or not set(found) & set(names):
        return value
    if sorted(found) != sorted(names):
        raise _other_names(f"the columns of {name}", found, names)
    place = {entry: k for k, entry in enumerate(found)}
    return value.to_numpy()[:, [place[entry] for entry in names]]


def column_names(value: Any) -> list[str] | None:
    """Names of the columns of a pandas or polars table; None for anything else, and for columns 0, 1, 2 …"""
    if not hasattr(value, "columns") or not hasattr(value, "to_numpy"):
        return None
    found = [index_name(column) for column in value.columns]
    return None if found == [str(k) for k in range(len(found))] else found


def _other_names(what: str, found: list[str], names: list[str]) -> InputError:
    shown = [", ".join(map(repr, some[:3])) + (" …" if len(some) > 3 else "") for some in (found, names)]
    return InputError(
        f"{what} must hold every class once ({shown[1]}), got {shown[0]}; pass an array in the order of the classes"
    )
