"""From raw labels, scores and features to :class:`Predictions`. Only this module encodes labels and checks values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.arrays import Ints, row_blocks
from classgap.checks import InputError
from classgap.named import by_name, column_names, columns_in_order, index_name
from classgap.predictions.binary import TAKEN, differing_note, is_single, widen
from classgap.predictions.confusion import Confusion
from classgap.predictions.labels import check_names, names_of, printable_names, resolve_classes
from classgap.predictions.predictions import DESCRIBING, PER_ROW, Predictions, ScoreKind, argument
from classgap.predictions.side_files import NamedTable, counts_in_order, named_table


@dataclass(frozen=True)
class Source:
    """Origin of the arrays: for messages the name of each array there, and how the user gives class names.

    ``numbered`` says that the score columns are numbered, so that numbers among the labels are positions; ``only_names`` that
    numbers are names of score columns, so that numbers among the labels are names.
    """

    titles: Mapping[str, str]
    names_option: str
    numbered: bool = False
    only_names: bool = False

    def title(self, role: str) -> str:
        return self.titles.get(role, role)


_LEAST_WEIGHT = 1e-100
ARGUMENTS = Source({}, "class_names")


def encode_arguments(
    given: Mapping[str, Any],
    describing: Mapping[str, Any],
    by: Mapping[str, Any] | None,
    scores_kind: str,
    head: Any,
    margin_norms: Any,
    class_names: Any,
    train_counts: Any,
) -> Predictions:
    """Predictions from the arguments of :meth:`Predictions.from_arrays`."""
    if given["y_true"] is None:
        raise InputError("y_true must be the true labels, one per sample, got None")
    if given["y_pred"] is None and given["scores"] is None:
        raise InputError("y_true needs predictions to compare with: pass y_pred, or scores of shape (n, K)")
    arrays = {role: checks.as_numpy(value, role) for role, value in given.items() if value is not None}
    for role in ("y_true", "y_pred"):
        if role in arrays:
            arrays[role] = checks.label_vector(role, given[role])
    width = arrays["scores"].shape[1] if "scores" in arrays and arrays["scores"].ndim == 2 else None
    names = _given_names(class_names, arrays, width, train_counts)
    source = ARGUMENTS
    columns = column_names(given["scores"])
    if names is None and columns is not None and width != 1 and _are_among(columns, arrays):
        names, source = columns, replace(ARGUMENTS, only_names=True)
    if names is not None and width not in (None, 1):  # one column is the score of the positive class
        arrays["scores"] = checks.as_numpy(columns_in_order("scores", given["scores"], names))
    if head is not None:
        if "features" not in arrays:
            raise InputError("head also needs features of shape (n, d); pass both or neither")
        arrays["weight"], bias = _weight_and_bias(head)
        if bias is not None:
            arrays["bias"] = bias
    if margin_norms is not None:
        if head is None:
            raise InputError("margin_norms also needs head, the last layer; pass both or neither")
        arrays["margin_norms"] = checks.as_numpy(margin_norms, "margin_norms")
    described = _given_columns(describing, by, len(arrays["y_true"]))
    found = encode(arrays, source, columns=described, names=names, scores_kind=scores_kind, train_counts=train_counts)
    return _with_other_name(found, columns) if columns is not None and found.one_score else found


def _with_other_name(predictions: Predictions, columns: Sequence[str]) -> Predictions:
    """The predictions, with a note if the one score column has the name of the negative class."""
    negative, positive = predictions.classes
    if list(columns) != [negative]:
        return predictions
    note = (
        f"scores {TAKEN} {positive!r}, though its column is named {negative!r}; if it is that of {negative!r}, pass "
        f"positive={negative!r}"
    )
    return replace(predictions, notes=(*(n for n in predictions.notes if TAKEN not in n), note))


def _are_among(names: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether every label is one of the names."""
    found = {
        index_name(label)
        for role in ("y_true", "y_pred")
        if role in arrays
        for label in _distinct(arrays[role]).tolist()
    }
    return found <= set(names)


def _given_columns(
    describing: Mapping[str, Any], by: Mapping[str, Any] | None, num_samples: int
) -> dict[str, NDArray[Any]]:
    """The arguments ``ids``, ``paths``, ``texts`` and ``by`` as columns."""
    if not isinstance(by, (Mapping, NoneType)):
        raise InputError(f"by must be a mapping from name to one value per sample, got {type(by).__name__}")
    for name in by or {}:
        if name in DESCRIBING:
            raise InputError(
                f"by must not hold the name {name!r}, which is that of {argument(name)}=; give it another name"
            )
    given = {(title.removesuffix("s"), title): values for title, values in describing.items() if values is not None}
    given |= {(checks.printable(str(name)), f"by[{name!r}]"): values for name, values in (by or {}).items()}
    columns = {}
    for (name, title), values in given.items():
        column = np.asarray(checks.as_numpy(values))
        if column.shape != (num_samples,):
            raise InputError(
                f"{title} must have one entry per sample like y_true, {num_samples}, got shape {column.shape}"
            )
        columns[name] = plain_column(column, title)
    return columns


def _with_weights(columns: Mapping[str, NDArray[Any]], num_samples: int) -> Mapping[str, NDArray[Any]]:
    """The columns, with sample weights as checked numbers."""
    if "sample_weight" not in columns:
        return columns
    values = columns["sample_weight"]
    try:
        weight = values.astype(np.float64)
    except (TypeError, ValueError):
        weight = np.full(1, np.nan)
    if weight.shape != (num_samples,) or not np.isfinite(weight).all():
        raise InputError("sample_weight must hold a finite number for every sample; fill or remove empty cells")
    if weight.min() < 0 or weight.max() == 0:
        raise InputError(f"sample_weight must be at least 0 and not all 0, got a smallest weight of {weight.min():g}")
    if not _LEAST_WEIGHT < weight.max() < 1 / _LEAST_WEIGHT:  # their squares and sums must be finite numbers above 0
        raise InputError(
            f"sample_weight must not be so large or small, got {weight.max():g}; divide the weights by their mean"
        )
    return {**columns, "sample_weight": weight}


def plain_column(values: NDArray[Any], title: str = "the column of sample ids") -> NDArray[Any]:
    """A per-sample column as numbers, or as text where it holds anything else; a missing value becomes an empty text."""
    if values.dtype.kind in "biufU":
        return values
    texts = ["" if checks.is_missing(value) else checks.as_text(title, value) for value in values.tolist()]
    return np.array(texts, dtype=object)


def encode_counts(counts: Any, class_names: Any, train_counts: Any) -> Predictions:
    """Predictions from a matrix of counts."""
    if (table := named_table(counts)) is not None:
        _refuse_sums(table)
        class_names = list(table.rows) if class_names is None else class_names
        wanted = _names(class_names)
        if table.rows.keys() != set(wanted) or table.columns.keys() != set(wanted):
            raise InputError(
                f"the rows and columns of counts must both be the classes ({', '.join(map(repr, wanted[:3]))} …); add the "
                "missing ones with counts.reindex(index=names, columns=names, fill_value=0)"
            )
        counts = table.in_order(wanted)
    confusion = counts if isinstance(counts, Confusion) else Confusion.from_counts(counts)
    if confusion.num_samples == 0:
        raise InputError("counts must hold at least one sample, got only zeros")
    names = tuple(str(k) for k in range(confusion.num_classes)) if class_names is None else _names(class_names)
    if len(names) != confusion.num_classes:
        raise InputError(f"class_names must have one name per row of counts, {confusion.num_classes}, got {len(names)}")
    classes = printable_names(check_names(names))
    known = None if train_counts is None else counts_in_order(train_counts, classes)
    return Predictions(classes, counted=confusion, train_counts=known)


def _refuse_sums(table: NamedTable) -> None:
    """Refuse a last row and column that are the sums of the others: they would be a class."""
    values, (name, other) = table.values, (list(names)[-1] for names in (table.rows, table.columns))
    if name != other or values.dtype.kind not in "iuf" or (len(values) < 3 and name != "All"):
        return
    if values.any() and all(np.array_equal(m[-1], m[:-1].sum(axis=0)) for m in (values, values.T)):
        raise InputError(
            f"the rows and columns of counts must be the classes, but {name!r} holds the sums of the others; pass the table "
            "without them (pd.crosstab with margins=False)"
        )


def encode(
    arrays: Mapping[str, NDArray[Any]],
    source: Source,
    *,
    columns: Mapping[str, NDArray[Any]] | None = None,
    names: Sequence[str] | None = None,
    scores_kind: str = "auto",
    train_counts: Any = None,
) -> Predictions:
    """Predictions from raw arrays, given by role, and per-sample columns. Every row is kept."""
    num_samples = len(arrays["y_true"])
    if num_samples == 0:
        raise InputError("the predictions must have at least one row, got none")
    for role in PER_ROW:
        if role in arrays and len(arrays[role]) != num_samples:
            raise InputError(
                f"{source.title(role)} must have one entry per sample like {source.title('y_true')}, {num_samples}, "
                f"got {len(arrays[role])}"
            )
    roles = [role for role in ("y_true", "y_pred") if role in arrays]
    distinct = [(source.title(role), _distinct(arrays[role])) for role in roles]
    more: tuple[str, ...] = ()
    single = "scores" in arrays and is_single(arrays["scores"])
    if single:
        arrays, names, more = widen(arrays, distinct, scores_kind, names, source.title("scores"))
    scores, kind = _scores(arrays, scores_kind)
    width = None if scores is None else scores.shape[1]
    classes, coders, notes = resolve_classes(
        distinct,
        names=names,
        width=width,
        option=source.names_option,
        numbered=source.numbered,
        only_names=source.only_names,
    )
    codes = {role: coder(arrays[role]) for role, coder in zip(roles, coders, strict=True)}
    predicted, differing = _predicted(codes.get("y_pred"), scores)
    if single and "y_pred" not in arrays:  # a probability of exactly 0.5 is positive, as everywhere with a threshold
        predicted = (scores[:, 1] >= scores[:, 0]).astype(np.int64)  # type: ignore[index]
    features, weight, bias = _features_and_head(arrays, num_samples, len(classes))
    counts = arrays["train_counts"] if train_counts is None and "train_counts" in arrays else train_counts
    return Predictions(
        classes=classes,
        y_true=codes["y_true"],
        y_pred=predicted,
        scores=scores,
        scores_kind=kind,
        features=features,
        weight=weight,
        bias=bias,
        margin_norms=_margin_norms(arrays, len(classes)) if weight is not None else None,
        train_counts=None if counts is None else counts_in_order(counts, classes, coders),
        columns=_with_weights(columns or {}, num_samples),
        positive=1 if single else None,
        one_score=single,
        threshold=0.5 if single and "y_pred" not in arrays else None,
        notes=(*notes, *more, *differing),
    )


def _predicted(y_pred: Ints | None, scores: NDArray[Any] | None) -> tuple[Ints, tuple[str, ...]]:
    """Predicted class indices, and a note if scores and predictions disagree."""
    if scores is None:
        assert y_pred is not None  # one of the two was given
        return y_pred, ()
    highest = np.concatenate([scores[b].argmax(1) for b in row_blocks(*scores.shape)])
    if y_pred is None:
        return highest, ()
    return y_pred, differing_note(float((highest != y_pred).mean()))


def _distinct(labels: NDArray[Any]) -> NDArray[Any]:
    """Sorted distinct labels. For small integers, counting is ten times faster than sorting."""
    if labels.dtype.kind in "iu" and labels.dtype != np.uint64:
        low = int(labels.min())
        if int(labels.max()) - low < len(labels):
            return np.flatnonzero(np.bincount(labels.astype(np.int64) - low)) + low
    return np.unique(labels)


def _given_names(
    class_names: Any, arrays: Mapping[str, NDArray[Any]], width: int | None, train_counts: Any
) -> Sequence[str] | None:
    if class_names is not None:
        return _names(class_names)
    labels = [arrays[role] for role in ("y_true", "y_pred") if role in arrays]
    if width is not None:
        return None
    listed = train_counts is not None and not isinstance(by_name(train_counts), Mapping)
    if listed and all(column.dtype.kind in "iu" for column in labels):
        counts = checks.as_numpy(train_counts, "train_counts")
        return [str(k) for k in range(counts.size)]  # one count per class, so labels are class indices
    return None


def _names(class_names: Any) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise InputError(f"class_names must be a sequence of names, got the single string {class_names!r}")
    array = checks.as_numpy(class_names, "class_names")
    if array.dtype.kind == "O" and array.ndim == 1 and all(isinstance(name, (str, int)) for name in array):
        array = np.array([str(name) for name in array])
    return tuple(names_of(array, "class_names"))


def _scores(arrays: Mapping[str, NDArray[Any]], kind: str) -> tuple[NDArray[Any] | None, ScoreKind | None]:
    """Checked ``(n, K)`` scores and their kind; computed from features and head if only these are given."""
    checks.one_of("scores_kind", kind, ("auto", "logits", "probabilities"))
    if "scores" in arrays:
        return read_scores(arrays["scores"], kind)
    if "y_pred" in arrays or not {"features", "weight"} <= arrays.keys():
        return None, None
    features = checks.feature_matrix(arrays["features"])
    rows = arrays["weight"].shape[0] if arrays["weight"].ndim == 2 else 0
    weight, bias = check_head(arrays["weight"], arrays.get("bias"), rows, features.shape[1])
    return features.astype(np.float64) @ weight.T + bias, "logits"


def read_scores(scores: Any, kind: str) -> tuple[NDArray[Any], ScoreKind]:
    """Checked ``(n, K)`` scores and their kind."""
    matrix = checks.float_matrix("scores", scores)
    if kind == "logits":
        return matrix, "logits"
    if kind == "auto" and checks.are_logits(matrix):
        checks.refuse_percentages("scores", matrix)
        return matrix, "logits"
    try:
        return checks.probabilities("scores", matrix), "probabilities"
    except InputError as error:
        if kind == "probabilities":
            raise
        raise InputError(
            f"{error}; if these are logits that all lie in [0, 1], save their softmax, or pass arrays with scores_kind='logits'"
        ) from None


def _features_and_head(
    arrays: Mapping[str, NDArray[Any]], rows: int, num_classes: int
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]:
    if "features" not in arrays:
        return None, None, None
    features = checks.feature_matrix(arrays["features"], rows=rows)
    if "weight" not in arrays:
        return features, None, None
    weight, bias = check_head(arrays["weight"], arrays.get("bias"), num_classes, features.shape[1])
    return features, weight, bias if "bias" in arrays else None


def _margin_norms(arrays: Mapping[str, NDArray[Any]], num_classes: int) -> NDArray[np.float64] | None:
    if "margin_norms" not in arrays:
        return None
    norms = checks.float_vector("margin_norms", arrays["margin_norms"], length=num_classes)
    if (norms <= 0).any():
        raise InputError(f"margin_norms must be positive, got {norms.min():g}")
    return norms


def check_head(
    weight: NDArray[Any], bias: NDArray[Any] | None, num_classes: int, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The last layer as float64 ``(weight, bias)``; a missing bias becomes zeros."""
    matrix = checks.float_matrix("weight", weight, rows=num_classes, columns=width).astype(np.float64)
    return matrix, np.zeros(num_classes) if bias is None else checks.float_vector("bias", bias, length=num_classes)


def _weight_and_bias(head: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    weight, bias = head, None
    if hasattr(head, "weight"):
        if not hasattr(head, "bias"):
            raise InputError(
                f"head must be a linear layer with weight and bias, got {type(head).__name__}; for a classgap CosineHead "
                "pass head.as_linear() and features of unit length"
            )
        weight, bias = head.weight, head.bias
    elif isinstance(head, (tuple, list)) and len(head) == 2 and np.ndim(checks.as_numpy(head[0])) == 2:
        weight, bias = head
    return checks.as_numpy(weight), None if bias is None else checks.as_numpy(bias)
