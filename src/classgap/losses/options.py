"""What every loss shares with ``torch.nn.CrossEntropyLoss``: class weights, label smoothing, ignored labels and the reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.checks import InputError, shown
from classgap.losses.batch import LossBatch
from classgap.losses.tensor_checks import in_order_of_classes, values_are_cheap

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100  # the default of torch


class _Reduced(TypedDict, total=False):
    reduction: Reduction
    ignore_index: int | None


class UnweightedOptions(_Reduced, total=False):
    """The options of a loss in which ``weight`` is the weight of one of its terms."""

    label_smoothing: float


class UnsmoothedOptions(_Reduced, total=False):
    """The options of a loss that declares ``label_smoothing`` itself."""

    weight: Sequence[float] | Tensor | None


class LossOptions(UnsmoothedOptions, total=False):
    """The keyword arguments that :class:`ClassLoss` takes besides ``num_classes`` and ``class_counts``."""

    label_smoothing: float


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """``"mean"`` divides by the number of samples, never by a sum of weights; no samples give 0."""
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" and values.shape[0] else values.sum()


def check_weight(weight: Sequence[float] | Tensor, num_classes: int) -> Tensor:
    """``(K,)`` class weights: finite, none negative, not all of them 0."""
    try:
        values = torch.as_tensor(in_order_of_classes("weight", weight), dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"weight must be {num_classes} numbers, got {shown(weight)} ({error})") from None
    if tuple(values.shape) != (num_classes,):
        raise InputError(f"weight must have {num_classes} entries, one for each class, got {tuple(values.shape)}")
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()) or not bool(values.any()):
        raise InputError(f"weight must hold finite numbers of at least 0, not all of them 0, got {values.tolist()}")
    return values.clone()


def kept_rows(batch: LossBatch, ignore_index: int | None, views: int) -> Tensor | None:
    """``(N,)`` mask of the rows whose label is not ``ignore_index``; None if that is all of them.

    A sample that is ignored in one view is ignored in all. The mask is not made inside ``torch.compile``, where the number of
    rows must not depend on the data.
    """
    target = batch.target
    aligned = target.dim() == 1 and batch.logits.dim() > 0 and len(target) == len(batch)
    if ignore_index is None or not aligned or torch.compiler.is_compiling():
        return None
    if len(target) and values_are_cheap(target):  # the range is read in any case, to check it
        low, high = batch.label_range
        if not low <= ignore_index <= high:
            return None
    ignored = target == ignore_index
    if not ignored.any():
        return None
    for name, rows in (("features", batch.features), ("index", batch.index)):
        if rows is not None and rows.shape[:1] != target.shape:
            raise InputError(
                f"{name} must have one row for each of the {len(target)} logit rows, got {tuple(rows.shape)}"
            )
    if views > 1 and len(ignored) % views == 0:
        ignored = ignored.view(views, -1).any(0).repeat(views)
    return ~ignored


def in_all_rows(losses: Tensor, keep: Tensor | None) -> Tensor:
    """The losses of the kept rows in their places, 0 in the rows that were left out."""
    if keep is None:
        return losses
    return losses.new_zeros(len(keep)).masked_scatter(keep, losses)


def smoothed_target(target: Tensor, num_classes: int, share: float, dtype: torch.dtype) -> Tensor:
    """Probabilities ``(N, K)``: ``share`` of each target spread evenly over all classes, as in ``F.cross_entropy``."""
    probabilities = (F.one_hot(target, num_classes) if target.dim() == 1 else target).to(dtype)
    return (1 - share) * probabilities + share / num_classes
