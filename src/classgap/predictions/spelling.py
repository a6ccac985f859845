"""How labels are written: whole numbers, decimals, booleans and text, and when two spellings are one label."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, as_text

# A column with more different labels than this, all of them decimal numbers, is not a label column.
_MANY_FRACTIONS = 50
# How pandas, R, databases and spreadsheets write a missing value.
_MISSING = ("nan", "none", "null", "na", "<na>", "nat", "n/a", "#n/a")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
# A spreadsheet takes a cell that begins with one of these characters for a formula, and runs it. The last four are full-width.
FORMULA_STARTS = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_FORMULA_AS_TEXT = re.compile(rf"\A'(?={FORMULA_STARTS})")
L = TypeVar("L", str, int)
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


def canonical(title: str, values: NDArray[Any], names: Sequence[str]) -> list[Any]:
    """Distinct labels as ints if every one of them is a whole number (also ``3.0`` and ``"3"``), otherwise as str.

    Spaces around a number mean nothing, unless the text is among the class ``names``.
    """
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise InputError(f"{title} has rows without a label (NaN); remove or label them")
        if (values != np.rint(values)).any():
            odd = values[values != np.rint(values)][0]
            raise InputError(
                f"{title} must hold class labels, got the fraction {odd:g}; check that it is not a column of scores"
            )
        return [int(v) for v in values]
    if values.dtype.kind == "b" and (flags := _flags_among(names)) is not None:
        return [flags[bool(v)] for v in values]
    if values.dtype.kind in "iub":
        return [int(v) for v in values]
    texts = [label_text(title, v) for v in values]
    texts = [text.strip(" ") if NUMBER.fullmatch(text) and text not in names else text for text in texts]
    if any(not text.strip() and text not in names for text in texts):
        raise InputError(f"{title} has rows without a label (empty text); remove these rows or add labels")
    if all(is_whole(t) for t in texts):
        return [int(t) for t in texts]
    known = [text for text in texts if text.lower() not in _MISSING]
    if 0 < len(known) < len(texts) and all(NUMBER.fullmatch(text) for text in known):
        missing = next(text for text in texts if text not in known)
        raise InputError(f"{title} has rows without a label ({missing!r} among numbers); remove or label them")
    if len(texts) > _MANY_FRACTIONS and all(NUMBER.fullmatch(t) for t in texts) and any("." in t for t in texts):
        raise InputError(
            f"{title} holds {len(texts)} different decimal numbers (e.g. {texts[0]}), not class labels; check that it is not a "
            "column of scores or the target of a regression"
        )
    return texts


def _flags_among(names: Sequence[str]) -> dict[bool, str] | None:
    """The names that are true and false, in any case; None if they are not among the names, or more than once."""
    found = {name.lower() == "true": name for name in names if name.lower() in ("false", "true")}
    spelled = [name for name in names if name.lower() in ("false", "true")]
    return found if len(spelled) == len(found) == 2 else None


def label_text(title: str, label: Any) -> str:
    """A label as text, without the apostrophe that keeps a spreadsheet from running it as a formula (see ``export``)."""
    return _FORMULA_AS_TEXT.sub("", as_text(title, label), count=1)


def is_whole(text: str) -> bool:
    # "007" and "7" are different labels, so only the shortest spelling of a number is converted.
    return _WHOLE.fullmatch(text) is not None


def _is_number(text: str, names: Sequence[str] | None) -> bool:
    """Whether a text is a whole number, also with decimals as in "3.0" unless that is a class name."""
    number, point, decimals = text.partition(".")
    return is_whole(number) and (not point or (set(decimals) == {"0"} and text not in (names or ())))


def is_numeric(labels: list[Any]) -> bool:
    return bool(labels) and isinstance(labels[0], int)


def one_spelling(labels: list[list[Any]], names: Sequence[str] | None, width: int | None) -> list[list[Any]]:
    """Labels with text such as "3.0" as ints, if other labels, the class names or the scores require numbers."""
    expects_numbers = names is not None or width is not None
    expects_numbers |= any(is_numeric(column) or any(map(is_whole, column)) for column in labels)
    return [
        [int(text.partition(".")[0]) for text in column]
        if expects_numbers and not is_numeric(column) and all(_is_number(text, names) for text in column)
        else column
        for column in labels
    ]


def without_decimals(names: Sequence[str]) -> list[str]:
    """The names, with 25.0 as 25, the spelling of a label that is a whole number, unless that is another name."""
    short = [name.partition(".")[0] if _is_number(name, None) else name for name in names]
    return short if len(set(short)) == len(names) else list(names)


def distinct_labels(distinct: Sequence[tuple[str, NDArray[Any]]]) -> list[str]:
    """The labels of all columns as names, in numeric or alphabetic order.

    Example:
        >>> distinct_labels([("label", np.array([10.0, 2.0]))]), distinct_labels([("label", np.array([True, False]))])
        (['2', '10'], ['False', 'True'])
    """
    columns = [
        [str(label) for label in values] if values.dtype.kind == "b" else canonical(title, values, ())
        for title, values in distinct
    ]
    spelled = one_spelling(columns, None, None)
    return in_order({str(label) for column in spelled for label in column})


def in_order(labels: set[L]) -> list[L]:
    """Labels in numeric order if all are numbers, also as text, otherwise in alphabetic order."""
    if all(isinstance(label, str) and NUMBER.fullmatch(label) for label in labels):
        return sorted(labels, key=lambda label: (float(label), str(label)))
    return sorted(labels)


def are_flags(columns: Sequence[list[Any]]) -> bool:
    """Whether all labels are true or false, as booleans or in several spellings (True in one column, true in another)."""
    if any(len(column) > 2 or len({str(value).lower() for value in column}) < len(column) for column in columns):
        return False  # two spellings in one column are two classes
    found = {str(value) for column in columns for value in column}
    written = {text.lower() for text in found}
    several = len(written) < len(found) or any(isinstance(column[0], bool) for column in columns)
    return several and written <= {"false", "true"}


def in_one_spelling(runs: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The class names of several runs, with 1.0 as 1 and true as True where the runs spell them differently.

    Example:
        >>> in_one_spelling([("1.0", "2.0"), ("1", "2", "3")]), in_one_spelling([("1.0", "2.0"), ("2.0", "3.0")])
        ([('1', '2'), ('1', '2', '3')], [('1.0', '2.0'), ('2.0', '3.0')])
    """
    plain = [_plain_names(names) for names in runs]
    pairs = {pair for names, short in zip(runs, plain, strict=True) for pair in zip(names, short, strict=True)}
    return list(runs) if len({short for _, short in pairs}) == len(pairs) else plain


def _plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that are all whole numbers without decimals, and those that are true and false as Python writes them."""
    short = names
    if all(_is_number(name, None) for name in names):
        short = tuple(name.partition(".")[0] for name in names)
    elif {name.lower() for name in names} <= {"false", "true"}:
        short = tuple(name.capitalize() for name in names)
    return short if len(set(short)) == len(names) else names


def spelled_alike(classes: Sequence[str]) -> tuple[str, ...]:
    """A note on classes whose names differ only in case, spaces or coding of accents: they are probably one class."""
    first: dict[str, str] = {}
    pairs = [(other, name) for name in classes if (other := first.setdefault(folded(name), name)) != name]
    if not pairs:
        return ()
    shown = ", ".join(f"{one!r} and {other!r}" for one, other in pairs[:3]) + (" …" if len(pairs) > 3 else "")
    return (
        f"{shown} differ only in {spelling_difference(pairs)}, but count as different classes; use one spelling if they are one",
    )


def folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip().casefold())


def spelling_difference(pairs: Sequence[tuple[str, str]]) -> str:
    """What the names of the pairs differ in."""
    alike = all(one.strip().casefold() == other.strip().casefold() for one, other in pairs)
    return "case or spaces" if alike else "case, spaces or Unicode form (é as one character or as two)"
