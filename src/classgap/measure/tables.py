"""Reading prediction files: CSV, Parquet (also a folder of parts), NPZ and safetensors.

A table with only true and predicted labels is counted while it streams, so 100 million rows need no more memory than
their confusion matrix. Scores and features are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap._checks import InputError
from classgap.measure._archives import Arrays, read_npz, read_safetensors
from classgap.measure._columns import Columns, pick, pick_wide
from classgap.measure._labels import LabelCoder, resolve_classes
from classgap.measure._sidecars import counts_in_order, read_names, read_train_counts

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Columns", "Predictions", "read_names", "read_predictions", "read_train_counts"]

Progress = Callable[[int, int], None]
_FORMATS = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet"} | {
    ending: ending[1:] for ending in (".npz", ".safetensors")
}
_BATCH_ROWS = 2_000_000


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a prediction file holds, with labels as class indices.

    Either ``y_true`` (and ``y_pred`` or ``scores``) or, for a streamed table, only the K×K ``counts`` is set.
    """

    classes: tuple[str, ...]
    num_samples: int
    y_true: NDArray[np.int64] | None = None
    y_pred: NDArray[np.int64] | None = None
    counts: Any = None
    scores: NDArray[Any] | None = None
    features: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    train_counts: NDArray[np.int64] | None = None
    ids: NDArray[Any] | None = None


def read_predictions(
    paths: Sequence[Path | str],
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
    files = _expand(paths)
    columns = columns or Columns()
    names = None if class_names is None else list(class_names)
    formats = {_FORMATS[f.suffix.lower()] for f in files}
    if len(formats) > 1:
        raise InputError(f"the parts of a data set must be of one format, got {' and '.join(sorted(formats))}")
    kind = formats.pop()
    if kind in ("csv", "parquet"):
        found = _read_table(files, kind, columns, names, rows, progress)
    else:
        found = _read_archives(files, kind, columns, names)
    if train_counts is not None:
        found = replace(found, train_counts=counts_in_order(train_counts, found.classes))
    return found


def _expand(paths: Sequence[Path | str]) -> list[Path]:
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
    if not files:
        raise InputError("no prediction file was given")
    return files


# ---------------------------------------------------------------- archives


def _read_archives(files: list[Path], kind: str, columns: Columns, names: list[str] | None) -> Predictions:
    read = read_npz if kind == "npz" else read_safetensors
    parts = [_archive_roles(read(file), file, columns) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(f"{file} and {files[0]} hold different arrays; parts of one data set must hold the same")
    per_row = ("y_true", "y_pred", "scores", "features", "ids")
    arrays = {
        role: np.concatenate([part[role] for part in parts]) if role in per_row and len(parts) > 1 else parts[0][role]
        for role in parts[0]
    }
    if names is None and "class_names" in arrays:
        names = [str(name) for name in arrays["class_names"].ravel()]
    return _encode_rows(arrays, names)


def _archive_roles(arrays: Arrays, file: Path, columns: Columns) -> Arrays:
    available = list(arrays)
    wanted = {
        "y_true": pick("true", columns.true, available),
        "y_pred": pick("pred", columns.pred, available),
        "scores": pick("scores", columns.scores, available),
        "features": pick("features", columns.features, available),
        "ids": pick("id", columns.id, available) if columns.id else None,
    } | {role: pick(role, None, available) for role in ("weight", "bias", "train_counts", "class_names")}
    found = {role: arrays[name] for role, name in wanted.items() if name is not None}
    _require_labels(found, file, available)
    for role in ("y_true", "y_pred"):
        if role in found and found[role].ndim != 1:
            raise InputError(f"array {wanted[role]!r} in {file} must be one label a row, got shape {found[role].shape}")
    for role in ("scores", "features", "weight"):
        if role in found and (found[role].ndim != 2 or found[role].dtype.kind not in "fiu"):
            raise InputError(
                f"array {wanted[role]!r} in {file} must be a matrix of numbers, "
                f"got shape {found[role].shape} of {found[role].dtype}"
            )
    return found


def _require_labels(found: Mapping[str, Any], file: Path, available: Sequence[str]) -> None:
    holds = f"{file} holds {', '.join(map(repr, available)) or 'nothing'}"
    if "y_true" not in found:
        raise InputError(f"no column looks like the true label; name it with --true ({holds})")
    if "y_pred" not in found and "scores" not in found:
        raise InputError(f"no column looks like predictions or scores; name them with --pred or --scores ({holds})")


def _encode_rows(arrays: Arrays, names: list[str] | None) -> Predictions:
    """Predictions from raw arrays, all rows kept."""
    num_samples = len(arrays["y_true"])
    if num_samples == 0:
        raise InputError("the prediction file has no rows")
    for role in ("y_pred", "scores", "features", "ids"):
        if role in arrays and len(arrays[role]) != num_samples:
            raise InputError(f"y_true has {num_samples} rows but {role} has {len(arrays[role])}; they must agree")
    width = arrays["scores"].shape[1] if "scores" in arrays else None
    roles = [role for role in ("y_true", "y_pred") if role in arrays]
    distinct = [(role, np.unique(arrays[role])) for role in roles]
    classes, coders = resolve_classes(distinct, names=names, width=width)
    codes = {role: coder(arrays[role]) for role, coder in zip(roles, coders, strict=True)}
    others: tuple[str, ...] = ("scores", "features", "weight", "bias", "ids")
    rest = {role: arrays[role] for role in others if role in arrays}
    if "train_counts" in arrays:
        rest["train_counts"] = counts_in_order(arrays["train_counts"].ravel().tolist(), classes)
    return Predictions(classes, num_samples, **codes, **rest)


# ---------------------------------------------------------------- tables


def _read_table(
    files: list[Path], kind: str, columns: Columns, names: list[str] | None, rows: bool, progress: Progress | None
) -> Predictions:
    import polars as pl

    try:
        frame = _scan(files, kind, columns)
        available = frame.collect_schema().names()
        true, pred = pick("true", columns.true, available), pick("pred", columns.pred, available)
        scores, spelled = pick_wide("scores", columns.scores, available)
        features, _ = pick_wide("features", columns.features, available)
        found = {"y_true": true, "y_pred": pred, "scores": scores or None}
        _require_labels({role: name for role, name in found.items() if name}, files[0], available)
        sample_id = pick("id", columns.id, available) if columns.id else None
        if pred is not None and not (scores or features or rows or sample_id):
            return _count_table(frame, str(true), pred, names, progress)
        wanted: dict[str, list[Any]] = {
            "y_true": [true],
            "y_pred": [pred],
            "scores": scores,
            "features": features,
            "ids": [sample_id],
        }
        arrays = _collect(frame, {role: [c for c in group if c] for role, group in wanted.items()})
        return _encode_rows(arrays, names or spelled)
    except pl.exceptions.PolarsError as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"{files[0]} ends in {files[0].suffix} but cannot be read as such ({reason})") from None


def _scan(files: list[Path], kind: str, columns: Columns) -> pl.LazyFrame:
    import polars as pl

    for file in files:
        with file.open("rb") as handle:
            head = handle.read(4096)
        if (kind == "parquet") != (head[:4] == b"PAR1") or (kind == "csv" and b"\0" in head):
            raise InputError(f"{file} ends in {file.suffix} but is not a {kind.upper()} file")
    if kind == "parquet":
        return pl.scan_parquet(files)
    with files[0].open(encoding="utf-8", errors="replace") as handle:
        first_line = handle.readline()
    separator = max(",;\t", key=first_line.count)
    header = pl.scan_csv(files[0], separator=separator, infer_schema=False).collect_schema().names()
    labels = [pick("true", columns.true, header), pick("pred", columns.pred, header), columns.id]
    # Labels stay text until all distinct ones are known: a column may start with numbers and go on with names.
    as_text = {name: pl.String for name in labels if name in header}
    return pl.scan_csv(files, separator=separator, schema_overrides=as_text, infer_schema_length=10_000)


def _label_expression(name: str, dtype: pl.DataType) -> pl.Expr:
    """The label column as integers, floats or strings, whatever it is stored as."""
    import polars as pl

    column = pl.col(name)
    if dtype == pl.Boolean or dtype.is_integer():
        return column.cast(pl.Int64)
    return column if dtype.is_float() or dtype == pl.String else column.cast(pl.String)


def _distinct(frame: pl.LazyFrame, name: str) -> pl.Series:
    import polars as pl

    values: pl.Series = frame.select(pl.col(name).unique()).collect(engine="streaming").to_series().sort()
    if values.null_count():
        raise InputError(f"column {name!r} has rows without a label; remove or label them")
    if values.len() == 0:
        raise InputError("the prediction file has no rows")
    return values


def _count_table(
    frame: pl.LazyFrame, true: str, pred: str, names: list[str] | None, progress: Progress | None
) -> Predictions:
    """Count (true, predicted) pairs batch by batch."""
    import polars as pl

    schema = frame.collect_schema()
    frame = frame.select(_label_expression(name, schema[name]) for name in (true, pred))
    distinct = [(name, _distinct(frame, name)) for name in (true, pred)]
    classes, coders = resolve_classes([(name, values.to_numpy()) for name, values in distinct], names=names)
    for i, (name, values) in enumerate(distinct):
        if values.dtype == pl.String:  # let polars look the text up; positions in `values` are all NumPy has to see
            frame = frame.with_columns(pl.col(name).cast(pl.Enum(values)).to_physical())
            coders[i] = LabelCoder(np.arange(values.len()), coders[i].codes)
    total = int(frame.select(pl.len()).collect(engine="streaming").item())
    counts = _tally(frame, coders, len(classes), total, progress)
    return Predictions(classes, total, counts=counts)


def _tally(
    frame: pl.LazyFrame, coders: list[LabelCoder], num_classes: int, total: int, progress: Progress | None
) -> NDArray[np.int64]:
    counts = np.zeros(num_classes * num_classes, dtype=np.int64)
    done = 0
    for batch in _batches(frame):
        true, pred = (coder(batch[name].to_numpy()) for coder, name in zip(coders, batch.columns, strict=True))
        counts += np.bincount(true * num_classes + pred, minlength=counts.size)
        done += batch.height
        if progress is not None:
            progress(done, total)
    return counts.reshape(num_classes, num_classes)


def _batches(frame: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    return iter(frame.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=False))


def _collect(frame: pl.LazyFrame, roles: Mapping[str, list[str]]) -> Arrays:
    """The named columns as arrays; a role of several columns, or of one list column, is a matrix."""
    schema = frame.collect_schema()
    labels = [name for role in ("y_true", "y_pred", "ids") for name in roles[role]]
    wide = [name for role in ("scores", "features") for name in roles[role]]
    data = frame.select(*(_label_expression(name, schema[name]) for name in labels), *wide).collect()
    arrays: Arrays = {}
    for role, names in roles.items():
        if role in ("scores", "features") and names:
            arrays[role] = _matrix(data, names)
        elif names:
            if data[names[0]].null_count():
                raise InputError(
                    f"column {names[0]!r} has {data[names[0]].null_count()} empty rows; fill or remove them"
                )
            arrays[role] = data[names[0]].to_numpy()
            if data[names[0]].dtype.is_numeric() is False:
                arrays[role] = arrays[role].astype(str)
    return arrays


def _matrix(data: pl.DataFrame, names: list[str]) -> NDArray[Any]:
    import polars as pl

    if any(data[name].null_count() for name in names):
        raise InputError(f"columns {names[0]!r} … have empty cells; every row needs every number")
    dtypes = [data[name].dtype for name in names]
    if len(names) == 1 and isinstance(dtypes[0], pl.List):
        widths = data[names[0]].list.len()
        if widths.n_unique() != 1:
            raise InputError(
                f"lists in column {names[0]!r} must be equally long, got {widths.min()!r} to {widths.max()!r}"
            )
        return data[names[0]].list.to_array(int(widths[0])).to_numpy()
    if len(names) == 1 and isinstance(dtypes[0], pl.Array):
        return data[names[0]].to_numpy()
    for name, dtype in zip(names, dtypes, strict=True):
        if not dtype.is_numeric():
            raise InputError(f"column {name!r} must hold numbers or lists of numbers, got {dtype}")
    return data.select(names).to_numpy()
