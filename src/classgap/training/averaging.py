"""Averages of the weights over the steps of a training: exponential (EMA) and equal (SWA).

References: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992; Izmailov et al., *Averaging weights
leads to wider optima and better generalization*, UAI 2018, arXiv:1803.05407.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from classgap.batchstats import all_reduce_sum
from classgap.checks import whole
from classgap.data import Batch
from classgap.training.average_config import AverageConfig

_Norm = nn.modules.batchnorm._BatchNorm


class WeightAverage:
    """The average of everything that training changes: weights, running statistics, and parameters of the loss.

    Statistics of batch normalisation do not follow from averaged weights; :meth:`finish` measures them anew.

    Args:
        modules: What is averaged, by name.
    Attributes:
        count: Number of weights in the average.
        values: The averages, by the name of the module and of its tensor, in single precision or better.
    """

    def __init__(self, config: AverageConfig, modules: dict[str, nn.Module]) -> None:
        self.config, self.modules, self.count = config, modules, 0
        live = {f"{part}.{name}": tensor for part, name, tensor in _tensors(modules) if tensor.is_floating_point()}
        self.values = {name: t.to(torch.promote_types(t.dtype, torch.float32), copy=True) for name, t in live.items()}

    def update(self, done: int, steps: int, *, epoch_ends: bool) -> None:
        """Add the present weights after ``done`` of ``steps`` optimiser steps, if they belong to the average."""
        if done <= self.config.from_share * steps or (self.config.every == "epoch" and not epoch_ends):
            return
        self.count += 1
        share = newest_share(self.config, self.count, steps)
        live = {f"{part}.{name}": tensor for part, name, tensor in _tensors(self.modules)}
        mean = list(self.values.values())
        new = [live[name].to(value.dtype) for name, value in self.values.items()]
        torch._foreach_lerp_(mean, new, share)

    def finish(self, fabric: Fabric, batches: Iterable[Batch], pieces: int, *, norms: bool) -> None:
        """Measure the statistics of batch normalisation under the averaged weights on training data. Every process calls this.

        As ``torch.optim.swa_utils.update_bn`` does, except that dropout and the like are off, as they are when the network is
        used, so that no random number is drawn.

        Args:
            norms: Whether training changed the statistics; if not, they stay.
        """
        layers = [m for m in self.modules["model"].modules() if isinstance(m, _Norm) and m.running_mean is not None]
        if not (norms and layers and self.count):
            return
        with self.applied():
            _measure_norms(fabric, self.modules["model"], layers, batches, pieces)
            for part, name, tensor in _tensors(self.modules):
                if name.endswith(("running_mean", "running_var")):
                    self.values[f"{part}.{name}"].copy_(tensor)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within this block the modules have the averaged weights; afterwards those of before."""
        before = {f"{part}.{name}": tensor.clone() for part, name, tensor in _tensors(self.modules)}
        self.apply()
        try:
            yield
        finally:
            self._copy(before)

    def apply(self) -> None:
        """Give the averaged weights to the modules, if there is an average."""
        if self.count:
            self._copy(self.values)

    @torch.no_grad()
    def _copy(self, values: dict[str, Tensor]) -> None:
        for part, name, tensor in _tensors(self.modules):
            if (key := f"{part}.{name}") in values:
                tensor.copy_(values[key])

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"count": self.count, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        if state["values"].keys() != self.values.keys():
            raise ValueError("it averages other weights")
        for name, value in self.values.items():
            saved = state["values"][name]
            if (value.shape, value.dtype) != (saved.shape, saved.dtype):
                raise ValueError(f"the average of {name} has shape {tuple(saved.shape)} and type {saved.dtype}")
            value.copy_(saved)
        self.count = whole("count of the average", state["count"], low=0)


def newest_share(config: AverageConfig, count: int, steps: int) -> float:
    r"""Share of the newest weights in the average of ``count``.

    Equal for SWA. For EMA :math:`(1 - d) / (1 - d^{count})`: exponential weights that sum to one from the first step on, so the
    weights that training started from are no part of the average.

    Example:
        >>> [round(newest_share(AverageConfig("ema", decay=0.5), count, 10), 3) for count in (1, 2, 3)]
        [1.0, 0.667, 0.571]
        >>> [newest_share(AverageConfig("swa"), count, 10) for count in (1, 2, 4)]
        [1.0, 0.5, 0.25]
    """
    if config.name == "swa":
        return 1 / count
    decay = config.decay_for(steps)
    return (1 - decay) / (1 - decay**count)


def without_effect(config: AverageConfig, steps_until: Sequence[int]) -> str | None:
    """A sentence where the average of a run holds the last weights alone; ``steps_until`` are the steps before each epoch.

    Example:
        >>> without_effect(AverageConfig("swa", every="epoch"), [0, 5, 10, 15])
        'average=swa averages nothing: the training is so short that it holds the last weights alone; lower average.start'
        >>> without_effect(AverageConfig("swa"), [0, 5, 10, 15])
    """
    steps = steps_until[-1]
    ends = steps_until[1:] if config.every == "epoch" else range(1, steps + 1)
    alone = sum(end > config.from_share * steps for end in ends) <= 1
    if config.name == "ema" and not alone:
        alone, way_out = config.decay_for(steps) == 0, "set average.decay, or raise average.horizon"
    else:
        way_out = "lower average.start"
    if not alone:
        return None
    return f"average={config.name} averages nothing: the training is so short that it holds the last weights alone; {way_out}"


def sentence(config: AverageConfig, steps: int) -> str:
    """What is averaged, for the user."""
    if config.name == "swa":
        what = f"equal average of the weights after each {config.every} from {config.from_share:.0%} of the training on"
    else:
        what = f"exponential average of the weights with decay {config.decay_for(steps):.6g} per step"
    return (
        f"average: {config.name}, {what}; predictions and the saved network are those of the averaged network, validation during "
        "training measures the network in training"
    )


@torch.no_grad()
def _measure_norms(
    fabric: Fabric, model: nn.Module, layers: list[_Norm], batches: Iterable[Batch], pieces: int
) -> None:
    """Replace running statistics by the mean over these batches."""
    was_training, network = model.training, getattr(model, "module", model)
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # an equal mean over all batches
    seen = 0
    for batch in batches:
        for piece in batch.pieces(pieces):
            if len(piece.y):
                seen += 1
                # Not through DistributedDataParallel, which would replace the statistics by those of the first process.
                with fabric.autocast():
                    network(fabric.strategy.precision.convert_input(piece.x))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        assert layer.running_mean is not None
        assert layer.running_var is not None
        number = layer.running_mean.new_tensor(float(seen))
        mean, var, total = all_reduce_sum(seen * layer.running_mean, seen * layer.running_var, number)
        layer.running_mean.copy_(mean / total)
        layer.running_var.copy_(var / total)
    model.train(was_training)


def _tensors(modules: dict[str, nn.Module]) -> Iterator[tuple[str, str, Tensor]]:
    """Every weight and statistic of the model, and what the loss learns: (module, name, tensor)."""
    for part, module in modules.items():
        learned = {name for name, _ in module.named_parameters()}
        for name, tensor in module.state_dict().items():
            if part == "model" or name in learned:
                yield part, name, tensor
