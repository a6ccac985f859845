"""Sharpness-aware minimisation around any torch optimiser."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from classgap.checks import InputError, number
from classgap.registry import Float, method


@method(
    "sam",
    kind="optimizer",
    family="sharpness",
    paper="arXiv:2010.01412",
    space={"rho": Float(0.01, 0.5, default=0.05, log=True)},
)
class SAM(Optimizer):
    r"""Sharpness-aware minimisation: the step is taken along the gradient at the worst point nearby.

    .. math:: w \leftarrow w - \eta\,\nabla L\Big(w + \rho\,\frac{g}{\|g\|}\Big), \qquad g = \nabla L(w)

    A step is two passes over the same batch, with the second inside :meth:`perturbed`::

        optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
        criterion(model(x), y).backward()
        with optimizer.perturbed(model, criterion):     # weights at w + ε, running statistics frozen
            criterion(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)        # if wanted: acts on the gradient that is used
        optimizer.step()                                # weights were back at w before this
        optimizer.zero_grad()

    It shares parameter groups and state with the optimiser it wraps, so schedulers and checkpoints of either fit the other.

    - **Mixed precision**: scale both losses, then ``scaler.step(optimizer); scaler.update()`` as always. The perturbation does
      not depend on the scale, so the first gradient needs no unscaling; ``scaler.unscale_(optimizer)`` belongs after the block,
      before clipping. Where the first gradient overflows, weights are not moved and the scaler skips the step as usual.
    - **Several processes**: with the first pass inside ``model.no_sync()`` each process perturbs its weights along its own
      gradient (the paper's choice, one all-reduce per step); without it, all use the common gradient, as one process with the
      whole batch would. In both cases weights are restored exactly, so that all processes have the same weights.
    - **Accumulation**: run all pieces of a batch in the first pass, then all of them inside the block.

    When to use: training from scratch where training may take twice as long; it often improves generalisation and hard classes
    a little.
    Expect: on balanced data a small gain after long training; on long tails the same gain, as it does not use counts.
    Pitfalls: twice the cost; dropout draws a new mask in the second pass.

    Args:
        base: The optimiser that takes the step.
        rho: Radius :math:`\rho`, 0.05 as published; 0 gives ``base`` exactly.
    Reference: Foret et al., *Sharpness-aware minimization for efficiently improving generalization*, ICLR 2021.
    """

    def __init__(self, base: Optimizer, *, rho: float = 0.05) -> None:
        if not isinstance(base, Optimizer):
            raise InputError(f"base must be a torch optimiser, e.g. torch.optim.SGD(model.parameters()), got {base!r}")
        self.base = base
        self.rho = number("rho", rho, low=0.0)
        super().__init__(base.param_groups, base.defaults)
        self._follow()

    def _follow(self) -> None:
        """Share groups and state with the wrapped optimiser, also after it has loaded others."""
        self._share()
        self.base.register_load_state_dict_post_hook(lambda _: self._share())

    def _share(self) -> None:
        self.param_groups, self.state = self.base.param_groups, self.base.state

    @contextlib.contextmanager
    def perturbed(self, *modules: nn.Module) -> Iterator[None]:
        """Within this block weights are at the worst point nearby, and gradients start from zero.

        Args:
            modules: Model and loss. Their running state (BatchNorm and the like) is the same after the block as before: it is
                updated in the first pass, at the real weights.
        """
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        weights = [p.detach().clone() for p in moved]
        self._climb(moved)
        self.zero_grad()
        try:
            with contextlib.ExitStack() as stack:
                for module in modules:
                    stack.enter_context(_state_kept(module))
                yield
        finally:
            with torch.no_grad():
                for parameter, weight in zip(moved, weights, strict=True):
                    parameter.copy_(weight)  # w + ε − ε would round

    @torch.no_grad()
    def _climb(self, parameters: list[nn.Parameter]) -> None:
        if not parameters or not self.rho:
            return
        scales = [self.elementwise_scale(p) for p in parameters]
        gradients = [_gradient(p) for p in parameters]
        device = gradients[0].device
        norms = [(g if s is None else g * s).float().norm().to(device) for g, s in zip(gradients, scales, strict=True)]
        norm = torch.stack(norms).norm()
        # Without a direction, or after an overflow (the gradient scaler then skips the step), weights are not moved.
        factor = torch.where(torch.isfinite(norm) & (norm > 0), self.rho / norm, 0.0)
        for parameter, gradient, scale in zip(parameters, gradients, scales, strict=True):
            step = gradient if scale is None else gradient * scale.square()
            parameter.add_(torch.where(factor > 0, step * factor, 0.0).to(parameter.dtype))

    def elementwise_scale(self, parameter: Tensor) -> Tensor | None:
        """Size of the neighbourhood along each coordinate; the same for all in plain SAM."""
        return None

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step of the wrapped optimiser, from the restored weights."""
        # Lightning hands over a closure that does nothing where the training step does everything itself.
        if closure is not None and getattr(closure, "__name__", "") != "do_nothing_closure":
            raise InputError(
                "SAM takes no closure: run the second pass inside `with optimizer.perturbed(model, criterion):`"
            )
        self.base.step()
        return None

    def state_dict(self) -> dict[str, Any]:
        """State of the wrapped optimiser; SAM has none."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimiser."""
        self.base.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._follow()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rho={self.rho:g}, base={self.base!r})"


@method(
    "asam",
    kind="optimizer",
    family="sharpness",
    paper="arXiv:2102.11600",
    space={"rho": Float(0.1, 5.0, default=0.5, log=True)},
)
class AdaptiveSAM(SAM):
    r"""Sharpness-aware minimisation in a neighbourhood that scales with each weight.

    .. math:: \epsilon = \rho\,\frac{w^2 g}{\big\|\,|w|\,g\,\big\|}

    Rescaling a layer and its successor inversely leaves the step the same, which plain SAM's ball does not.

    When to use: networks with normalisation layers, where weight scales carry no meaning.
    Expect: as SAM, on balanced data and on long tails.
    Pitfalls: as for SAM; the radius is about ten times larger. Weights that are exactly 0 are not perturbed. The authors' code
    scales only parameters called weight; for a form that scales all, as this one, they found 2 better than 0.5 on CIFAR-10.

    Reference: Kwon et al., *ASAM: Adaptive sharpness-aware minimization*, ICML 2021.
    """

    def __init__(self, base: Optimizer, *, rho: float = 0.5) -> None:
        super().__init__(base, rho=rho)

    def elementwise_scale(self, parameter: Tensor) -> Tensor:
        return parameter.detach().abs()


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@contextlib.contextmanager
def _state_kept(module: nn.Module) -> Iterator[None]:
    """Freezes a loss of this package; restores the running statistics of any other module afterwards."""
    frozen = getattr(module, "frozen", None)
    if callable(frozen):
        with frozen(across_ranks=True):
            yield
        return
    saved = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
