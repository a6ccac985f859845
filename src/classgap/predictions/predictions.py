"""Predictions of a model for a set of samples: :class:`Predictions`, encoded once and used by every verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.predictions.confusion import Confusion
from classgap.predictions.slice_counts import SliceCounts

if TYPE_CHECKING:
    from classgap.predictions.batches import Batches
    from classgap.predictions.columns import Columns
    from classgap.predictions.locations import Paths

ScoreKind = Literal["logits", "probabilities"]
Progress = Callable[[int, int], None]
"""Called with (units of work done, units of work in total)."""
Counts = Mapping[str, int] | ArrayLike
PER_ROW = ("y_true", "y_pred", "scores", "features")
DESCRIBING = ("id", "path", "text", "sample_weight")
"""Names in :attr:`Predictions.columns` of what identifies or shows a sample; the other columns define slices."""


def _no_rows() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Labels as class indices, with scores and features if they are known.

    Create them with :meth:`from_arrays`, :meth:`from_frame`, :meth:`read` (files) or :meth:`from_counts`. A table that holds only
    labels is counted while it is read; then only the :attr:`confusion` is kept, not the rows.

    Everything else that is known of a sample is one entry of :attr:`columns`: ``"id"``, ``"path"`` and ``"text"`` (also as
    :attr:`ids`, :attr:`paths` and :attr:`texts`) identify and show it, and every other name is a column that defines slices
    (:attr:`by`). Arrays are given as ``ids=``, ``paths=``, ``texts=`` and ``by={name: values}``; columns of a table or file are
    named in :class:`~classgap.Columns`. :meth:`take` selects from all of them.

    Attributes:
        classes: Class names; index ``k`` means ``classes[k]`` everywhere.
        y_true, y_pred: ``(n,)`` class indices; empty if only counts are known.
        scores: ``(n, K)`` logits or probabilities; ``scores_kind`` says which.
        features: ``(n, d)`` inputs of the last layer.
        weight, bias: ``(K, d)`` and ``(K,)`` of the last layer.
        margin_norms: ``(K,)`` norms of the last layer's rows before MARC was folded into it.
        train_counts: ``(K,)`` numbers of training samples per class.
        columns: ``(n,)`` arrays by name, as described above.
        positive, threshold: Of two classes: the index of the positive class if the scores were given as one column or the user
            named it, and the probability from which it is predicted; None otherwise.
        one_score: Whether the scores were given as one column, that of class ``positive``.
        counted: The confusion counts, if only counts are known; ``counted_by`` then has the counts of each column of slices.
        row_numbers: ``(n,)`` places of these rows in their table, if they are a part of it.
        batches: Of a table of scores that is too large for memory: reads its rows in batches; then there are no arrays.
        notes: How ambiguous input was read.
    """

    classes: tuple[str, ...]
    y_true: Ints = field(default_factory=_no_rows)
    y_pred: Ints = field(default_factory=_no_rows)
    scores: NDArray[Any] | None = None
    scores_kind: ScoreKind | None = None
    features: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    margin_norms: NDArray[Any] | None = None
    train_counts: Ints | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    positive: int | None = None
    threshold: float | None = None
    one_score: bool = False
    counted: Confusion | None = None
    counted_by: Mapping[str, SliceCounts] = field(default_factory=dict)
    row_numbers: Ints | None = None
    batches: Batches | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def confusion(self) -> Confusion:
        """Counts of (true, predicted) classes."""
        if self.counted is not None:
            return self.counted
        if self.batches is not None:
            return self.batches.count()
        return Confusion.from_codes(self.y_true, self.y_pred, self.num_classes)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_samples(self) -> int:
        if self.batches is not None:
            return self.batches.num_samples
        return len(self.y_true) if self.counted is None else self.counted.num_samples

    @property
    def has_rows(self) -> bool:
        """Whether the samples are in memory, not only their counts."""
        return self.counted is None and self.batches is None

    @property
    def ids(self) -> NDArray[Any] | None:
        """``(n,)`` sample ids."""
        return self.columns.get("id")

    @property
    def paths(self) -> NDArray[Any] | None:
        """``(n,)`` paths of the image files of the samples."""
        return self.columns.get("path")

    @property
    def texts(self) -> NDArray[Any] | None:
        """``(n,)`` texts of the samples."""
        return self.columns.get("text")

    @property
    def sample_weight(self) -> NDArray[np.float64] | None:
        """``(n,)`` weights of the samples."""
        return self.columns.get("sample_weight")

    def without_weights(self, verb: str) -> Predictions:
        """These predictions, after making sure that they have no sample weights, which ``verb`` does not support."""
        if self.sample_weight is not None:
            raise InputError(
                f"{verb} does not support sample weights; leave out sample_weight, or audit each model by itself"
            )
        return self

    @property
    def by(self) -> dict[str, NDArray[Any]]:
        """The columns that define slices, by name."""
        return {name: values for name, values in self.columns.items() if name not in DESCRIBING}

    def slice_counts(self) -> dict[str, SliceCounts]:
        """Counts per class and slice, for every column that defines slices."""
        if not self.has_rows:
            return dict(self.counted_by)
        return {
            name: SliceCounts.from_samples(name, values, self.y_true, self.y_pred, self.num_classes)
            for name, values in self.by.items()
        }

    def labels_only(self) -> Predictions:
        """These predictions without scores, features and head."""
        layer: dict[str, Any] = {"weight": None, "bias": None, "margin_norms": None}
        if self.batches is not None:
            layer |= {"batches": None, "counted": self.confusion}
        return replace(self, scores=None, scores_kind=None, features=None, **layer)

    def take(self, rows: NDArray[Any]) -> Predictions:
        """These rows, in this order."""
        if not self.has_rows:
            raise InputError(
                "these predictions hold only counts, so samples cannot be selected; read the file with rows=True"
            )
        arrays = {name: getattr(self, name) for name in PER_ROW}
        chosen: dict[str, Any] = {name: None if array is None else array[rows] for name, array in arrays.items()}
        columns = {name: values[rows] for name, values in self.columns.items()}
        numbers = None if self.row_numbers is None else self.row_numbers[rows]
        return replace(self, columns=columns, row_numbers=numbers, **chosen)

    def at_threshold(self, threshold: float = 0.5, positive: str | None = None) -> Predictions:
        """These predictions of two classes with ``positive`` predicted where its probability is at least ``threshold``.

        Args:
            threshold: From 0 to 1, also for logits.
            positive: Name of the positive class, by default the one chosen earlier, or the second class. If the scores were given
                as one column, it is the class whose score that is.
        Example:
            >>> found = Predictions.from_arrays([0, 1, 1], scores=[0.1, 0.4, 0.9])
            >>> found.y_pred.tolist(), found.at_threshold(0.3).y_pred.tolist()
            ([0, 0, 1], [0, 1, 1])
        """
        from classgap.predictions.binary import decide

        return decide(self, threshold, positive)

    @classmethod
    def from_arrays(
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike | None = None,
        *,
        scores: ArrayLike | None = None,
        scores_kind: Literal["auto", "logits", "probabilities"] = "auto",
        features: ArrayLike | None = None,
        head: Any = None,
        margin_norms: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        train_counts: Counts | None = None,
        ids: ArrayLike | None = None,
        paths: ArrayLike | None = None,
        texts: ArrayLike | None = None,
        by: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Predictions:
        """Predictions from arrays or tensors in memory.

        Args:
            y_true: True labels: class indices, names or booleans.
            y_pred: Predicted labels; by default the class with the highest score.
            scores: ``(n, K)`` logits or probabilities, columns in class order; of two classes also ``(n,)``, the scores of the
                second.
            scores_kind: Kind of the scores. ``"auto"``: logits if a value lies outside [0, 1] (± 0.001), otherwise probabilities.
            features: ``(n, d)`` inputs of the last layer.
            head: The last layer: its weight ``(K, d)``, a pair ``(weight, bias)``, or an object with both.
            margin_norms: Norms of the last layer's rows before MARC was folded into it, ``(K,)``.
            class_names: Names in class order. Numeric labels are then indices into this list.
            train_counts: Numbers of training samples per class, in class order or by name.
            ids: Sample ids, e.g. file names.
            paths: Paths of the image files of the samples.
            texts: Texts of the samples.
            by: Columns that define slices: name → one value per sample.
            sample_weight: Weight of each sample in an audit, at least 0.
        Example:
            >>> found = Predictions.from_arrays(["cat", "dog", "dog"], ["cat", "cat", "dog"])
            >>> found.classes, found.y_pred.tolist()
            (('cat', 'dog'), [0, 0, 1])
        """
        from classgap.predictions.arrays import encode_arguments
        from classgap.predictions.matching import present_ids

        ids = None if ids is None else present_ids(ids)
        given = {"y_true": y_true, "y_pred": y_pred, "scores": scores, "features": features}
        columns = {"ids": ids, "paths": paths, "texts": texts, "sample_weight": sample_weight}
        return encode_arguments(given, columns, by, scores_kind, head, margin_norms, class_names, train_counts)

    @classmethod
    def from_counts(
        cls, counts: Any, class_names: Sequence[str] | None = None, *, train_counts: Counts | None = None
    ) -> Predictions:
        """Predictions known only as a ``(K, K)`` matrix of counts: rows true, columns predicted; dense or SciPy sparse.

        Example:
            >>> Predictions.from_counts([[8, 2], [1, 9]], ["cat", "dog"]).num_samples
            20
        """
        from classgap.predictions.arrays import encode_counts

        return encode_counts(counts, class_names, train_counts)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        columns: Columns | None = None,
        *,
        class_names: Sequence[str] | None = None,
        train_counts: Counts | None = None,
        rows: bool | None = None,
        batches: bool | None = False,
    ) -> Predictions:
        """Predictions from a table of any engine that narwhals knows: polars, pandas, Arrow, DuckDB, PySpark, Dask, Ibis …

        The rows of a polars ``LazyFrame``, a DuckDB relation, or a PySpark or Dask frame that holds only labels are counted by
        their engine: only the distinct pairs of labels leave it.

        Args:
            frame: The table, in memory or not.
            columns: Names of columns; those not given are found by their usual names.
            class_names: Names in class order. By default the suffixes of the score columns, else the labels.
            train_counts: Numbers of training samples per class, in class order or by name.
            rows: Whether to read the rows of a table that holds only labels. By default only if they are in memory already.
            batches: Whether to leave scores in the engine, to be read in batches by :func:`classgap.audit`. None means: if there
                are more than 100 million (rows × classes).
        Example:
            >>> import polars as pl
            >>> frame = pl.DataFrame({"label": ["cat", "dog"], "prediction": ["cat", "cat"]})
            >>> Predictions.from_frame(frame).y_pred.tolist()
            [0, 0]
            >>> Predictions.from_frame(frame.lazy()).confusion.counts.tolist()
            [[1, 0], [1, 0]]
        """
        from classgap.predictions.counting import from_table
        from classgap.predictions.tables import open_table

        table = open_table(frame, columns)
        wanted = table.in_memory if rows is None else rows
        return from_table(table, class_names, train_counts, rows=wanted, batches=batches)

    @classmethod
    def read(
        cls,
        paths: Paths,
        columns: Columns | None = None,
        *,
        class_names: Sequence[str] | None = None,
        train_counts: Counts | None = None,
        rows: bool = False,
        batches: bool | None = False,
    ) -> Predictions:
        """Predictions from a CSV, Parquet, NPZ or safetensors file, from several files, or from a folder of files.

        Args:
            paths: Files or folders; several are parts of the same data set, in this order. CSV and Parquet files may be addresses
                (``s3://…``, ``gs://…``, ``az://…``, ``hf://…``), which polars reads with the credentials of the environment.
            columns: Names of columns or arrays; those not given are found by their usual names.
            class_names: Names in class order. By default those in the file, else the suffixes of the score columns, else the
                labels.
            train_counts: Numbers of training samples per class, in class order or by name.
            rows: Keep the rows of a table that has only labels, instead of counting them while the table is read.
            batches: Whether to leave the scores of a table in its files, to be read in batches by :func:`classgap.audit`. None
                means: if there are more than 100 million (rows × classes).
        """
        from classgap.predictions.files import read_predictions

        return read_predictions(paths, columns, class_names, train_counts, rows=rows, batches=batches)


def as_predictions(
    data: Any, y_pred: ArrayLike | None = None, *, batches: bool | None = False, **given: Any
) -> Predictions:
    """``data`` as predictions: predictions, a file or folder, a table, or labels with ``y_pred`` and ``given``.

    Args:
        batches: See :meth:`Predictions.read`.
        given: Arguments of :meth:`Predictions.from_arrays`; None means not given.
    """
    given = {
        key: value for key, value in given.items() if value is not None and (key, value) != ("scores_kind", "auto")
    }
    if isinstance(data, Predictions):
        if y_pred is not None or given:
            extra = ", ".join((["y_pred"] if y_pred is not None else []) + list(given))
            raise InputError(
                f"{extra} cannot be combined with Predictions, which already hold all arrays; pass one or the other"
            )
        return data
    if isinstance(data, (str, Path)):
        return Predictions.read(data, rows=True, batches=batches, **_named(given, "a file"))
    from classgap.predictions.tables import is_frame

    if is_frame(data):
        if y_pred is not None:
            raise InputError("y_pred cannot be combined with a table; name its columns with columns=Columns(pred=…)")
        return Predictions.from_frame(data, batches=batches, **_named(given, "a table"))
    if "columns" in given:
        raise InputError(
            f"columns names the columns of a file or table, got {type(data).__name__}; pass the arrays instead"
        )
    return Predictions.from_arrays(data, y_pred, **given)


def argument(role: str) -> str:
    """The argument of :meth:`Predictions.from_arrays` for a per-sample column."""
    return role if role == "sample_weight" else f"{role}s"


def _named(given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The arguments that may be combined with a file or table, which holds the arrays itself; columns are given by name."""
    from classgap.predictions.columns import Columns

    roles = {argument(role): role for role in DESCRIBING}
    names: dict[str, Any] = {roles[k]: value for k, value in given.items() if k in roles and isinstance(value, str)}
    if "by" in given and not isinstance(given["by"], Mapping):
        by = [given["by"]] if isinstance(given["by"], str) else list(given["by"])
        if not all(isinstance(name, str) for name in by):
            raise InputError(f"by must be the names of columns of {what}, got {by!r}")
        roles["by"], names["by"] = "by", tuple(by)
    kept = {key: value for key, value in given.items() if key in ("class_names", "train_counts")}
    refused = [key for key in given if key not in (*kept, "columns") and roles.get(key) not in names]
    if refused:
        way = "; give the name of its column" if set(refused) <= {*roles, "by"} else ""
        raise InputError(f"{', '.join(refused)} cannot be combined with {what}, which holds them itself{way}")
    return {**kept, "columns": replace(given.get("columns") or Columns(), **names)}
