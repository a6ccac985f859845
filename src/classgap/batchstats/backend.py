"""Small arrays in NumPy or in torch, with one code for both.

A training step works on many arrays with one number for each sample, class or pair. An operation on such a small array takes a
third of the time in NumPy, so on the CPU these arrays are NumPy views of the tensors; on an accelerator they remain tensors. The
code uses functions that have the same name and meaning in both libraries. Features and logits are tensors; some functions take a
view of them (:func:`view`) where NumPy is several times faster.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

Array = Any
"""A NumPy array or a tensor; all arrays in one function are of the same kind."""
_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


def on_host(tensor: Tensor) -> bool:
    """Whether small arrays that belong to this tensor are NumPy arrays: on the CPU, except while compiling."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def view(rows: Array) -> Array:
    """A NumPy view of a large tensor without gradient, such as features, where there is one in its precision; else the tensor."""
    if not isinstance(rows, Tensor) or not on_host(rows) or rows.dtype not in _NUMPY_TYPES or is_mapped(rows):
        return rows
    return to_numpy(rows)


def is_transformed() -> bool:
    """Whether :func:`torch.func.grad` or another transform of ``torch.func`` calls this."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


def is_mapped(tensor: Tensor) -> bool:
    """Whether :func:`torch.func.vmap` stands for a batch of such tensors here, so that their values cannot be read."""
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.is_batchedtensor(tensor))


def as_array(tensor: Tensor) -> Array:
    """A NumPy view of a tensor on the CPU, elsewhere the tensor; not differentiated."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not on_host(tensor):
        return tensor
    return to_numpy(tensor.float() if tensor.dtype is torch.bfloat16 else tensor)  # NumPy has no bfloat16


def to_numpy(tensor: Tensor) -> Array:
    """The values as a NumPy array: a view of those on the CPU, a copy of those on an accelerator."""
    tensor = tensor.cpu()
    if not torch._C._are_functorch_transforms_active() or is_mapped(tensor):
        return tensor.numpy()
    with torch._C._DisableFuncTorch():  # inside torch.func.grad tensors are wrapped, once for each derivative
        while torch._C._functorch.is_gradtrackingtensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        return tensor.detach().numpy()


def arrays_like(tensor: Tensor, *arrays: Any) -> tuple[Array, ...]:
    """NumPy arrays as arrays that can be used together with ``tensor``: on the same device, of the same library."""
    return arrays if on_host(tensor) else tuple(torch.from_numpy(array).to(tensor.device) for array in arrays)


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """The array as a tensor of the type and on the device of ``like``."""
    if not isinstance(array, Tensor):
        array = torch.from_numpy(np.asarray(array, _NUMPY_TYPES.get(like.dtype)))
        if like.is_cpu and array.dtype is like.dtype:
            return cast("Tensor", array)
    return cast("Tensor", array.to(like))


def as_indices(*arrays: Array) -> list[Tensor]:
    """Arrays of whole numbers as tensors that index others."""
    return [array if isinstance(array, Tensor) else torch.from_numpy(array) for array in arrays]


def library(array: Array) -> Any:
    """The module (NumPy or torch) whose functions work on the array."""
    return torch if isinstance(array, Tensor) else np


def cells(column: Array) -> tuple[Array, Array]:
    """The index of one entry in each row of a matrix: row 0 in ``column[0]``, row 1 in ``column[1]``, and so on."""
    rows = torch.arange(len(column), device=column.device) if isinstance(column, Tensor) else np.arange(len(column))
    return rows, column


def largest(values: Array, member: Array, rows: int) -> Array:
    """The largest of 0 and the values of each row."""
    if isinstance(values, Tensor):
        return values.new_zeros(rows).scatter_reduce_(0, member, values, "amax")
    result = np.zeros(rows, values.dtype)
    np.fmax.at(result, member, values)  # gives no warning for nan, which stays in the values themselves
    return result
