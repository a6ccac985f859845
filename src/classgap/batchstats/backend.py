"""Small arrays, written once for NumPy and torch.

A step works on many arrays with one number for each sample, class or pair. An operation on so few costs a third in NumPy of
what it costs in torch, so on the CPU they are NumPy views of the tensors; on an accelerator they stay tensors. Code on them
uses what both libraries spell alike. Whatever has the size of features or logits is always a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any
"""A NumPy array or a tensor; all that meet in one function are of the same kind."""


def on_host(tensor: Tensor) -> bool:
    """Whether arrays beside this tensor are NumPy's: on the CPU, except while compiling."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def as_array(tensor: Tensor) -> Array:
    """A NumPy view of a tensor on the CPU, elsewhere the tensor; not differentiated."""
    tensor = tensor.detach()
    if not on_host(tensor):
        return tensor
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()  # NumPy has no bfloat16


def arrays_like(tensor: Tensor, *arrays: Any) -> tuple[Array, ...]:
    """What was computed on the host, in NumPy, as arrays to go with ``tensor``."""
    return arrays if on_host(tensor) else tuple(torch.from_numpy(array).to(tensor.device) for array in arrays)


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """The array as a tensor of the type and on the device of ``like``."""
    tensor: Tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array))
    return tensor.to(like)


def as_indices(*arrays: Array) -> list[Tensor]:
    """Arrays of whole numbers as tensors that index others."""
    return [array if isinstance(array, Tensor) else torch.from_numpy(array) for array in arrays]


def library(array: Array) -> Any:
    """NumPy or torch: whose functions to call on the array."""
    return torch if isinstance(array, Tensor) else np


def largest(values: Array, member: Array, rows: int) -> Array:
    """The largest of 0 and the values of each row."""
    if isinstance(values, Tensor):
        return values.new_zeros(rows).scatter_reduce_(0, member, values, "amax")
    result = np.zeros(rows, values.dtype)
    np.maximum.at(result, member, values)
    return result
