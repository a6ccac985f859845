"""Multi-label predictions: every sample has any number of labels, and every label is a binary problem of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap import checks
from classgap.checks import InputError, did_you_mean
from classgap.named import by_name, column_names, columns_in_order
from classgap.predictions.arrays import plain_column
from classgap.predictions.labels import check_names, printable_names
from classgap.predictions.matching import matching_rows, present_ids
from classgap.predictions.predictions import ScoreKind

if TYPE_CHECKING:
    from classgap.predictions.columns import Columns
    from classgap.predictions.locations import Paths

Thresholds = float | ArrayLike | Mapping[str, float]
"""One threshold for all labels, one per label in their order, or by name; a label that is not named has 0.5."""
_USUAL = 0.5


@dataclass(frozen=True, eq=False)
class MultiLabelPredictions:
    """Which labels the samples have, and which are predicted.

    Create them with :meth:`from_arrays`, :meth:`from_frame` or :meth:`read` (files).

    Attributes:
        labels: Names of the labels; column ``k`` is ``labels[k]`` everywhere.
        y_true, y_pred: ``(n, L)`` booleans: whether a sample has a label, and whether it is predicted.
        scores: ``(n, L)`` probabilities or logits of the labels; ``scores_kind`` says which.
        thresholds: ``(L,)`` probabilities from which a label is predicted; None if the predictions were given.
        ids: ``(n,)`` sample ids.
        notes: How ambiguous input was read.
    """

    labels: tuple[str, ...]
    y_true: NDArray[np.bool_]
    y_pred: NDArray[np.bool_]
    scores: NDArray[Any] | None = None
    scores_kind: ScoreKind | None = None
    thresholds: NDArray[np.float64] | None = None
    ids: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_samples(self) -> int:
        return len(self.y_true)

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[Any]) -> MultiLabelPredictions:
        """These rows, in this order."""
        names = ("y_true", "y_pred", "scores", "ids")
        chosen: dict[str, Any] = {name: None if (v := getattr(self, name)) is None else v[rows] for name in names}
        return replace(self, **chosen)

    def at_threshold(self, threshold: Thresholds) -> MultiLabelPredictions:
        """These predictions with every label predicted where its probability is at least the threshold."""
        if self.scores is None:
            raise InputError("threshold needs scores, one column per label; pass scores= (--scores)")
        limits = label_thresholds(threshold, self.labels)
        predicted = np.asarray(self.scores >= score_limits(limits, self.scores_kind))
        return replace(self, y_pred=predicted, thresholds=limits)

    @classmethod
    def from_arrays(
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike | None = None,
        *,
        scores: ArrayLike | None = None,
        scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
        threshold: Thresholds | None = None,
        label_names: Sequence[str] | None = None,
        ids: ArrayLike | None = None,
    ) -> MultiLabelPredictions:
        """Predictions from arrays or tensors in memory.

        Args:
            y_true: ``(n, L)`` of 0 and 1: whether a sample has a label.
            y_pred: ``(n, L)`` of 0 and 1: whether it is predicted; by default where the score reaches the threshold.
            scores: ``(n, L)`` probabilities or logits of the labels.
            scores_kind: Kind of the scores. ``"auto"``: logits if a value lies outside [0, 1] (± 0.001), otherwise probabilities.
            threshold: Probability from which a label is predicted, also for logits: one number, one per label, or by name. By
                default 0.5; with ``y_pred``, a threshold decides instead of these predictions.
            label_names: Names of the labels, in the order of the columns; by default the column names of a table. Tables are put
                in the order of ``label_names`` where these are their columns, otherwise in that of the columns of ``y_true``.
            ids: Sample ids, e.g. file names.
        Example:
            >>> found = MultiLabelPredictions.from_arrays([[1, 0], [1, 1]], scores=[[0.9, 0.2], [0.4, 0.8]])
            >>> found.y_pred.tolist()
            [[True, False], [False, True]]
        """
        (y_true, y_pred, scores), found_names = _in_one_order(
            {"y_true": y_true, "y_pred": y_pred, "scores": scores}, label_names
        )
        true = _indicators("y_true", y_true)
        names = _label_names(found_names, true.shape[1])
        matrix, kind = _scores(scores, scores_kind, true.shape)
        if y_pred is None and matrix is None:
            raise InputError("y_true needs predictions to compare with: pass y_pred, or scores of shape (n, L)")
        column = None if ids is None else present_ids(ids)
        if column is not None and column.shape != (len(true),):
            raise InputError(f"ids must have one entry per sample, {len(true)}, got shape {column.shape}")
        column = None if column is None else plain_column(column)
        if y_pred is None:
            assert matrix is not None
            blank = np.zeros(true.shape, dtype=bool)
            return cls(names, true, blank, matrix, kind, ids=column).at_threshold(
                _USUAL if threshold is None else threshold
            )
        predicted = _indicators("y_pred", y_pred)
        if predicted.shape != true.shape:
            raise InputError(f"y_pred must have the shape of y_true, {true.shape}, got {predicted.shape}")
        found = cls(names, true, predicted, matrix, kind, ids=column)
        return found if threshold is None else found.at_threshold(threshold)

    @classmethod
    def from_frame(
        cls, frame: Any, columns: Columns | None = None, *, threshold: Thresholds | None = None
    ) -> MultiLabelPredictions:
        """Predictions from a table of any engine that narwhals knows, with one column per label; see :meth:`read`."""
        from classgap.predictions.multi_label_files import from_frame

        return from_frame(frame, columns, threshold)

    @classmethod
    def read(
        cls,
        paths: Paths,
        columns: Columns | None = None,
        *,
        threshold: Thresholds | None = None,
        label_names: Sequence[str] | None = None,
    ) -> MultiLabelPredictions:
        """Predictions from a CSV, Parquet, NPZ or safetensors file, from several files, or from a folder of files.

        Tables have one column of 0 and 1 per label (``true_cat``, ``true_dog`` …), and one of scores (``prob_cat`` …) or of
        predictions (``pred_cat`` …). ``columns`` names the columns of each kind by their prefix (``"true_"``), by a pattern
        (``"*_true"``) or one by one, separated by commas. Without it, usual prefixes and endings are tried, and columns that
        have the names of the labels are the true ones. Archives hold ``(n, L)`` arrays ``y_true`` and ``scores`` or ``y_pred``.
        ``label_names`` that are those of the file decide their order; others replace them, in the order of the columns.
        """
        from classgap.predictions.multi_label_files import read

        return read(paths, columns, threshold, label_names)


def as_label_predictions(data: Any, y_pred: ArrayLike | None = None, **given: Any) -> MultiLabelPredictions:
    """``data`` as multi-label predictions: these, a file or folder, a table, or arrays with ``y_pred`` and ``given``."""
    given = {key: value for key, value in given.items() if value is not None}
    extra = [key for key, value in given.items() if not (isinstance(value, str) and value == "auto")]
    extra += ["y_pred"] if y_pred is not None else []
    if isinstance(data, MultiLabelPredictions):
        if extra:
            raise InputError(
                f"{', '.join(extra)} cannot be combined with MultiLabelPredictions, which already hold all arrays"
            )
        return data
    from classgap.predictions.tables import is_frame

    is_file = isinstance(data, (str, Path))
    if not is_file and not is_frame(data):
        if "columns" in given:
            raise InputError(f"columns names the columns of a file or table, got {type(data).__name__}")
        return MultiLabelPredictions.from_arrays(data, y_pred, **given)
    allowed = ("columns", "threshold", "label_names") if is_file else ("columns", "threshold")
    if refused := [key for key in extra if key not in allowed]:
        raise InputError(f"{', '.join(refused)} cannot be combined with a file or table, which holds them itself")
    options = {key: value for key, value in given.items() if key in allowed and key != "columns"}
    if is_file:
        return MultiLabelPredictions.read(data, given.get("columns"), **options)
    return MultiLabelPredictions.from_frame(data, given.get("columns"), **options)


def align_labels(
    before: MultiLabelPredictions, after: MultiLabelPredictions, *, common: bool = False
) -> tuple[MultiLabelPredictions, MultiLabelPredictions]:
    """Both with the labels and samples in the order of ``before``; samples are matched by id if both have ids."""
    if set(before.labels) != set(after.labels):
        only = [sorted(set(a.labels) - set(b.labels))[:3] for a, b in ((before, after), (after, before))]
        raise InputError(
            f"before and after must have the same labels, but only before has {only[0] or 'none'} and only after has "
            f"{only[1] or 'none'} (examples)"
        )
    if before.labels != after.labels:
        after = _with_order(after, before.labels)
    if (before.ids is None) != (after.ids is None) or (common and before.ids is None):
        raise InputError("matching samples by id needs the ids of both sides: name their column with --id")
    if before.ids is not None and after.ids is not None:
        rows = matching_rows([before.ids, after.ids], common=common)
        before, after = before.take(rows[0]), after.take(rows[1])
    if before.num_samples != after.num_samples:
        raise InputError(
            f"before and after must hold the same samples, got {before.num_samples:,} and {after.num_samples:,} samples"
        )
    different = (before.y_true != after.y_true).any(axis=1)
    if different.any():
        advice = (
            "check the labels of both files"
            if before.ids is not None
            else "if the rows are in different order, name the column of sample ids with --id"
        )
        raise InputError(
            f"the true labels of before and after differ in {different.sum():,} of {len(different):,} rows (first: row "
            f"{np.flatnonzero(different)[0]}); {advice}"
        )
    return before, after


def _with_order(found: MultiLabelPredictions, labels: Sequence[str]) -> MultiLabelPredictions:
    place = [found.labels.index(name) for name in labels]
    scores, thresholds = found.scores, found.thresholds
    return replace(
        found,
        labels=tuple(labels),
        y_true=found.y_true[:, place],
        y_pred=found.y_pred[:, place],
        scores=None if scores is None else scores[:, place],
        thresholds=None if thresholds is None else thresholds[place],
    )


def label_thresholds(threshold: Thresholds, labels: Sequence[str]) -> NDArray[np.float64]:
    """One threshold per label.

    Example:
        >>> label_thresholds({"dog": 0.2}, ["cat", "dog"]).tolist()
        [0.5, 0.2]
    """
    threshold = by_name(threshold)
    if isinstance(threshold, Mapping):
        for name in threshold:
            if name not in labels:
                raise InputError(did_you_mean(str(name), labels, what="label in the thresholds:"))
        threshold = [threshold.get(name, _USUAL) for name in labels]
    try:
        limit = np.asarray(threshold, dtype=np.float64)
    except (TypeError, ValueError):
        limit = np.empty((0, 0))
    if limit.shape not in ((), (len(labels),)) or not ((limit >= 0) & (limit <= 1)).all():
        raise InputError(
            f"threshold must be one number, or {len(labels)} numbers, one per label, from 0 to 1 (a probability, also for "
            f"logits), got {checks.shown(threshold)}"
        )
    return np.array(np.broadcast_to(limit, (len(labels),)))


def score_limits(thresholds: NDArray[np.float64], kind: str | None) -> NDArray[np.float64]:
    """Thresholds of the probability as limits of the scores, which may be logits."""
    if kind != "logits":
        return thresholds
    from scipy.special import logit

    return np.asarray(logit(thresholds))


def _in_one_order(
    given: Mapping[str, Any], label_names: Sequence[str] | None
) -> tuple[list[Any], Sequence[str] | None]:
    """The matrices with their columns in one order, and the names of the labels; tables are ordered by their columns."""
    columns = {name: found for name, value in given.items() if (found := column_names(value)) is not None}
    wanted = None if label_names is None else [str(name) for name in label_names]
    first = next(iter(columns), "y_true")
    order = columns.get(first)
    if wanted is not None and any(set(found) & set(wanted) for found in columns.values()):
        order = wanted
    elif "y_true" not in columns:
        _refuse_two_orders(columns)
    if order is None:
        return list(given.values()), label_names
    ordered = [columns_in_order(name, value, order) for name, value in given.items()]
    return ordered, order if wanted is None else wanted


def _refuse_two_orders(columns: Mapping[str, list[str]]) -> None:
    """Without names in ``y_true``, tables whose columns are in different order do not say which is that of ``y_true``."""
    orders = list(columns.values())
    if len(orders) == 2 and orders[0] != orders[1] and set(orders[0]) & set(orders[1]):
        shown = " and ".join(", ".join(map(repr, order[:3])) + (" …" if len(order) > 3 else "") for order in orders)
        raise InputError(
            f"the columns of y_pred and scores must have one order where y_true has no column names, got {shown}; pass "
            "label_names with the names in the order of y_true"
        )


def _indicators(name: str, value: Any) -> NDArray[np.bool_]:
    matrix = checks.as_numpy(value, name)
    if matrix.ndim != 2 or matrix.size == 0 or matrix.dtype.kind not in "biuf" or not np.isin(matrix, (0, 1)).all():
        raise InputError(
            f"{name} must be a matrix of 0 and 1, one row per sample and one column per label, got shape {matrix.shape} of "
            f"{matrix.dtype}; for one label per sample use audit"
        )
    return matrix.astype(bool)


def _label_names(given: Sequence[str] | None, number: int) -> tuple[str, ...]:
    names = [str(k) for k in range(number)] if given is None else [str(name) for name in given]
    if len(names) != number or len(set(names)) != number:
        raise InputError(f"label_names must be {number} different names, one per column, got {len(set(names))}")
    return printable_names(check_names(names))


def _scores(scores: Any, kind: str, shape: tuple[int, ...]) -> tuple[NDArray[Any] | None, ScoreKind | None]:
    checks.one_of("scores_kind", kind, ("auto", "logits", "probabilities"))
    if scores is None:
        return None, None
    matrix = checks.float_matrix("scores", checks.as_numpy(scores, "scores"), rows=shape[0], columns=shape[1])
    inside = checks.in_unit_range(matrix)
    if kind == "probabilities" and not inside:
        raise InputError(
            f"scores must hold probabilities in [0, 1], got values from {matrix.min():g} to {matrix.max():g}; pass "
            "scores_kind='logits' for logits"
        )
    if kind == "auto" and not inside:
        checks.refuse_percentages("scores", matrix, independent=True)
    return (matrix, "logits") if kind == "logits" or not inside else (checks.clipped(matrix), "probabilities")
