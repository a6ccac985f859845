"""Every check of user input that needs no torch, and its wording.

A message names the argument, says what was wanted, shows what came, and offers the way out.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import numbers
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

S = TypeVar("S", bound=str)
MOST_DRAWS = 1_000_000
"""Limit of the number of random draws: more take hours, and change no digit that is shown."""
MOST_SAMPLES = 2**53
"""Limit of the number of samples: beyond it, sums of whole numbers are not exact as floating-point numbers."""
LARGEST_VALUE = 1e100
"""Limit of scores and weights: beyond it, sums of squares and of products are no numbers."""
LARGEST_FEATURE = 1e15
"""Limit of features: squares of larger ones are no numbers in single precision."""
ROUNDING = 1e-3
"""How far probabilities may lie outside [0, 1]: rounding errors, also of half precision."""
ROUNDING_OF_SUMS = 1e-2
"""How far the sum of the probabilities of a sample may differ from 1."""
_ROUGH_ROUNDING = 0.03  # by how much rows of probabilities with two decimals may miss 1
_NO_LOGITS = 30  # scores from 0 to more than this are no logits
LARGEST_SEED = 2**32 - 1
"""The largest seed of training: that of NumPy's older generator."""


class InputError(ValueError):
    """The caller passed something that cannot be used; the text says what to do. The CLI prints it and exits with 2."""


class MissingValues(InputError):
    """Some rows have no value in one of these ``columns``; the reader of the file adds where the first one is."""

    def __init__(self, sentence: str, columns: Sequence[str]) -> None:
        super().__init__(sentence)
        self.columns = tuple(columns)


@contextlib.contextmanager
def reading(path: str | Path, what: str) -> Iterator[None]:
    """Turn whatever the content of a damaged file raises while it is interpreted into one sentence; ``what`` it should be."""
    try:
        yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = printable(" ".join(str(error).split())[:200])
        raise InputError(
            f"{path} is not {what}, or it is damaged ({type(error).__name__}: {reason}); restore the file, or write it again"
        ) from error


def printable(name: str) -> str:
    r"""``name`` as it is shown everywhere: control characters and halves of surrogate pairs as escape sequences.

    Example:
        >>> printable("caf\u00e9\a")
        'café\\x07'
    """
    if name.isprintable():
        return name
    return "".join(
        c if c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs" else _escaped(c) for c in name
    )


_JOINERS = "\u200c\u200d"  # parts of words in Persian and Indian scripts, and of emoji such as families


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of a JSON object as a dictionary, for ``object_pairs_hook``; a name that occurs twice is refused."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InputError(f"every name must occur once, but {name!r} occurs twice")
        found[name] = value
    return found


def plain_value(text: str) -> Any:
    """The value that the user wrote: a JSON value where it is one, else the text.

    Example:
        >>> plain_value("0.5"), plain_value("mean"), plain_value("True")
        (0.5, 'mean', True)
    """
    try:
        return json.loads({"True": "true", "False": "false", "None": "null", "none": "null"}.get(text, text))
    except (ValueError, RecursionError):  # also numbers with thousands of digits, and deeply nested lists
        return text


def did_you_mean(name: str, known: Iterable[str], *, what: str) -> str:
    """The sentence for an unknown name: ``unknown loss 'mr3'; did you mean 'mr2'? (known: …)``."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    more = f", … {len(choices) - 40} more" if len(choices) > 40 else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(choices[:40])}{more})"


def one_of(name: str, value: S, choices: Iterable[str]) -> S:
    """``value`` if it is among ``choices``."""
    choices = list(choices)
    if value not in choices:
        raise InputError(did_you_mean(str(value), choices, what=f"value for {name}"))
    return value


def number(name: str, value: float, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False) -> float:
    """``value`` if it is a finite number in ``[low, high]`` (``(low, high]`` with ``open_low``)."""
    bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value)
    if bad or value < low or value > high or (open_low and value == low):
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise InputError(f"{name} must be a finite number in {left}{low:g}, {high:g}{right}, got {shown(value)}")
    return value


def _is_finite(value: float) -> bool:
    """Also false for whole numbers beyond 64 bits, which torch cannot multiply with."""
    return -(2**63) < value < 2**63 if isinstance(value, int) else math.isfinite(value)


def shown(value: object) -> str:
    """``value`` in an error message: short, and without failing on whole numbers with thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a whole number with more than {sys.get_int_max_str_digits():,} digits"
    return text if len(text) <= 80 else f"{text[:80]}…"


def float_matrix(
    name: str,
    value: Any,
    *,
    rows: int | None = None,
    columns: int | None = None,
    largest: float = LARGEST_VALUE,
) -> NDArray[np.floating[Any]]:
    """``value`` as a finite floating matrix with at least one row and column, not copied if it is one already."""
    import numpy as np

    matrix = np.asarray(value)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise InputError(f"{name} must be a numeric matrix, got shape {matrix.shape} of {matrix.dtype}")
    wanted = (matrix.shape[0] if rows is None else rows, matrix.shape[1] if columns is None else columns)
    if matrix.shape != wanted:
        hint = f"; pass {name}.T" if matrix.shape == wanted[::-1] else ""
        raise InputError(f"{name} must have shape {wanted}, got {matrix.shape}{hint}")
    if matrix.size == 0:
        raise InputError(f"{name} must have at least one row and one column, got shape {matrix.shape}")
    if matrix.dtype not in (np.float16, np.float32, np.float64):  # whole numbers, long doubles, another byte order
        matrix = matrix.astype(np.float64)
    # nan and infinity survive min and max, which need no temporary array of the same size
    extremes = float(matrix.min()), float(matrix.max())
    if not all(map(math.isfinite, extremes)):
        row = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
        raise InputError(f"{name} holds nan or infinite values (first: row {row}); drop or repair those rows first")
    _check_size(name, extremes, largest)
    return matrix


def feature_matrix(value: Any, *, rows: int | None = None) -> NDArray[np.floating[Any]]:
    """``value`` as a finite floating matrix of features, small enough for sums of squares in single precision."""
    return float_matrix("features", value, rows=rows, largest=LARGEST_FEATURE)


def float_vector(name: str, value: Any, *, length: int) -> NDArray[np.float64]:
    """``value`` as a finite float64 vector of ``length`` entries."""
    import numpy as np

    vector = np.asarray(value)
    if vector.ndim != 1 or vector.dtype.kind not in "fiub" or len(vector) != length:
        raise InputError(f"{name} must be {length} numbers, got shape {vector.shape} of {vector.dtype}")
    if not np.isfinite(vector).all():
        raise InputError(f"{name} holds nan or infinite values")
    vector = vector.astype(np.float64)
    if length:
        _check_size(name, (vector.min(), vector.max()), LARGEST_VALUE)
    return vector


def _check_size(name: str, extremes: tuple[float, float], limit: float) -> None:
    extreme = max(extremes, key=abs)
    if abs(extreme) > limit:
        raise InputError(
            f"{name} holds the value {extreme:g}, and computing with it would overflow; values must lie between -{limit:g} and "
            f"{limit:g}"
        )


def class_indices(name: str, value: Any, num_classes: int, *, rows: int) -> NDArray[np.int64]:
    """``value`` as ``rows`` class indices in ``[0, num_classes)``."""
    import numpy as np

    labels = np.asarray(value)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        hint = "; did you pass one-hot labels?" if labels.ndim == 2 else ""
        raise InputError(f"{name} must be a vector of integers, got shape {labels.shape} of {labels.dtype}{hint}")
    if len(labels) != rows:
        raise InputError(f"{name} must have one entry per row, {rows}, got {len(labels)}")
    if rows and (labels.min() < 0 or labels.max() >= num_classes):
        raise InputError(
            f"{name} must hold class indices in [0, {num_classes}), got values from {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64, copy=False)


def in_unit_range(values: NDArray[np.floating[Any]]) -> bool:
    """Whether all values lie in [0, 1], apart from rounding errors."""
    return bool(values.min() >= -ROUNDING and values.max() <= 1 + ROUNDING)


def clipped(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Values with rounding errors outside [0, 1] as values in [0, 1]; not copied if there are none."""
    return values if values.min() >= 0 and values.max() <= 1 else values.clip(0, 1)


def are_logits(matrix: NDArray[np.floating[Any]]) -> bool:
    """Whether ``(n, K)`` scores have a value outside [0, 1] that is not a rounding error of probabilities.

    Example:
        >>> import numpy as np
        >>> are_logits(np.array([[1.0000001, -1e-9]])), are_logits(np.array([[0.3, -1e-9]]))
        (False, True)
    """
    if matrix.min() >= 0 and matrix.max() <= 1:
        return False
    return not in_unit_range(matrix) or bool(_errors_of_sums(matrix).max() > ROUNDING_OF_SUMS)


def refuse_percentages(name: str, values: NDArray[np.floating[Any]], *, independent: bool = False) -> None:
    """Refuse probabilities in per cent, which would be taken for logits.

    Args:
        independent: The scores do not sum to 1: they are one score per sample, or one per label of several. Then percentages are
            known by their range, since logits from 0 to more than 30 would accept every sample.
    Example:
        >>> import numpy as np
        >>> refuse_percentages("scores", np.array([[99.5, 0.5], [20.0, 80.0]]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        classgap.checks.InputError: scores must hold ... percentages (0.5 to 99.5); divide them by 100
    """
    low, high = float(values.min()), float(values.max())
    if low < 0 or not 1 + ROUNDING < high <= 100 + 100 * ROUNDING or "logit" in name:
        return
    if independent:
        in_per_cent = high > _NO_LOGITS
    else:
        in_per_cent = bool(abs(values.sum(axis=1, dtype="float64") - 100).max() <= 100 * _ROUGH_ROUNDING)
    if in_per_cent:
        raise InputError(
            f"{name} must hold logits, or probabilities from 0 to 1, but the values look like percentages ({low:g} to {high:g}); "
            "divide them by 100"
        )


def _errors_of_sums(matrix: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    import numpy as np

    return np.asarray(np.abs(matrix.sum(axis=1, dtype=np.float64) - 1))


def probabilities(name: str, matrix: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """The matrix without rounding errors outside [0, 1]; refuses rows that are not probabilities."""
    import numpy as np

    if not in_unit_range(matrix):
        raise InputError(
            f"{name} must be probabilities in [0, 1], got values from {matrix.min():g} to {matrix.max():g}; "
            "pass logits as logits, or apply softmax first"
        )
    error = _errors_of_sums(matrix)
    if error.max() > ROUNDING_OF_SUMS:
        row = int(error.argmax())
        advice = (
            "if these are rounded probabilities, write more digits or divide every row by its sum"
            if error.max() < _ROUGH_ROUNDING
            else "pass logits as logits, or apply softmax first"
        )
        raise InputError(
            f"{name} must have rows that sum to 1, but row {row} sums to {matrix[row].sum(dtype=np.float64):g}; {advice}"
        )
    return clipped(matrix)


def fraction(name: str, value: float) -> float:
    """``value`` if it lies strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InputError(f"{name} must be a number between 0 and 1 (both excluded), got {shown(value)}")
    return value


def whole(name: str, value: int, *, low: int, high: int | None = None) -> int:
    """``value`` if it is a whole number >= ``low`` (and <= ``high``)."""
    bad = isinstance(value, bool) or not isinstance(value, numbers.Integral)
    if bad or value < low or (high is not None and value > high):
        limit = f">= {low}" if high is None else f"from {low} to {high:,}"
        raise InputError(f"{name} must be a whole number {limit}, got {shown(value)}")
    return int(value)


def flag(name: str, value: bool) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {shown(value)}")
    return value


def as_numpy(value: Any, name: str = "the argument") -> NDArray[Any]:
    """``value`` as an array; tensors of any device are detached and copied over, also half-precision ones."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} must be an array, or lists of equal lengths ({error})") from None


def is_missing(value: Any) -> bool:
    """Whether ``value`` is None, nan, or a missing value of pandas."""
    try:
        return value is None or bool(value != value)  # nan differs from itself, and so does NaT
    except TypeError:  # whether NA differs from itself is neither true nor false
        return True
    except ValueError:  # an array
        return False


def as_text(title: str, value: Any) -> str:
    """``value`` as text; bytes must be UTF-8. ``title`` is what holds it."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InputError(f"{title} holds text that is not UTF-8 (e.g. {value[:40]!r}); convert it to UTF-8") from None


def label_vector(name: str, value: Any) -> NDArray[Any]:
    """``value`` as a non-empty vector of labels of one sort (numbers, text or booleans), none missing."""
    import numpy as np

    labels = as_numpy(value, name)
    if labels.ndim != 1:
        hint = ""
        if labels.ndim == 2 and labels.shape[1] == 1:
            hint = "; pass its column [:, 0]"
        elif labels.ndim == 2:
            hint = "; for one-hot labels pass their argmax(axis=1), for multi-label data use classgap.audit_labels"
        raise InputError(f"{name} must be a vector of labels, got shape {labels.shape}{hint}")
    if len(labels) == 0:
        raise InputError(f"{name} is empty; there is nothing to audit")
    if labels.dtype.kind == "O":
        labels = _from_objects(name, labels)
    if labels.dtype.kind not in "biufUS":
        raise InputError(f"{name} must hold class indices, names or booleans, got {labels.dtype}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError(f"{name} has missing labels (row {int(np.argmin(np.isfinite(labels)))}); drop or label them")
    return labels


def _from_objects(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    for row, label in enumerate(labels):
        if isinstance(label, Sized) and not isinstance(label, (str, bytes)):
            raise InputError(f"{name} must hold one label per row, got {label!r:.80} in row {row}")
        if is_missing(label):
            raise InputError(f"{name} has missing labels (row {row}); drop or label them")
    if all(isinstance(label, str) for label in labels):
        return labels.astype(str)
    if all(isinstance(label, bytes) for label in labels):
        return labels.astype(bytes)
    if all(isinstance(label, (int, np.integer)) for label in labels):
        try:
            return labels.astype(np.int64)
        except OverflowError:
            raise InputError(f"{name} holds whole numbers of more than 64 bits; pass such labels as text") from None
    sorts = sorted({type(label).__name__ for label in labels})
    raise InputError(f"{name} mixes labels of the types {', '.join(sorts)}; use names or indices throughout")
