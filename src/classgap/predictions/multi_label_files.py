"""Multi-label predictions in files and tables: the columns of every label, found by prefix, pattern or name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, MissingValues
from classgap.predictions.archives import Arrays, read_archive
from classgap.predictions.arrays import plain_column
from classgap.predictions.columns import Columns, pick, pick_labels, refuse_true_labels, without_described
from classgap.predictions.labels import names_of
from classgap.predictions.matching import present_ids
from classgap.predictions.multi_label import MultiLabelPredictions, Thresholds

if TYPE_CHECKING:
    from classgap.predictions.locations import Paths

# Usual names of the columns of a label, in the order in which they are tried; * stands for the label.
_USUAL = {
    "true": ("true_*", "y_true_*", "label_*", "target_*", "gt_*", "*_true", "*_label", "*_target"),
    "scores": ("prob_*", "proba_*", "score_*", "logit_*", "*_prob", "*_proba", "*_score", "*_logit"),
    "pred": ("pred_*", "y_pred_*", "predicted_*", "*_pred", "*_predicted"),
}
_WHAT = {"true": "true labels", "scores": "scores", "pred": "predictions"}


@dataclass(frozen=True)
class LabelColumns:
    """Names of the labels, and the column of each label by role; no column where a role is missing."""

    labels: list[str]
    true: list[str]
    scores: list[str]
    pred: list[str]

    @property
    def all(self) -> list[str]:
        """The columns of all roles."""
        return [*self.true, *self.scores, *self.pred]


def find_label_columns(available: Sequence[str], columns: Columns, place: str) -> LabelColumns:
    """The columns of every label; ``place`` is the name of the table in error messages.

    Example:
        >>> find_label_columns(["cat", "dog", "prob_dog", "prob_cat"], Columns(), "table").scores
        ['prob_cat', 'prob_dog']
    """
    free = without_described(available, columns)
    found = {role: _family(role, getattr(columns, role), free) for role in _USUAL}
    others = found["scores"] or found["pred"]
    if not others:
        raise InputError(
            f"no columns have usual names for scores or predictions of labels; name them with --scores or --pred, by prefix "
            f"('prob_') or pattern ('*_prob') ({_holds(place, available)})"
        )
    if not found["true"] and all(label in free for label in others):
        found["true"] = {name: name for name in free if name in others}  # named like the labels
    if not found["true"]:
        raise InputError(
            f"no columns have usual names for true labels; name them with --true, by prefix ('true_') or pattern ('*_true') "
            f"({_holds(place, available)})"
        )
    labels = list(found["true"])
    for role in ("scores", "pred"):
        if found[role]:
            found[role] = _matched(role, found[role], labels)
    return LabelColumns(labels, *(list(found[role].values()) for role in ("true", "scores", "pred")))


def _holds(place: str, available: Sequence[str]) -> str:
    more = f" … {len(available) - 12} more" if len(available) > 12 else ""
    return f"{place} has the columns {', '.join(map(repr, available[:12])) or 'none'}{more}"


def _family(role: str, wanted: str | None, available: Sequence[str]) -> dict[str, str]:
    """Label → column, for the columns of one role."""
    if wanted is None:
        tried = (_matching(pattern, available) for pattern in _USUAL[role])
        return next((found for found in tried if len(found) > 1), {})
    if "," in wanted:
        names = [name.strip() for name in wanted.split(",")]
        return {name: pick(role, name, available) or "" for name in names}
    found = {wanted: wanted} if wanted in available else _matching(wanted if "*" in wanted else f"{wanted}*", available)
    if not found:
        raise InputError(
            f"no column fits --{role} {wanted!r} ({_holds('the table', available)}); give a prefix ('true_'), a pattern "
            "('*_true') or names separated by commas"
        )
    return found


def _matching(pattern: str, available: Sequence[str]) -> dict[str, str]:
    start, _, end = pattern.partition("*")
    shortest = len(start) + len(end)
    fits = [name for name in available if name.startswith(start) and name.endswith(end) and len(name) > shortest]
    return {name[len(start) : len(name) - len(end)]: name for name in fits}


def _matched(role: str, found: dict[str, str], labels: list[str]) -> dict[str, str]:
    """The columns in the order of the labels: by name, or one by one if they were named without a pattern."""
    if set(found) == set(labels):
        return {label: found[label] for label in labels}
    named = all(label == column for label, column in found.items())
    if named and len(found) == len(labels):
        return dict(zip(labels, found.values(), strict=True))
    lacking = [label for label in labels if label not in found]
    unknown = [label for label in found if label not in labels]
    raise InputError(
        f"the {_WHAT[role]} must have one column per label, but there is none for {_listed(lacking)}, and no true label for "
        f"{_listed(unknown)}"
    )


def _listed(names: list[str]) -> str:
    return (", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")) or "none"


# ---------------------------------------------------------------- tables


def from_frame(
    frame: Any,
    columns: Columns | None,
    threshold: Thresholds | None,
    place: str = "the table",
    label_names: Sequence[str] | None = None,
) -> MultiLabelPredictions:
    """See :meth:`MultiLabelPredictions.from_frame`."""
    import narwhals.stable.v2 as nw

    from classgap.predictions.tables import collect, sample_values

    columns = columns or Columns()
    _refuse_others(columns)
    data: Any = nw.from_native(frame)
    available = data.collect_schema().names()
    found = find_label_columns(available, columns, place)
    if label_names is not None:
        order = _places(label_names, found.labels)
        chosen = {role: [names[k] for k in order if names] for role, names in vars(found).items() if role != "labels"}
        found = LabelColumns(list(label_names), **chosen)
    refuse_true_labels(found.true, pred=found.pred, scores=found.scores)
    id_name = pick("id", columns.id, available) if columns.id else None
    wanted = dict.fromkeys([*found.all, *([id_name] if id_name else [])])
    rows = collect(data.select(*wanted))
    if len(rows) == 0:
        raise InputError("the predictions must have at least one row, got none")
    matrices = {
        role: _numbers(rows, names) for role, names in (("y_pred", found.pred), ("scores", found.scores)) if names
    }
    return MultiLabelPredictions.from_arrays(
        _numbers(rows, found.true, binary=True),
        **matrices,  # type: ignore[arg-type]
        threshold=threshold,
        label_names=found.labels,
        ids=None if id_name is None else sample_values(rows[id_name], "id"),
    )


def _numbers(rows: Any, names: Sequence[str], *, binary: bool = False) -> NDArray[Any]:
    """Columns of numbers or booleans as a matrix."""
    from classgap.predictions.tables import floats_of_decimals

    matrix = np.empty((len(rows), len(names)), dtype=np.float64)
    for k, name in enumerate(names):
        column = rows[name]
        if missing := column.null_count():
            raise MissingValues(
                f"column {name!r} has {missing:,} row{'s' if missing > 1 else ''} without a value; remove these rows"
                + (", or decide whether they have the label" if binary else ""),
                [name],
            )
        values = floats_of_decimals(column).to_numpy()
        if values.dtype.kind not in "biuf":
            raise InputError(f"column {name!r} must hold {'0 and 1' if binary else 'numbers'}, got {column.dtype}")
        if binary and not np.isin(values, (0, 1)).all():
            other = values[~np.isin(values, (0, 1))][0]
            raise InputError(f"column {name!r} must hold 0 and 1 (whether the sample has the label), got {other}")
        matrix[:, k] = values
    return matrix


def _refuse_others(columns: Columns) -> None:
    """Refuse what only the audit of one label per sample can use."""
    for role in ("features", "path", "text", "sample_weight", "count"):
        if getattr(columns, role):
            raise InputError(f"--{role.replace('_', '-')} cannot be used with multi-label data; leave it out")
    if columns.by:
        raise InputError(
            "slices (--by) cannot be used with multi-label data; audit one label with its column: --true COL --scores COL --by …"
        )


# ---------------------------------------------------------------- files


def read(
    paths: Paths, columns: Columns | None, threshold: Thresholds | None, label_names: Sequence[str] | None
) -> MultiLabelPredictions:
    """See :meth:`MultiLabelPredictions.read`."""
    from classgap.predictions.files import readable
    from classgap.predictions.locations import find_files
    from classgap.predictions.scans import scan_numbers

    source, columns = find_files(paths), columns or Columns()
    place = str(source.files[0])
    if source.is_table:
        with readable(source.files[0], source.files):
            table = scan_numbers(source, columns, lambda names: find_label_columns(names, columns, place).all)
            return from_frame(table, columns, threshold, place, label_names)
    return _read_archives([Path(file) for file in source.files], columns, threshold, label_names)


def _places(names: Sequence[str], stored: Sequence[str]) -> list[int]:
    """The place in the file of each label that the user names: by name, or one by one if all names are new."""
    if len(names) != len(stored) or len(set(names)) != len(stored):
        raise InputError(f"the label names must be {len(stored)} different names, one per label, got {len(set(names))}")
    if set(names) == set(stored):
        return [list(stored).index(name) for name in names]
    if known := [name for name in names if name in stored]:
        raise InputError(
            f"the label names must be those of the file ({_listed(list(stored))}) or all different from them, but only "
            f"{_listed(known)} occur there; check their spelling"
        )
    return list(range(len(stored)))


def _read_archives(
    files: list[Path], columns: Columns, threshold: Thresholds | None, label_names: Sequence[str] | None
) -> MultiLabelPredictions:
    _refuse_others(columns)
    parts = [_archive_parts(read_archive(file), file, columns) for file in files]
    for file, part in zip(files, parts, strict=True):
        shapes = [{role: array.shape[1:] for role, array in one.items() if role != "names"} for one in (part, parts[0])]
        if shapes[0] != shapes[1]:
            raise InputError(f"{file} and {files[0]} hold different arrays; all files of one data set must be alike")
        if not np.array_equal(part.get("names", ()), parts[0].get("names", ())):
            raise InputError(
                f"the label names differ between {file} and {files[0]}; they must be equal, and in the same order, in all files "
                "of one data set"
            )
    joined: dict[str, Any] = {
        role: np.concatenate([part[role] for part in parts]) for role in parts[0] if role != "names"
    }
    if "names" in parts[0]:
        stored = names_of(parts[0]["names"], f"the label names in {files[0]}")
        if label_names is not None:
            order = _places(label_names, stored)
            joined = {role: array if role == "ids" else array[:, order] for role, array in joined.items()}
        label_names = stored if label_names is None else label_names
    if not {"y_pred", "scores"} & joined.keys():
        raise InputError(
            f"{files[0]} must hold an (n, L) array of scores or of predictions; name it with --scores or --pred"
        )
    return MultiLabelPredictions.from_arrays(
        joined.pop("y_true"), joined.pop("y_pred", None), threshold=threshold, label_names=label_names, **joined
    )


def _archive_parts(arrays: Arrays, file: Path, columns: Columns) -> dict[str, NDArray[Any]]:
    available = list(arrays)
    true, pred = pick_labels(columns, available)
    wanted = {"y_true": true, "y_pred": pred, "scores": pick("scores", columns.scores, available)}
    if wanted["y_true"] is None:
        raise InputError(
            f"{file} has no array with a usual name for true labels; name it with --true (it holds "
            f"{', '.join(map(repr, available)) or 'none'})"
        )
    refuse_true_labels([wanted["y_true"]], pred=[wanted["y_pred"]], scores=[wanted["scores"]])
    found = {role: arrays[name] for role, name in wanted.items() if name is not None}
    for role, array in found.items():
        if array.ndim != 2:
            raise InputError(
                f"array {wanted[role]!r} in {file} must have shape (n, L), one column per label, got {array.shape}; for one "
                "label per sample leave out --multi-label"
            )
    if columns.id is not None:
        name = str(pick("id", columns.id, available))
        found["ids"] = plain_column(present_ids(arrays[name], f"array {name!r} in {file}"))
    free = without_described(available, columns)
    names = "label_names" if "label_names" in free else pick("class_names", None, free)
    if names is not None and names not in wanted.values():
        found["names"] = arrays[names]
    return found
