"""Terms of a loss whose gradients are computed together with their values, and their sum as one node of the graph.

Where a batch is small, the number of operations decides how long a step takes. Differentiated by autograd, every operation
would have a second one in the backward pass; these gradients are known in closed form and come from what the forward pass has
at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from classgap.batchstats.backend import Array, as_tensor, is_transformed, on_host
from classgap.checks import InputError


class Term(NamedTuple):
    """A number that depends on one tensor."""

    value: Array
    """The number, without a graph."""
    variable: Tensor
    """The tensor it depends on."""
    gradient: Callable[[float], Tensor]
    """The gradient in ``variable``, times a number; to be called once, as it may overwrite what the forward pass left."""


def weighted_sum(*terms: tuple[float | Tensor, Term]) -> Tensor:
    """The sum of the terms, each times its weight, with their gradients. Weights are not differentiated.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> norm = Term(x.detach().square().sum(), x, lambda weight: 2 * weight * x.detach())
        >>> loss = weighted_sum((0.5, norm))
        >>> loss.backward()
        >>> loss.item(), x.grad
        (2.5, tensor([1., 2.]))
    """
    enabled, transformed = torch.is_grad_enabled(), is_transformed()
    value, gradients, variables = 0.0, [], []
    for weight, term in terms:
        value = value + weight * term.value
        wanted = enabled and (term.variable.requires_grad or transformed)
        gradients.append(_gradient(term, weight) if wanted else None)
        variables.append(term.variable)
    function = _TransformedGradients if transformed else _KnownGradients
    loss: Tensor = function.apply(value, *gradients, *variables)
    return loss


def _gradient(term: Term, weight: float | Tensor) -> Tensor:
    return term.gradient(1.0) * weight if isinstance(weight, Tensor) else term.gradient(weight)


def not_differentiated_again(gradient: Tensor | None, variable: Tensor) -> Tensor | None:
    """The gradient in ``variable``, for the end of a backward pass: to differentiate it once more is an error.

    It was computed in closed form, so a second derivative would silently be 0.
    """
    if gradient is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return gradient
    once: Tensor = _Once.apply(gradient, variable)
    return once


class _Once(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, variable: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept; ``torch.func`` asks for this function."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        raise InputError(
            "this loss has no second derivatives (gradient penalties, Hessians, MAML); use a loss whose gradient torch computes, "
            "e.g. cross_entropy"
        )


class _KnownGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Array, *tensors: Tensor) -> Tensor:
        """``tensors``: the gradients, then the tensors they belong to; the result has the type of the first of these."""
        ctx.save_for_backward(*tensors)
        return as_tensor(value.clone() if isinstance(value, Tensor) else value, tensors[len(tensors) // 2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, grad = ctx.saved_tensors, grads[0].detach()  # read once, as activation checkpointing asks for
        half = len(saved) // 2
        gradients, variables = saved[:half], saved[half:]
        # 1 unless the loss was scaled: then there is nothing to multiply.
        if not (on_host(grad) and not is_transformed() and grad.item() == 1):
            gradients = [None if gradient is None else gradient * grad for gradient in gradients]
        return None, *[None] * half, *map(not_differentiated_again, gradients, variables)


class _TransformedGradients(_KnownGradients):
    """The same in the form that the transforms of ``torch.func`` ask for, which costs ten times as much to call."""

    @staticmethod
    def forward(value: Array, *tensors: Tensor) -> Tensor:  # type: ignore[override]
        return as_tensor(value.clone() if isinstance(value, Tensor) else value, tensors[len(tensors) // 2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
