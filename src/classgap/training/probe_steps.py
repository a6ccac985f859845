"""Many linear heads as one stack of matrices, and SGD and AdamW on it with a learning rate for each head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgap.heads import LIMITS, CosineHead
from classgap.training.config import OptimConfig

_ADAM_EPS = 1e-8  # of torch


@dataclass(frozen=True, eq=False)
class Heads:
    """Weights (G, K, d) and biases (G, K) of linear layers, or weights and the logarithm of the scale (G,) of cosine heads."""

    weight: Tensor
    bias: Tensor | None
    cosine: bool
    fixed_scale: Tensor | None = None
    log_scale: Tensor | None = None

    @property
    def parameters(self) -> list[Tensor]:
        """What is trained."""
        return [p for p in (self.weight, self.bias, self.log_scale) if p is not None]

    def features(self, x: Tensor) -> Tensor:
        """Features as the heads see them."""
        return F.normalize(x, dim=-1) if self.cosine else x

    def logits(self, x: Tensor) -> Tensor:
        """(G, N, K) of inputs (S, N, d), in one product for each of the S seeds; consecutive heads have the same seed."""
        (seeds, samples, width), classes = x.shape, self.weight.shape[1]
        rows = F.normalize(self.weight, dim=-1) if self.cosine else self.weight
        bias = [None] * seeds if self.bias is None else self.bias.view(seeds, -1)
        products = [
            F.linear(*each) for each in zip(self.features(x), rows.reshape(seeds, -1, width), bias, strict=True)
        ]
        found = torch.stack(products).view(seeds, samples, -1, classes).transpose(1, 2).flatten(0, 1)
        scale = self.fixed_scale
        if self.log_scale is not None:
            with torch.no_grad():  # as CosineHead does
                self.log_scale.clamp_(*LIMITS)
            scale = self.log_scale.exp()
        return found if scale is None else found * scale.view(-1, 1, 1)

    def weights(self, place: int, cosine_scale: float) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the linear layer behind the scores of one head."""
        weight = self.weight[place].detach()
        if not self.cosine:
            return weight, None if self.bias is None else self.bias[place].detach()
        scale = self.log_scale[place].detach().exp() if self.log_scale is not None else torch.tensor(1.0)
        if self.fixed_scale is not None:
            scale = self.fixed_scale[place]
        return F.normalize(weight, dim=-1) * scale * cosine_scale, None


def stack_heads(models: Sequence[nn.Module]) -> Heads:
    """The last layers of networks that consist of nothing else."""
    heads: list[Any] = [model.head for model in models]

    def stacked(name: str) -> Tensor | None:
        tensors = [tensor.detach() for head in heads if (tensor := getattr(head, name, None)) is not None]
        return torch.stack(tensors) if tensors else None

    weight = stacked("weight")
    assert weight is not None
    cosine = isinstance(heads[0], CosineHead)
    found = Heads(weight, stacked("bias"), cosine, stacked("fixed_scale"), stacked("logit_scale"))
    for parameter in found.parameters:
        parameter.requires_grad_()
    return found


class HeadOptimizer:
    """SGD or AdamW as torch has them, with a learning rate and a weight decay for each head."""

    def __init__(self, config: OptimConfig, parameters: Sequence[Tensor], points: Sequence[Mapping[str, Any]]) -> None:
        self.config, self.parameters, self.count = config, list(parameters), 0
        self.rate = torch.tensor([float(point["lr"]) for point in points])
        self.decay = torch.tensor([float(point["weight_decay"]) for point in points])
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters] if config.name == "adamw" else []

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], factor: float) -> None:
        """One step at ``factor`` times the full learning rates."""
        self.count += 1
        for place, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            shape = (-1, *[1] * (parameter.dim() - 1))
            # A scale is never decayed, a bias unless the configuration spares vectors; both have one dimension less.
            spared = parameter.dim() == 1 or (parameter.dim() == 2 and not self.config.decay_norms)
            decay = torch.zeros(()) if spared else self.decay.view(shape)
            rate = (factor * self.rate).view(shape)
            if self.config.name == "adamw":
                self._adamw(place, parameter, gradient, rate, decay)
            else:
                self._sgd(place, parameter, gradient, rate, decay)

    def _sgd(self, place: int, parameter: Tensor, gradient: Tensor, rate: Tensor, decay: Tensor) -> None:
        direction = gradient.addcmul(decay, parameter)
        if momentum := self.config.momentum:
            buffer = self.first[place].mul_(momentum).add_(direction)
            direction = direction + momentum * buffer if self.config.nesterov else buffer
        parameter.addcmul_(rate, direction, value=-1)

    def _adamw(self, place: int, parameter: Tensor, gradient: Tensor, rate: Tensor, decay: Tensor) -> None:
        one, two = self.config.betas
        parameter.mul_(1 - rate * decay)
        mean = self.first[place].lerp_(gradient, 1 - one)
        square = self.second[place].mul_(two).addcmul_(gradient, gradient, value=1 - two)
        size = square.sqrt().div_((1 - two**self.count) ** 0.5).add_(_ADAM_EPS)
        parameter.sub_(rate / (1 - one**self.count) * mean / size)
