"""From a source to training, validation and test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from classgap.checks import InputError, number
from classgap.data.sources import Array, Source, load_source
from classgap.data.splits import Profile, choose, hold_out, profile_counts, split_hash


@dataclass(frozen=True, eq=False)
class Split:
    """Samples (uint8 images or float vectors) and labels, in memory."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Split:
        """The split on that device; it is small enough to be there as a whole."""
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The three sets of a run. ``val`` is taken from the training part of the source, never from its test part.

    Attributes:
        val: ``None`` where no validation fraction was asked for.
        augment: Names of the augmentations to use.
        split_hash: Changes when any member of any set changes; two runs are comparable when it agrees.
    """

    name: str
    train: Split
    val: Split | None
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: tuple[str, ...]
    split_hash: str

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def class_counts(self) -> Tensor:
        """Training samples of each class."""
        return torch.bincount(self.train.y, minlength=self.num_classes)


def load_data(
    name: str,
    *,
    per_class: int | None = None,
    profile: Profile = "balanced",
    imbalance: float = 1.0,
    val_fraction: float = 0.1,
    augment: Sequence[str] | None = None,
    seed: int = 0,
) -> TrainingData:
    """The sets of a run.

    The validation split is taken first, with the same share of every class; the rest is reduced to ``per_class`` samples per
    class or to a long-tail profile. ``val_fraction=0`` gives the published long-tail totals.

    Args:
        name: See :func:`~classgap.data.load_source`.
        per_class: Training samples per class (of the largest class, under a profile); all of them by default.
        profile: ``"balanced"`` keeps the source's distribution.
        imbalance: Largest over smallest class under a profile.
        augment: Names of augmentations, in order; by default the usual ones of the source.
        seed: Random seed of the splits; independent of the seed of the training, so that runs with other seeds use the same data.
    Example:
        >>> data = load_data("digits", per_class=20)
        >>> len(data.train), len(data.val), len(data.test), data.split_hash
        (200, 79, 1000, '4f7a620f2c40')
    """
    source = load_source(name)
    augment = source.augment if augment is None else tuple(augment)
    if augment and not source.is_images:
        raise InputError(
            f"data.augment={','.join(augment)} needs images, but {name} holds vectors; set data.augment=none"
        )
    rest, held = hold_out(source.y_train, len(source.class_names), val_fraction, seed)
    kept = _thin(source, rest, per_class, profile, imbalance, seed)
    return TrainingData(
        name=name,
        train=_split(source.x_train[kept], source.y_train[kept]),
        val=_split(source.x_train[held], source.y_train[held]) if len(held) else None,
        test=_split(source.x_test, source.y_test),
        class_names=source.class_names,
        mean=source.mean,
        std=source.std,
        augment=augment,
        split_hash=split_hash(kept, held, source.y_train, source.y_test),
    )


def _thin(source: Source, pool: Array, per_class: int | None, profile: Profile, imbalance: float, seed: int) -> Array:
    if per_class is not None:
        number("data.per_class", per_class, low=1)
    available = np.bincount(source.y_train[pool], minlength=len(source.class_names))
    n_max = int(available.min()) if per_class is None else per_class
    counts = profile_counts(len(available), n_max, profile, imbalance)
    if profile == "balanced" and per_class is None:
        return pool
    return choose(source.y_train, pool, counts, seed)


def _split(x: Array, y: Array) -> Split:
    return Split(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y))
