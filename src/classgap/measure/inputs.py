"""What a caller may pass to :func:`classgap.audit`, and how it becomes class indices and checked arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap import _checks
from classgap._checks import InputError
from classgap.measure.classwise import Ints, row_blocks
from classgap.measure.files.labels import check_names, resolve_classes
from classgap.measure.files.sidecars import counts_in_order
from classgap.measure.geometry.summary import check_head
from classgap.measure.margins import ScoreKind

Head = Any  # weight (K, d); (weight, bias); or an object with .weight and .bias, e.g. torch.nn.Linear


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels as class indices, with what was learnt on the way."""

    classes: tuple[str, ...]
    y_true: Ints
    y_pred: Ints
    train_counts: Ints | None
    notes: tuple[str, ...]


def read_labels(y_true: Any, y_pred: Any, scores: NDArray[Any] | None, class_names: Any, train_counts: Any) -> Labels:
    """Class indices of ``y_true`` and ``y_pred`` (or of the highest score) and the class names."""
    if y_pred is None and scores is None:
        raise InputError("nothing to compare y_true with: pass y_pred, or scores of shape (n, K)")
    given = {"y_true": _checks.label_vector("y_true", y_true)}
    if y_pred is not None:
        given["y_pred"] = _checks.label_vector("y_pred", y_pred)
    rows = len(given["y_true"])
    for name, length in (("y_pred", len(given.get("y_pred", given["y_true"]))), ("scores", _rows(scores, rows))):
        if length != rows:
            raise InputError(f"{name} must have one entry per sample like y_true, {rows}, got {length}")
    width = None if scores is None else scores.shape[1]
    names = _given_names(class_names, given, width, train_counts)
    classes, coders = resolve_classes([(n, _distinct(v)) for n, v in given.items()], names=names, width=width)
    codes = {name: coder(given[name]) for coder, name in zip(coders, given, strict=True)}
    highest = None if scores is None else np.concatenate([scores[b].argmax(1) for b in row_blocks(*scores.shape)])
    notes = []
    if highest is not None and "y_pred" in codes and (differ := float((highest != codes["y_pred"]).mean())) > 0:
        notes.append(f"y_pred is not the class of the highest score in {differ:.1%} of samples; accuracies use y_pred")
    predicted = codes.get("y_pred", highest)
    assert predicted is not None  # one of the two was given
    trained = None if train_counts is None else read_train_counts(train_counts, classes)
    return Labels(classes, codes["y_true"], predicted, trained, tuple(notes))


def _distinct(labels: NDArray[Any]) -> NDArray[Any]:
    """Sorted distinct labels; counting small integers is ten times faster than sorting them."""
    if labels.dtype.kind in "iu" and int(labels.max()) - int(low := labels.min()) < len(labels):
        return np.flatnonzero(np.bincount((labels - low).astype(np.int64))) + int(low)
    return np.unique(labels)


def _rows(scores: NDArray[Any] | None, otherwise: int) -> int:
    return otherwise if scores is None else len(scores)


def _given_names(
    class_names: Any, given: Mapping[str, NDArray[Any]], width: int | None, train_counts: Any
) -> list[str] | None:
    if class_names is not None:
        return list(_names(class_names))
    if width is not None:
        return None
    if all(labels.dtype.kind == "b" for labels in given.values()):
        return ["False", "True"]
    listed = train_counts is not None and not isinstance(train_counts, Mapping)
    if listed and all(labels.dtype.kind in "iu" for labels in given.values()):
        return [str(k) for k in range(len(train_counts))]  # one count a class, so labels are indices into them
    return None


def _names(class_names: Any) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise InputError(f"class_names must be a sequence of names, got the single text {class_names!r}")
    return tuple(str(name) for name in class_names)


def read_names(class_names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """Class names of a count matrix with ``num_classes`` rows; indices as names if there are none."""
    if class_names is None:
        return tuple(str(k) for k in range(num_classes))
    names = _names(class_names)
    if len(names) != num_classes:
        raise InputError(f"class_names must name all {num_classes} rows of counts, got {len(names)} names")
    return tuple(check_names(names))


def read_train_counts(given: Any, classes: tuple[str, ...]) -> Ints:
    """Training samples of each class, in class order."""
    return counts_in_order(given if isinstance(given, Mapping) else _checks.as_numpy(given).tolist(), classes)


def read_scores(scores: Any, kind: str) -> tuple[NDArray[Any] | None, ScoreKind | None]:
    """Checked ``(n, K)`` scores and what they are."""
    _checks.one_of("scores_kind", kind, ("auto", "logits", "probabilities"))
    if scores is None:
        return None, None
    matrix = _checks.float_matrix("scores", _checks.as_numpy(scores))
    if kind == "logits" or (kind == "auto" and (matrix.min() < 0 or matrix.max() > 1)):
        return matrix, "logits"
    try:
        _checks.probabilities("scores", matrix)
    except InputError as error:
        if kind == "probabilities":
            raise
        raise InputError(f"{error}; or say scores_kind='logits' if these are logits that all lie in [0, 1]") from None
    return matrix, "probabilities"


def read_head(head: Head, num_classes: int, width: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weight ``(K, d)`` and bias ``(K,)`` of the last layer."""
    if width is None:
        raise InputError("head needs features of shape (n, d) beside it; pass both or neither")
    weight, bias = head, None
    if hasattr(head, "weight"):
        if not hasattr(head, "bias"):
            raise InputError(
                f"head must be a linear layer with weight and bias, got {type(head).__name__}; of a classgap CosineHead pass "
                "head.as_linear(), and features of unit length"
            )
        weight, bias = head.weight, head.bias
    elif isinstance(head, (tuple, list)) and len(head) == 2 and np.ndim(_checks.as_numpy(head[0])) == 2:
        weight, bias = head
    matrix = _checks.as_numpy(weight)
    return check_head(matrix, None if bias is None else _checks.as_numpy(bias), num_classes, width)
