"""Batches out of tensors in memory: the same for every number of processes, and from any position on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from classgap.data.augment import Policy
from classgap.data.dataset import Split

Order = Callable[[int], Tensor]
"""Which samples epoch ``e`` visits, in which order: ``order(e) -> indices``. Samplers are such functions."""


@dataclass(frozen=True, eq=False)
class Batch:
    """This process's share of a batch.

    Attributes:
        index: Position of each sample in the training set.
        total: Samples in the whole batch, over all processes.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    total: int


def mixed_seed(*parts: int) -> int:
    """One well-mixed 63-bit seed out of several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def shuffled(count: int, seed: int) -> Order:
    """Every sample once an epoch, in a random order."""

    def order(epoch: int) -> Tensor:
        return torch.randperm(count, generator=torch.Generator().manual_seed(mixed_seed(seed, epoch)))

    return order


class Normalise:
    """uint8 images to standardised floats in the wanted memory layout; vectors pass unchanged."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], *, channels_last: bool = False) -> None:
        self.shift = 255 * torch.tensor(mean).view(-1, 1, 1)
        self.scale = 255 * torch.tensor(std).view(-1, 1, 1)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, x: Tensor) -> Tensor:
        """Model input."""
        if x.dim() != 4:
            return x
        floats = x.to(torch.float32, memory_format=self.layout)
        return floats.sub_(self.shift.to(x.device)).div_(self.scale.to(x.device))


class Batches:
    """Training batches of one split.

    Everything random is drawn for the whole batch from ``(seed, epoch, step)`` and then cut into the processes' shares, so
    neither resuming in mid-epoch nor another number of processes changes what a sample looks like.

    A last batch of fewer than two samples a process is left out: BatchNorm cannot use it.

    Args:
        batch: Samples per step over all processes.
        order: Which samples an epoch visits.
        policies: Augmentations of uint8 images.
        rank, world: This process among how many.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        order: Order,
        normalise: Normalise,
        policies: tuple[Policy, ...] = (),
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.split, self.batch, self.order, self.normalise = split, batch, order, normalise
        self.policies, self.seed, self.rank, self.world = policies, seed, rank, world

    def steps(self, epoch: int = 0) -> int:
        """Batches in an epoch."""
        return self._count(len(self.order(epoch)))

    def _count(self, samples: int) -> int:
        full, tail = divmod(samples, self.batch)
        return full + (tail >= 2 * self.world)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from step ``start`` on."""
        order = self.order(epoch)
        for step in range(start, self._count(len(order))):
            index = order[step * self.batch : (step + 1) * self.batch]
            yield self._make(index, mixed_seed(self.seed, epoch, step, 1))

    def _make(self, index: Tensor, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(len(index), len(self.policies), 2, generator=generator, dtype=torch.float64)
        share = slice(
            math.ceil(len(index) * self.rank / self.world), math.ceil(len(index) * (self.rank + 1) / self.world)
        )
        mine = index[share].to(self.split.x.device)
        x = self.split.x[mine]
        for position, policy in enumerate(self.policies):
            x = policy(x, uniform[share, position])
        return Batch(self.normalise(x), self.split.y[mine], mine, len(index))
