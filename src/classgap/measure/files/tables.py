"""Reading prediction files: CSV, Parquet (also a folder of parts), NPZ and safetensors.

A table with only true and predicted labels is counted while it streams, so 100 million rows need no more memory than
their confusion matrix. Scores and features are read whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap._checks import InputError
from classgap.measure.classwise import Ints
from classgap.measure.confusion import Confusion
from classgap.measure.files.archives import Arrays, read_npz, read_safetensors
from classgap.measure.files.columns import Columns, pick
from classgap.measure.files.labels import resolve_classes
from classgap.measure.files.sidecars import counts_in_order, read_names, read_train_counts

if TYPE_CHECKING:
    from classgap.measure.comparison import Comparison
    from classgap.measure.report import AuditReport

__all__ = [
    "Columns",
    "Predictions",
    "align",
    "audit_predictions",
    "compare_tables",
    "read_names",
    "read_predictions",
    "read_train_counts",
]

Paths = Sequence[Path | str]
Progress = Callable[[int, int], None]
_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".safetensors": "safetensors",
}


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a prediction file holds, with labels as class indices.

    Either ``y_true`` (and ``y_pred`` or ``scores``) or, for a streamed table, only the ``confusion`` is set.
    """

    classes: tuple[str, ...]
    num_samples: int
    y_true: Ints | None = None
    y_pred: Ints | None = None
    confusion: Confusion | None = None
    scores: NDArray[Any] | None = None
    features: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    margin_norms: NDArray[Any] | None = None
    train_counts: Ints | None = None
    ids: NDArray[Any] | None = None


def read_predictions(
    paths: Paths,
    columns: Columns | None = None,
    *,
    class_names: Sequence[str] | None = None,
    train_counts: Mapping[str, int] | Sequence[int] | None = None,
    rows: bool = False,
    progress: Progress | None = None,
) -> Predictions:
    """Read one data set from one or more files.

    Args:
        paths: Files or folders; several are parts of the same data set, in this order.
        columns: Names of columns or arrays; what is left open is guessed when only one thing can be meant.
        class_names: Names in index order. Without it: the file's own, then the suffixes of score columns, then the labels.
        train_counts: Training samples a class, in class order or by name.
        rows: Keep the rows of a table that has only labels, instead of counting them as they stream.
        progress: Called with (rows done, rows in total) while a table is counted.
    """
    files, kind = _expand(paths)
    columns = columns or Columns()
    names = None if class_names is None else list(class_names)
    if kind in ("csv", "parquet"):
        found = _read_table(files, kind, columns, names, rows, progress)
    else:
        found = _read_archives(files, kind, columns, names)
    if train_counts is not None:
        found = replace(found, train_counts=counts_in_order(train_counts, found.classes))
    return found


def audit_predictions(found: Predictions, *, labels_only: bool = False, **options: Any) -> AuditReport:
    """Audit what a file held; ``options`` are those of :func:`classgap.audit`.

    Args:
        labels_only: Leave scores and features out (quick; enough for a comparison).
    """
    from classgap.measure.auditing import audit, audit_counts

    options = {"class_names": found.classes, "train_counts": found.train_counts} | options
    if found.confusion is not None:
        return audit_counts(found.confusion, **options)
    y_true, y_pred = _as_labels(found, found.y_true), _as_labels(found, found.y_pred)
    if labels_only:
        if y_pred is None and found.scores is not None:
            y_pred = _as_labels(found, found.scores.argmax(axis=1))
        return audit(y_true, y_pred, **options)
    if found.weight is not None:
        options |= {"head": (found.weight, found.bias), "margin_norms": found.margin_norms}
    return audit(y_true, y_pred, scores=found.scores, features=found.features, **options)


def _as_labels(found: Predictions, codes: Ints | None) -> Any:
    """Indices as ``audit`` takes them: as names where names are numbers in another order and indices would mislead."""
    numbers = {str(k) for k in range(len(found.classes))}
    if (
        codes is None
        or numbers.isdisjoint(found.classes)
        or found.classes == tuple(map(str, range(len(found.classes))))
    ):
        return codes
    return np.array(found.classes)[codes]


def compare_tables(
    before: Paths,
    after: Paths,
    columns: Columns,
    *,
    class_names: Sequence[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison | None:
    """Compare two tables of labels while they stream; None when they hold more than labels and rows must be read.

    ``options`` are those of :func:`classgap.compare`.
    """
    from classgap.measure.auditing import audit_counts
    from classgap.measure.comparing import compare_counts

    sides = [_expand(before), _expand(after)]
    if not {kind for _, kind in sides} <= {"csv", "parquet"}:
        return None
    from classgap.measure.files.frames import count_pairs, open_table

    with _readable(sides[0][0][0]):
        frames = [open_table(files, kind, columns) for files, kind in sides]
        if not all(frame.countable for frame in frames):
            return None
        names = None if class_names is None else list(class_names)
        classes, *confusions, tables = count_pairs(frames[0], frames[1], names, progress)
    shared = {key: options[key] for key in ("confidence", "seed") if key in options}
    reports = [audit_counts(confusion, classes, **shared) for confusion in confusions]
    return compare_counts(reports[0], reports[1], tables, **options)


def align(runs: Sequence[Predictions]) -> list[Predictions]:
    """The runs with their rows in the order of the first, by sample id."""
    first = runs[0].ids
    if first is None:
        return list(runs)
    aligned = []
    for run in runs:
        ids = np.asarray(run.ids)
        order = np.argsort(ids, kind="stable")
        if (ids[order][1:] == ids[order][:-1]).any():
            twice = ids[order][1:][ids[order][1:] == ids[order][:-1]][0]
            raise InputError(f"sample id {twice!s} occurs twice; ids must tell samples apart")
        if len(ids) != len(first) or (ids[order] != np.sort(first)).any():
            raise InputError("the files hold different sample ids; they must be predictions for the same samples")
        place = np.empty(len(ids), dtype=np.int64)
        place[np.argsort(first, kind="stable")] = order
        moved: dict[str, Any] = {role: None if (a := getattr(run, role)) is None else a[place] for role in _PER_ROW}
        aligned.append(replace(run, **moved))
    return aligned


_SIDE = ("train_counts", "class_names")
_PER_ROW = ("y_true", "y_pred", "scores", "features", "ids")


def _expand(paths: Paths) -> tuple[list[Path], str]:
    """The files behind ``paths`` (folders opened) and their common format."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            parts = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in _FORMATS and p.name[0] not in "._"]
            if not parts:
                raise InputError(f"folder {path} holds no prediction file ({', '.join(_FORMATS)})")
            files += parts
        elif not path.exists():
            raise InputError(f"there is no file {path}")
        else:
            files.append(path)
    for file in files:
        if file.suffix.lower() not in _FORMATS:
            raise InputError(f"{file} has an ending classgap does not know; it reads {', '.join(_FORMATS)}")
        if file.stat().st_size == 0:
            raise InputError(f"{file} is empty")
    kinds = {_FORMATS[f.suffix.lower()] for f in files}
    if len(kinds) != 1:
        raise InputError(
            f"the parts of a data set must be of one format, got {' and '.join(sorted(kinds)) or 'nothing'}"
        )
    return files, kinds.pop()


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn a failure of the table reader into one sentence."""
    import polars as pl

    try:
        yield
    except pl.exceptions.PolarsError as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"{file} ends in {file.suffix} but cannot be read as such ({reason})") from None


def _read_table(
    files: list[Path], kind: str, columns: Columns, names: list[str] | None, rows: bool, progress: Progress | None
) -> Predictions:
    from classgap.measure.files.frames import count_rows, open_table, read_rows

    with _readable(files[0]):
        frame = open_table(files, kind, columns)
        if frame.countable and not rows:
            classes, confusion, total = count_rows(frame, names, progress)
            return Predictions(classes, total, confusion=confusion)
        return _encode(read_rows(frame), names or frame.spelled)


def _read_archives(files: list[Path], kind: str, columns: Columns, names: list[str] | None) -> Predictions:
    read = read_npz if kind == "npz" else read_safetensors
    parts = [_roles(read(file), file, columns) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(f"{file} and {files[0]} hold different arrays; parts of one data set must hold the same")
    arrays = {
        role: np.concatenate([part[role] for part in parts]) if role in _PER_ROW and len(parts) > 1 else parts[0][role]
        for role in parts[0]
    }
    if names is None and "class_names" in arrays:
        names = [str(name) for name in arrays["class_names"].ravel()]
    return _encode(arrays, names)


def _roles(arrays: Arrays, file: Path, columns: Columns) -> Arrays:
    """The arrays of one archive by what they are."""
    from classgap.measure.files.frames import require_labels

    available = list(arrays)
    wanted = {
        "y_true": pick("true", columns.true, available),
        "y_pred": pick("pred", columns.pred, available),
        "scores": pick("scores", columns.scores, available),
        "features": pick("features", columns.features, available),
        "ids": pick("id", columns.id, available) if columns.id else None,
    } | {role: pick(role, None, available) for role in ("weight", "bias", "margin_norms", *_SIDE)}
    found = {role: arrays[name] for role, name in wanted.items() if name is not None}
    from_head = "scores" not in found and {"features", "weight"} <= found.keys()
    require_labels("y_true" in found, "y_pred" in found or "scores" in found or from_head, file, available)
    for role in ("y_true", "y_pred", "ids"):
        if role in found and found[role].ndim != 1:
            raise InputError(f"array {wanted[role]!r} in {file} must be one label a row, got shape {found[role].shape}")
    for role in ("scores", "features", "weight"):
        if role in found and (found[role].ndim != 2 or found[role].dtype.kind not in "fiu"):
            raise InputError(
                f"array {wanted[role]!r} in {file} must be a matrix of numbers, "
                f"got shape {found[role].shape} of {found[role].dtype}"
            )
    if from_head:
        features, weight = found["features"], found["weight"]
        if features.shape[1] != weight.shape[1]:
            raise InputError(
                f"features in {file} have {features.shape[1]} columns but the head's weight has {weight.shape[1]}"
            )
        found["scores"] = features @ weight.T + found.get("bias", 0.0)
    return found


def _encode(arrays: Arrays, names: list[str] | None) -> Predictions:
    """Predictions from raw arrays, all rows kept."""
    num_samples = len(arrays["y_true"])
    if num_samples == 0:
        raise InputError("the prediction file has no rows")
    for role in _PER_ROW:
        if role in arrays and len(arrays[role]) != num_samples:
            raise InputError(f"y_true has {num_samples} rows but {role} has {len(arrays[role])}; they must agree")
    width = arrays["scores"].shape[1] if "scores" in arrays else None
    roles = [role for role in ("y_true", "y_pred") if role in arrays]
    distinct = [(role, np.unique(arrays[role])) for role in roles]
    classes, coders = resolve_classes(distinct, names=names, width=width)
    found: dict[str, Any] = {role: coder(arrays[role]) for role, coder in zip(roles, coders, strict=True)}
    found |= {
        role: arrays[role] for role in ("scores", "features", "weight", "bias", "margin_norms", "ids") if role in arrays
    }
    if "train_counts" in arrays:
        found["train_counts"] = counts_in_order(arrays["train_counts"].ravel().tolist(), classes)
    return Predictions(classes, num_samples, **found)
