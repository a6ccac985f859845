"""Checks of the tensors a loss receives.

Shapes and types are always checked. Values (label range, finite features) are checked where reading them is free: on the
CPU and outside ``torch.compile``; on an accelerator the read would stall the device at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgap.batchstats.backend import Array
from classgap.checks import InputError
from classgap.losses.batch import LossBatch
from classgap.named import by_name

_LARGEST_STATE = 10**9


def values_are_cheap(tensor: Tensor) -> bool:
    """Whether reading the values costs almost nothing."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def check_tensors(**given: object) -> None:
    """Refuse lists and NumPy arrays, which would fail later with a word about an attribute."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor, got {type(value).__name__}; convert it with torch.as_tensor")


def check_logits(logits: Tensor, num_classes: int) -> None:
    """``(N, K)`` of floats with the K the loss was built for."""
    if logits.dim() != 2:
        raise InputError(f"logits must be (N, K), got shape {tuple(logits.shape)}; flatten other dimensions first")
    if logits.shape[1] != num_classes:
        raise InputError(
            f"logits must have {num_classes} columns, one for each class, got {logits.shape[1]}; "
            f"build the loss with num_classes={logits.shape[1]} or change the last layer"
        )
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, got {logits.dtype}; call .float()")


def check_index(index: Tensor | None, num_samples: int) -> None:
    """``(N,)`` whole numbers, or None."""
    if index is None:
        return
    if tuple(index.shape) != (num_samples,) or index.is_floating_point() or index.is_complex():
        raise InputError(
            f"index must be ({num_samples},), the position of each sample in the training set, got shape "
            f"{tuple(index.shape)} of {index.dtype}"
        )


def check_experts(logits: Tensor, features: Tensor | None, experts: int, method: str) -> None:
    """``(N, M, K)`` logits of M experts, and ``(N, M, d)`` features where given."""
    if logits.dim() != 3 or logits.shape[1] != experts:
        raise InputError(
            f"{method} needs logits of {experts} experts, (N, {experts}, K), got shape {tuple(logits.shape)}; "
            "wrap the networks in classgap.models.Experts"
        )
    if features is not None and (features.dim() != 3 or features.shape[:2] != logits.shape[:2]):
        raise InputError(
            f"features must be {tuple(logits.shape[:2])} + (d,), one row for each expert, got {tuple(features.shape)}"
        )


def check_target(batch: LossBatch, num_classes: int, *, soft_allowed: bool, method: str) -> None:
    """``(N,)`` class indices, or ``(N, K)`` probabilities where the method can take them."""
    target, num_samples = batch.target, len(batch)
    if target.shape[:1] != (num_samples,):
        raise InputError(
            f"target must have one entry for each of the {num_samples} logit rows, got {tuple(target.shape)}"
        )
    if target.dim() == 1:
        if target.is_floating_point() or target.dtype == torch.bool or target.is_complex():
            raise InputError(f"target must hold integer class indices, got {target.dtype}; call .long()")
        if num_samples and values_are_cheap(target):
            low, high = batch.label_range
            if low < 0 or high >= num_classes:
                raise InputError(
                    f"target must hold class indices in [0, {num_classes}), got values from {low} to {high}; "
                    "number the classes from 0"
                )
        return
    if tuple(target.shape) != (num_samples, num_classes):
        raise InputError(
            f"target must be (N,) class indices or (N, {num_classes}) probabilities, got {tuple(target.shape)}"
        )
    if not target.is_floating_point():
        raise InputError(
            f"target must hold class indices in [0, {num_classes}), got an {target.dtype} matrix; did you pass one-hot "
            "labels? use target.argmax(1), or .float() if they are meant as probabilities"
        )
    if not soft_allowed:
        raise InputError(
            f"{method} needs hard labels of shape (N,), got {tuple(target.shape)} probabilities; turn mixup off"
        )
    if values_are_cheap(target) and num_samples:
        smallest, worst = float(target.min()), float((target.sum(1) - 1).abs().max())
        if not (smallest >= 0 and worst < 1e-2):
            several = bool(((target == 0) | (target == 1)).all())
            advice = (
                "several labels per sample need a loss for multi-label data" if several else "divide by the row sum"
            )
            raise InputError(
                f"target probabilities must be >= 0 and sum to 1 in each row, got a minimum of {smallest:.3g} and a row sum "
                f"off by {worst:.3g}; {advice}"
            )


def check_cosines(logits: Tensor, method: str) -> None:
    """Cosines; the logits of a linear head would be multiplied by the scale of the loss without any error."""
    if values_are_cheap(logits) and logits.shape[0]:
        largest = float(logits.detach().abs().max())
        if largest > 1.05:  # half precision may exceed 1 a little
            raise InputError(
                f"{method} needs cosines in [-1, 1] as logits, got {largest:.3g}; use classgap.heads.CosineHead as the last "
                "layer, without a scale of its own"
            )


def check_features(features: Tensor, num_samples: int) -> None:
    """``(N, d)`` of floats."""
    if features.dim() != 2 or features.shape[0] != num_samples:
        raise InputError(
            f"features must be ({num_samples}, d), one row for each logit row, got {tuple(features.shape)}; "
            "pass exactly the tensor that enters the last linear layer"
        )
    if not features.is_floating_point():
        raise InputError(f"features must be floating point, got {features.dtype}; call .float()")


def check_width(features: Tensor, num_features: int | None) -> None:
    """As many columns as the loss was built for, where it was built for a number of them."""
    if num_features is not None and features.shape[-1] != num_features:
        raise InputError(
            f"features must have the {num_features} columns the loss was built for, got {features.shape[-1]}; "
            f"pass num_features={features.shape[-1]}"
        )


def check_finite(features: Tensor, norms: Array | None = None) -> None:
    """Finite features. Where the caller has the norms of the rows, these are enough to see it."""
    if not values_are_cheap(features):
        return
    if not math.isfinite(features.detach().sum().item() if norms is None else float(norms.sum())):
        bad = int((~torch.isfinite(features)).any(1).sum())  # a sum may also have overflowed
        if bad:
            raise InputError(
                f"features must be finite, got nan or inf in {bad} of {len(features)} rows; lower the learning rate, "
                "clip gradients, or check the input data"
            )


def in_order_of_classes(name: str, values: Any) -> Any:
    """Values for torch: a loss does not know the names of the classes, so a pandas Series that names them is refused.

    An array is copied, since torch warns of one that cannot be written to, as those of pandas.
    """
    if by_name(values) is not values:
        raise InputError(
            f"{name} must be in the order of the classes, got a pandas Series with names in its index; pass "
            f"{name}.loc[class_names].to_numpy(), for classes 0, 1, 2 … {name}.sort_index().to_numpy()"
        )
    return np.array(values) if isinstance(values, np.ndarray) else values


def check_counts(class_counts: Tensor | Sequence[float], num_classes: int) -> Tensor:
    """Training counts as float64: ``(K,)``, positive."""
    try:
        counts = torch.as_tensor(in_order_of_classes("class_counts", class_counts), dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"class_counts must be {num_classes} numbers, got {type(class_counts).__name__} ({error})"
        ) from None
    if tuple(counts.shape) != (num_classes,):
        raise InputError(f"class_counts must have {num_classes} entries, one for each class, got {tuple(counts.shape)}")
    if not bool(torch.isfinite(counts).all()) or bool((counts <= 0).any()):
        empty = (~(counts > 0)).nonzero().flatten().tolist()
        raise InputError(
            f"class_counts must be positive, got {counts[empty[:1]].tolist()[0] if empty else 'inf'} for class "
            f"{empty[0] if empty else '?'}{f' and {len(empty) - 1} more' if len(empty) > 1 else ''}; "
            "drop classes without training samples"
        )
    return counts


def check_num_features(num_features: int, method: str) -> int:
    """The feature dimension. A loss that has parameters or class vectors of that size must know it at construction."""
    if isinstance(num_features, bool) or not isinstance(num_features, int) or num_features < 1:
        raise InputError(
            f"{method} needs num_features, the feature dimension d as a whole number, got {num_features!r}"
        )
    return num_features


def check_state_size(numbers: int, what: str, method: str) -> None:
    """A table that a loss keeps must fit into memory beside the network."""
    if numbers > _LARGEST_STATE:
        raise InputError(
            f"{method} keeps {what}, {4 * numbers / 1e9:.0f} GB, and allows {4 * _LARGEST_STATE / 1e9:.0f} GB; use a loss whose "
            "state has one row for each class, e.g. mr2, logit_adjusted or group_dro (classgap methods lists all)"
        )


def check_views(logits: Tensor, views: int) -> int:
    """Number of samples of a batch that holds the rows of view 1, then those of view 2, and so on."""
    if logits.shape[0] % views:
        raise InputError(
            f"a loss with views={views} needs the rows of all views one after the other, got {logits.shape[0]} rows, "
            f"which {views} does not divide; concatenate the views or build the loss with views=1"
        )
    return logits.shape[0] // views
