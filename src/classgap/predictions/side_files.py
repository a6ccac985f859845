"""Small files that accompany predictions: class names, training counts and costs of errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, as_numpy, unique_keys
from classgap.named import by_class, index_name
from classgap.predictions.labels import LabelCoder, check_names


def read_names(path: Path) -> list[str]:
    """Class names in index order: a text file with one name per line, a JSON list, or a JSON object from index to name."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte-order mark is not part of the first name
        is_json = path.suffix == ".json"
        lines = [line for line in text.split("\n") if line.strip()]
        if path.suffix.lower() in (".csv", ".tsv"):
            _refuse_columns(lines, path)
        found = json.loads(text, object_pairs_hook=unique_keys) if is_json else lines
        if isinstance(found, dict):
            found = [found[str(k)] for k in range(len(found))]
    except OSError:
        raise InputError(f"the file of class names {path} cannot be read") from None
    except InputError as error:
        raise _about(path, error) from None
    except (ValueError, KeyError, RecursionError):
        raise InputError(
            f"{path} must hold class names: one name per line, a JSON list, or a JSON object with keys 0, 1, 2, …"
        ) from None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found) or not found:
        raise InputError(f"{path} must hold at least one class name, and every name must be a string")
    return check_names([name.strip() for name in found])


def _refuse_columns(lines: Sequence[str], path: Path) -> None:
    """Refuse a table or a header in a CSV file of class names: its first line would be class 0, and all others one too far."""
    header = lines[0].strip().strip('"').lower() if lines else ""
    if header in ("name", "names", "class", "classes", "class_name", "label", "labels", "label_name"):
        raise InputError(f"{path} must hold one class name per line and no header; remove the first line, {lines[0]!r}")
    if lines and all(any(sign in line for sign in ",;\t") for line in lines):
        raise InputError(f"{path} must hold one class name per line and nothing else, got the line {lines[0]!r}")


def read_train_counts(path: Path) -> Mapping[str, int] | Sequence[int]:
    """Numbers of training samples per class: JSON (list in class order, or object by name), or CSV with a header."""
    if not path.is_file():
        raise InputError(f"the file of training counts {path} does not exist")
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_keys)
        else:
            table = _rows(path)
            if table.width > 2:  # e.g. the index of pandas, which would be taken for the class
                raise InputError(
                    f"training counts must have two columns, class and count, got {', '.join(map(repr, table.columns))}; "
                    "remove the others"
                )
            found = unique_keys([(str(name), _whole(count)) for name, count in table.rows()])
    except InputError as error:
        raise _about(path, error) from None
    except Exception:
        raise InputError(
            f"{path} must be JSON, or CSV with a header and the columns class,count; it cannot be read as either"
        ) from None
    if not isinstance(found, (dict, list)):
        raise InputError(f"{path} must hold a list of counts, or an object from class name to count")
    return found


def _about(path: Path, error: InputError) -> InputError:
    """The error with the name of its file."""
    return error if str(path) in str(error) else InputError(f"{path}: {error}")


def _rows(path: Path) -> Any:
    """A small CSV file as a polars table of texts."""
    from classgap.predictions.csv_files import read_small_csv

    return read_small_csv(path)


def _whole(text: str) -> int:
    """A whole number, also as 10.0, which pandas writes where a count was missing once."""
    return int(text.removesuffix(".0"))


def counts_in_order(given: Any, classes: tuple[str, ...], coders: Sequence[LabelCoder] = ()) -> NDArray[np.int64]:
    """Training counts as an array in class order; numbers that name them are read as ``coders`` read the labels."""
    numeric = [coder for coder in coders if coder.values.dtype.kind in "iuf"]
    positions = bool(numeric) and all(np.array_equal(coder.values, coder.codes) for coder in numeric)
    given = by_class(given, classes, positions=positions)
    if isinstance(given, Mapping):
        missing = [name for name in classes if name not in given]
        if missing:
            raise InputError(
                f"training counts must name every class, but {len(missing)} of {len(classes)} are missing (e.g. {missing[0]!r})"
            )
        given = [given[name] for name in classes]
    counts = as_numpy(given, "train_counts")
    if counts.shape != (len(classes),):
        raise InputError(
            f"there must be one training count per class, {len(classes)}, got "
            f"{len(counts) if counts.ndim == 1 else f'an array of shape {counts.shape}'}"
        )
    mixed = isinstance(given, (list, tuple)) and any(isinstance(count, bool) for count in given)
    if mixed or counts.dtype.kind not in "iu" or (counts < 0).any() or (counts > np.iinfo(np.int64).max).any():
        raise InputError(f"training counts must be whole numbers ≥ 0, got {counts[:3].tolist()!s:.80} …")
    return counts.astype(np.int64)


def read_cost(path: Path) -> dict[str, dict[str, float]]:
    """Costs of errors: CSV whose first column names the true class and whose other columns are the predicted classes, or a JSON
    object ``{true: {predicted: cost}}``.
    """
    if not path.is_file():
        raise InputError(f"the file of costs {path} does not exist")
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_keys)
            return {str(true): {str(k): float(v) for k, v in row.items()} for true, row in found.items()}
        table = _rows(path)
        names = table.columns[1:]
        return unique_keys([(str(row[0]), dict(zip(names, map(float, row[1:]), strict=True))) for row in table.rows()])
    except InputError as error:
        raise _about(path, error) from None
    except Exception:
        raise InputError(
            f"{path} must be CSV with the true class in the first column and one column per predicted class, or JSON "
            "{true: {predicted: cost}}; it cannot be read as either"
        ) from None


@dataclass(frozen=True, eq=False)
class NamedTable:
    """A matrix whose rows and columns have names; ``rows`` and ``columns`` give the place of each."""

    rows: dict[str, int]
    columns: dict[str, int]
    values: NDArray[Any]

    def in_order(self, names: Sequence[str]) -> NDArray[Any]:
        """The matrix with rows and columns in the order of ``names``."""
        if list(self.rows) == list(self.columns) == list(names):
            return self.values
        return self.values[np.ix_([self.rows[name] for name in names], [self.columns[name] for name in names])]


def named_table(given: Any) -> NamedTable | None:
    """A pandas table; None for anything else, and for rows and columns 0, 1, 2 …"""
    if not hasattr(given, "iloc") or getattr(given, "ndim", 0) != 2:
        return None
    if list(given.index) == list(range(len(given))) and list(given.columns) == list(range(given.shape[1])):
        return None
    rows, columns = (
        unique_keys([(index_name(name), k) for k, name in enumerate(names)]) for names in (given.index, given.columns)
    )
    values = given.to_numpy()
    return NamedTable(rows, columns, np.array(values.tolist()) if values.dtype.kind == "O" else values)


def cost_in_order(given: Any, classes: tuple[str, ...]) -> NDArray[Any]:
    """Costs as a matrix in class order."""
    if (table := named_table(given)) is not None:
        given = dict.fromkeys(table.rows, table.columns)
    if not isinstance(given, Mapping):
        return as_numpy(given, "cost")
    for true in classes:
        missing = [name for name in classes if name not in given.get(true, {})]
        if missing:
            raise InputError(
                f"cost must have an entry for every pair of classes, but {true!r} → {missing[0]!r} is missing"
            )
    if table is not None:
        return table.in_order(classes).astype(np.float64)
    return np.array([[given[true][predicted] for predicted in classes] for true in classes], dtype=np.float64)
