"""Which samples an epoch visits. Every sampler is a function of the epoch, and a ``torch.utils.data.Sampler``.

    sampler = ClassBalancedSampler(labels, seed=0)
    sampler(3)                          # indices of epoch 3, the same on every process
    DataLoader(data, sampler=sampler)   # this process's share of them; call sampler.set_epoch(e) before each epoch

All processes make the same global draw from ``(seed, epoch)`` and take disjoint, equally long shares of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from classgap.batchstats.collectives import rank_and_world
from classgap.checks import InputError, as_numpy, whole
from classgap.registry import Int, method


# Dataclasses, so that a sampler names its own parameters only and still has a signature that shows all of them.
@dataclass(eq=False, repr=False, kw_only=True)
class EpochSampler(Sampler[int]):
    """Base of all samplers: a subclass draws the samples of an epoch, and this class divides them among the processes.

    Args:
        seed: Random seed of all draws.
        rank, world_size: Number of this process and number of processes; those of ``torch.distributed`` by default.
    """

    seed: int = 0
    rank: int | None = None
    world_size: int | None = None

    block = 1
    """Consecutive indices that stay together on one process."""

    def __post_init__(self) -> None:
        here, world = rank_and_world()
        self._rank = here if self.rank is None else self.rank
        self._world = world if self.world_size is None else self.world_size
        if not 0 <= self._rank < self._world:
            raise InputError(f"rank must be in [0, {self._world}), the number of processes, got {self._rank}")
        self.epoch, self.position = 0, 0

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Indices visited in ``epoch``, over all processes."""
        raise NotImplementedError

    def length(self, epoch: int) -> int:
        """How many :meth:`draw` gives."""
        raise NotImplementedError

    def __call__(self, epoch: int) -> Tensor:
        """Indices visited in ``epoch``, over all processes; depends on nothing but the seed and the epoch."""
        seed = int(np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)[0] >> 1)
        return self.draw(epoch, torch.Generator().manual_seed(seed))

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Prepare the next iteration.

        Args:
            position: Samples of this process already used in this epoch, to resume after them.
        """
        self.epoch, self.position = epoch, position

    def __len__(self) -> int:
        return self._blocks() * self.block - self.position

    def __iter__(self) -> Iterator[int]:
        order = self(self.epoch)
        wanted = self._blocks() * self.block * self._world
        # The draw is repeated from its start until shares are equal: processes must take equally many steps.
        order = order.repeat(math.ceil(wanted / len(order)))[:wanted]
        mine = order.view(-1, self.block)[self._rank :: self._world].flatten()[self.position :]
        self.position = 0
        yield from mine.tolist()

    def _blocks(self) -> int:
        return math.ceil(self.length(self.epoch) / (self.block * self._world))


@dataclass(eq=False, repr=False, kw_only=True)
class RepeatSampler(EpochSampler):
    """Sample ``i`` exactly ``repeats[i]`` times per epoch, in random order.

    Example:
        >>> sorted(RepeatSampler([1, 0, 3])(epoch=0).tolist())
        [0, 2, 2, 2]
    """

    repeats: Sequence[int] | Tensor = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._repeats = torch.as_tensor(self.repeats)
        if self._repeats.dim() != 1 or self._repeats.is_floating_point() or bool((self._repeats < 0).any()):
            raise InputError("repeats must be one whole number of at least 0 for each sample")
        if not int(self._repeats.sum()):
            raise InputError("repeats must hold at least one sample, got only zeros")

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        visits = torch.repeat_interleave(self._repeats)
        return visits[torch.randperm(len(visits), generator=generator)]

    def length(self, epoch: int) -> int:
        return int(self._repeats.sum())


def error_repeats(wrong: Tensor, factor: int) -> Tensor:
    """How often an epoch of "just train twice" visits each sample: ``1 + factor`` times where the first model was wrong.

    Args:
        wrong: :math:`(N,)` of bools: errors of the first model on its training data, in evaluation mode.
        factor: Copies added of each error. The authors' code appends them to the full set, hence the 1.
    Example:
        >>> error_repeats(torch.tensor([False, True]), 5)
        tensor([1, 6])

    Reference: Liu et al., *Just train twice*, ICML 2021, arXiv:2107.09044.
    """
    factor = whole("factor", factor, low=0)
    return 1 + factor * wrong.long()


@dataclass(eq=False, repr=False, kw_only=True)
class LabelSampler(EpochSampler):
    """Base of samplers that use labels. Before ``start_epoch`` every sample is visited once (deferred re-sampling).

    Args:
        labels: Class of each training sample. Classes that do not occur are left out.
        start_epoch: First (0-based) epoch that is re-sampled.
    """

    labels: Sequence[int] | Tensor = field(kw_only=False)
    start_epoch: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        given = as_numpy(self.labels, "labels")
        if given.ndim != 1 or given.dtype.kind not in "iub" or not len(given):
            raise InputError(
                f"labels must be one class index for each sample, got {given.dtype} of shape {given.shape}"
            )
        labels = torch.from_numpy(given.astype(np.int64))
        self.start_epoch = whole("start_epoch", self.start_epoch, low=0)
        self.num_samples = len(labels)
        self.members = torch.argsort(labels, stable=True)
        self.counts: Tensor = torch.unique(labels, return_counts=True)[1]
        self.starts = self.counts.cumsum(0) - self.counts

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        if epoch < self.start_epoch:
            return torch.randperm(self.num_samples, generator=generator)
        return self.resample(epoch, generator)

    def length(self, epoch: int) -> int:
        return self.num_samples if epoch < self.start_epoch else self.resampled_length()

    def resample(self, epoch: int, generator: torch.Generator) -> Tensor:
        """The draw from ``start_epoch`` on."""
        raise NotImplementedError

    def resampled_length(self) -> int:
        """Its length; that of the data unless a sampler says otherwise."""
        return self.num_samples

    def cycles(self, draws: int, group: int, generator: torch.Generator) -> Tensor:
        """For each class ``draws`` of its samples, ``(K, draws)``: shuffles of the class, one after the other.

        Each run of ``group`` draws holds distinct samples where the class has that many: a shuffle ends early
        rather than share a run with the next shuffle.
        """
        used = torch.where(self.counts >= group, self.counts // group * group, self.counts)
        rounds = torch.div(draws + used - 1, used, rounding_mode="floor")
        # One entry for each class, round and sample; sorting by round plus noise shuffles within rounds.
        size = torch.repeat_interleave(self.counts, rounds)
        owner = torch.repeat_interleave(torch.arange(len(self.counts)), rounds)
        segment = torch.repeat_interleave(torch.arange(len(size)), size)
        first_entry = (size.cumsum(0) - size)[segment]
        place = torch.arange(len(segment)) - first_entry
        first_round = (rounds.cumsum(0) - rounds)[owner[segment]]
        noise = torch.rand(len(segment), generator=generator, dtype=torch.float64)
        shuffled = torch.argsort(segment + noise) - first_entry
        kind = owner[segment]
        turn = (segment - first_round) * used[kind] + place
        kept = (place < used[kind]) & (turn < draws)
        table = torch.empty(len(self.counts), draws, dtype=torch.long)
        table[kind[kept], turn[kept]] = self.members[self.starts[kind[kept]] + shuffled[kept]]
        return table


class _ProbabilitySampler(LabelSampler):
    """With replacement: first a class by its probability, then one of its samples."""

    def class_probabilities(self, epoch: int) -> Tensor:
        """:math:`p_k` over the classes that occur."""
        raise NotImplementedError

    def resample(self, epoch: int, generator: torch.Generator) -> Tensor:
        kinds = torch.multinomial(self.class_probabilities(epoch), self.num_samples, True, generator=generator)
        within = torch.rand(self.num_samples, generator=generator, dtype=torch.float64) * self.counts[kinds]
        return self.members[self.starts[kinds] + within.long()]


@method("class_balanced", kind="sampler", family="sampler", paper="arXiv:1910.09217", needs=())
class ClassBalancedSampler(_ProbabilitySampler):
    r"""Every class equally often, :math:`p_k = 1/K`, with replacement.

    A class is drawn first and then one of its samples, so an epoch is as long as the data set and rare samples repeat.

    When to use: re-training a classifier on frozen features (cRT), or late in training (``start_epoch``).
    Expect: on balanced data nothing but a draw with replacement, so that an epoch misses a third of the samples; on
    long tails a gain for rare and a loss for frequent classes, smaller than with the same balance in the loss.
    Pitfalls: samples of rare classes repeat many times per epoch, so a whole network trained this way memorises them.
    """

    def class_probabilities(self, epoch: int) -> Tensor:
        return torch.ones(len(self.counts), dtype=torch.float64)


@method("square_root", kind="sampler", family="sampler", paper="arXiv:1910.09217", needs=())
class SquareRootSampler(_ProbabilitySampler):
    r"""Classes by the square root of their size, :math:`p_k \propto \sqrt{n_k}`, with replacement.

    A class with ten times as many samples is drawn only three times as often.

    When to use: a middle way between the natural and the balanced distribution.
    Expect: on balanced data as for ``class_balanced``; on long tails about half of its shift.
    Pitfalls: as for balanced sampling, at half the strength.
    """

    def class_probabilities(self, epoch: int) -> Tensor:
        return self.counts.double() ** 0.5


@method(
    "progressive",
    kind="sampler",
    family="sampler",
    paper="arXiv:1910.09217",
    space={"epochs": Int(1, 1000, default=200, log=True)},
)
@dataclass(eq=False, repr=False, kw_only=True)
class ProgressiveSampler(_ProbabilitySampler):
    r"""From the natural to the balanced distribution, :math:`p_k = (1-t)\,n_k/N + t/K` with :math:`t = e/E`.

    Early epochs are close to plain ones, the last ones visit every class equally often; with replacement.

    When to use: one run that learns features first and boundaries last.
    Expect: on balanced data as for ``class_balanced``; on long tails between natural and balanced sampling, in the
    paper slightly better than either.
    Pitfalls: it needs the length of the run.

    Args:
        epochs: Length :math:`E` of the run.
    """

    epochs: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epochs = whole("epochs", self.epochs, low=1)

    def class_probabilities(self, epoch: int) -> Tensor:
        balance = min(1.0, epoch / self.epochs)
        natural = self.counts.double() / self.num_samples
        return natural.lerp(torch.full_like(natural, 1 / len(self.counts)), balance)


@method(
    "class_aware",
    kind="sampler",
    family="sampler",
    paper="arXiv:1904.05160",
    space={"samples": Int(1, 16, default=4)},
)
@dataclass(eq=False, repr=False, kw_only=True)
class ClassAwareSampler(LabelSampler):
    """Class after class in random order, a few samples of each, until the largest class has been seen once.

    Within a class samples come in shuffled cycles, so all are used equally often, unlike in a draw with replacement.

    When to use: cRT and other second stages, as in OLTR and the decoupling paper.
    Expect: on balanced data an ordinary epoch in another order; on long tails as ``class_balanced``, in epochs that
    are many times longer.
    Pitfalls: an epoch has (largest class) × K samples, on a long tail many times the size of the data set.

    Args:
        samples: Samples of a class drawn in a row.
    """

    samples: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.samples = whole("samples", self.samples, low=1)

    def resampled_length(self) -> int:
        return int(self.counts.max()) * len(self.counts)

    def resample(self, epoch: int, generator: torch.Generator) -> Tensor:
        visits, kinds = math.ceil(int(self.counts.max()) / self.samples), len(self.counts)
        table = self.cycles(visits * self.samples, 1, generator).view(kinds, visits, self.samples)
        turn = torch.rand(visits, kinds, generator=generator).argsort(1)
        return table[turn, torch.arange(visits)[:, None]].flatten()[: self.resampled_length()]


@method(
    "p_by_q",
    kind="sampler",
    family="sampler",
    paper="arXiv:1703.07737",
    space={"classes": Int(2, 128, default=32), "samples": Int(2, 16, default=4)},
)
@dataclass(eq=False, repr=False, kw_only=True)
class PByQSampler(LabelSampler):
    """Batches of P classes with Q samples each, so that every sample has partners of its class in the batch.

    Classes take turns, all equally often; samples of a class come in shuffled cycles and are distinct within a batch where
    the class has enough of them. Use with batches of P · Q samples.

    When to use: losses on pairs (MR², compact logits, ELM, range, contrasts) when a random batch rarely holds two samples of a
    class.
    Expect: on balanced data more pairs for every loss that needs them; on long tails in addition the effect of
    ``class_balanced``.
    Pitfalls: it balances the classes as well, which by itself changes the result; compare with a baseline sampled alike.

    Args:
        classes: P, at most the number of classes.
        samples: Q.
    """

    classes: int = 32
    samples: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classes = whole("classes", self.classes, low=1)
        self.samples = whole("samples", self.samples, low=1)
        if self.classes > len(self.counts):
            raise InputError(f"classes must be at most {len(self.counts)}, the classes in the data, got {self.classes}")
        self.block = self.classes * self.samples

    def resampled_length(self) -> int:
        return math.ceil(self.num_samples / self.block) * self.block

    def resample(self, epoch: int, generator: torch.Generator) -> Tensor:
        batches = self.resampled_length() // self.block
        per_turn = (
            len(self.counts) // self.classes
        )  # batches with distinct classes that a turn through all of them fills
        turns = math.ceil(batches / per_turn)
        kinds = torch.rand(turns, len(self.counts), generator=generator).argsort(1)[:, : per_turn * self.classes]
        table = self.cycles(turns * self.samples, self.samples, generator).view(-1, turns, self.samples)
        return table[kinds, torch.arange(turns)[:, None]].flatten()[: self.resampled_length()]
