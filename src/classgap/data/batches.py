"""Batches of training samples: the same for every number of processes and workers, and from any position on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from classgap.data.augment import Policy
from classgap.data.items import Items
from classgap.data.samples import Split
from classgap.data.workers import in_order
from classgap.samplers import EpochSampler, RepeatSampler

Mix = Callable[[Tensor, Tensor, np.random.Generator], tuple[Tensor, Tensor]]
"""``mix(inputs, labels, rng) -> (mixed inputs, soft targets)``."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The part of a batch that belongs to this process.

    Attributes:
        x: Inputs of the network: those of the samples in ``y``, and of two others where this process has no sample.
        y: Labels, or probabilities where samples were mixed.
        index: Position of each sample in the training set.
        total: Rows of the whole batch, over all processes.
        smallest: Samples of the process that has the fewest, among those that have some.
        views: Views of each sample, one after the other: all rows of the first, then all of the second, …
    """

    x: Tensor
    y: Tensor
    index: Tensor
    total: int
    smallest: int
    views: int = 1

    def pieces(self, count: int) -> Iterator[Batch]:
        """The batch in ``count`` nearly equal parts, as many on every process; all views of a sample are in the same part."""
        count = min(count, self.smallest)
        if count == 1 or not len(self.y):
            yield from [self] * count
            return
        tensors = (self.x, self.y, self.index)
        parts = (t.view(self.views, -1, *t.shape[1:]).tensor_split(count, 1) for t in tensors)
        for x, y, index in zip(*parts, strict=True):
            yield Batch(x.flatten(0, 1), y.flatten(0, 1), index.flatten(0, 1), self.total, self.smallest, self.views)


def mixed_seed(*parts: int) -> int:
    """One well-mixed 63-bit seed out of several small numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def shuffled(count: int, seed: int) -> EpochSampler:
    """Every sample once per epoch, in a random order."""
    return RepeatSampler(torch.ones(count, dtype=torch.long), seed=seed)


class Normalise:
    """uint8 images to standardised floats in the wanted memory layout; floats pass with their values unchanged."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], *, channels_last: bool = False) -> None:
        self.shift = 255 * torch.tensor(mean).view(-1, 1, 1)
        self.scale = 255 * torch.tensor(std).view(-1, 1, 1)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, x: Tensor) -> Tensor:
        """Model input."""
        if x.dim() != 4:
            return x
        floats = x.to(torch.float32, memory_format=self.layout)
        if x.is_floating_point():
            return floats
        return floats.sub_(self.shift.to(x.device)).div_(self.scale.to(x.device))


class Batches:
    """Training batches of one split.

    Everything random is drawn for the whole batch from ``(seed, epoch, step)`` and then cut into the processes' shares, so
    neither resuming in mid-epoch nor another number of processes changes what a sample looks like.

    A last batch of a single sample is left out: BatchNorm cannot use it. Of a last batch with fewer than two samples per process
    the first processes get two or three each, and the others none.

    Args:
        batch: Samples per step over all processes.
        order: Which samples an epoch visits.
        policies: Augmentations of uint8 images.
        view_policies: Augmentations of the second and further views; by default the same.
        views: How many times each sample comes, augmented anew.
        mix: Mixes the samples of each view.
        rank, world: Number of this process and number of processes.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        order: EpochSampler,
        normalise: Normalise,
        policies: tuple[Policy, ...] = (),
        view_policies: tuple[Policy, ...] | None = None,
        views: int = 1,
        mix: Mix | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.split, self.batch, self.order, self.normalise = split, batch, order, normalise
        self.policies, self.views, self.mix = policies, views, mix
        self.view_policies = policies if view_policies is None else view_policies
        self.seed, self.rank, self.world = seed, rank, world
        self.others: tuple[Tensor, tuple[Policy, ...]] | None = None

    def augment_classes(self, classes: Tensor, policies: tuple[Policy, ...]) -> None:
        """Augment the samples of these classes, a mask (K,), by other policies, in all views."""
        self.others = classes[self.split.y.cpu()], policies

    def steps(self, epoch: int = 0) -> int:
        """Batches in an epoch."""
        return self._count(self.order.length(epoch))

    def _count(self, samples: int) -> int:
        full, tail = divmod(samples, self.batch)
        return full + (tail >= 2)

    @property
    def augmented(self) -> bool:
        """Whether a sample looks different each time."""
        changed = self.policies or (self.view_policies and self.views > 1) or (self.others and self.others[1])
        return bool(changed) or getattr(self.split.x, "random", False)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from step ``start`` on."""
        order = self.order(epoch)
        policies = (self.policies, *[self.view_policies] * (self.views - 1))
        draws = _Draws(self.split.x, order, self.batch, policies, self._made, self.seed, epoch, self.others)
        steps = range(start, self._count(len(order)))
        for step, views in zip(steps, in_order(draws, steps, self.split.workers), strict=True):
            yield self._finish(draws.index(step), views, draws.seed_of(step) if self.mix else 0)

    @property
    def _made(self) -> tuple[int, int]:
        """Process and number of processes for which samples are made here.

        Partners in a mixture may belong to another process, so then the whole batch is made, and this process keeps its part.
        """
        return (0, 1) if self.mix else (self.rank, self.world)

    def _finish(self, index: Tensor, pixels: list[Tensor], seed: int) -> Batch:
        device, count = self.split.y.device, len(index)
        rows = index[input_rows(count, *self._made)].to(device)
        views = [(self.normalise(x.to(device)), self.split.y.index_select(0, rows)) for x in pixels]
        if self.mix:
            rng, share = np.random.default_rng(mixed_seed(seed, 3)), input_rows(count, self.rank, self.world)
            mixed = [self.mix(x, y, rng) for x, y in views]
            views, rows = [(x[share], y[share]) for x, y in mixed], rows[share]
        if not len(range(count)[share_of(count, self.rank, self.world)]):
            views, rows = [(x, y[:0]) for x, y in views], rows[:0]
        smallest = count // sharing(count, self.world)
        if self.views == 1:
            return Batch(*views[0], rows, count, smallest)
        x, y = (torch.cat(parts) for parts in zip(*views, strict=True))
        return Batch(x, y, rows.repeat(self.views), self.views * count, smallest, self.views)


def sharing(count: int, world: int) -> int:
    """How many of ``world`` processes have samples of a batch of ``count``: at least two each."""
    return max(1, min(world, count // 2))


def share_of(count: int, rank: int, world: int) -> slice:
    """What process ``rank`` of ``world`` has of a batch of ``count`` samples."""
    world = sharing(count, world)
    return slice(*(math.ceil(count * min(number, world) / world) for number in (rank, rank + 1)))


def input_rows(count: int, rank: int, world: int) -> slice:
    """The samples whose inputs process ``rank`` passes through the network: its share, or the first two if it has none.

    All processes must run the network, since they exchange gradients, and BatchNorm needs two rows.
    """
    share = share_of(count, rank, world)
    return share if share.start < share.stop else slice(0, 2)


@dataclass(frozen=True, eq=False)
class _Draws:
    """The augmented samples of a step: what worker processes make, a function of the seed, the epoch and the step."""

    x: Tensor | Items
    order: Tensor
    batch: int
    policies: tuple[tuple[Policy, ...], ...]  # of each view
    made: tuple[int, int]
    seed: int
    epoch: int
    others: tuple[Tensor, tuple[Policy, ...]] | None = None  # a mask of samples, and what they are augmented by

    def index(self, step: int) -> Tensor:
        """Samples of the whole batch."""
        return self.order[step * self.batch : (step + 1) * self.batch]

    def seed_of(self, step: int) -> int:
        return mixed_seed(self.seed, self.epoch, step, 1)

    def __call__(self, step: int) -> list[Tensor]:
        """Each view of the samples that are made here."""
        index = self.index(step)
        made = input_rows(len(index), *self.made)
        rows = index[made]
        if isinstance(self.x, Tensor) and not any(self.policies) and self.others is None:  # nothing is random
            return [self.x.index_select(0, rows.to(self.x.device))] * len(self.policies)
        generator = torch.Generator().manual_seed(self.seed_of(step))
        shape = len(self.policies), len(index)
        longest = max(map(len, (*self.policies, () if self.others is None else self.others[1])))
        uniform = torch.rand(*shape, longest, 2, generator=generator, dtype=torch.float64)
        seeds = None
        if not isinstance(self.x, Tensor) and self.x.random:
            seeds = torch.randint(2**63 - 1, shape, generator=generator)
        return [
            self._view(rows, policies, uniform[view, made], None if seeds is None else seeds[view, made])
            for view, policies in enumerate(self.policies)
        ]

    def _view(self, rows: Tensor, policies: Sequence[Policy], uniform: Tensor, seeds: Tensor | None) -> Tensor:
        if isinstance(self.x, Tensor):
            x = self.x[rows.to(self.x.device)]
        else:
            x = self.x.batch(rows.tolist(), None if seeds is None else seeds.tolist())
        if self.others is None:
            return _augmented(x, policies, uniform)
        chosen = self.others[0][rows]
        made = x.clone()
        for mask, own in ((~chosen, policies), (chosen, self.others[1])):
            if mask.any():
                made[mask.to(x.device)] = _augmented(x[mask.to(x.device)], own, uniform[mask])
        return made


def _augmented(x: Tensor, policies: Sequence[Policy], uniform: Tensor) -> Tensor:
    for position, policy in enumerate(policies):
        x = policy(x, uniform[:, position])
    return x
