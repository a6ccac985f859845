"""What a data set consists of: samples in memory or to be read, labels, and what is usual for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.checks import InputError, fraction, number, one_of, whole
from classgap.data.splits import Profile

Array = NDArray[Any]


class Items(Protocol):
    """Samples that are read when they are needed.

    Attributes:
        random: Whether :meth:`batch` takes seeds while training.
        ids: What tells the samples apart.
    """

    @property
    def random(self) -> bool: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ids(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def take(self, rows: Any) -> Items:
        """These samples, in this order."""

    def joined(self, other: Any) -> Items:
        """These samples and then those of a set of the same kind."""

    def batch(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> Tensor:
        """Samples (B, …), a function of the rows and, where they are given, the seeds."""


@dataclass(frozen=True, eq=False)
class JoinedItems:
    """Samples of two sets that are stored apart, e.g. those of two tensors in a file.

    Attributes:
        rows: Positions among the samples of the first set and then those of the second.
    """

    first: Items
    second: Items
    rows: Array
    random: bool = False

    @staticmethod
    def of(first: Items, second: Items) -> JoinedItems:
        """All samples of both."""
        return JoinedItems(first, second, np.arange(len(first) + len(second)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of an array."""
        return (len(self), *self.first.shape[1:])

    @property
    def ids(self) -> list[str]:
        """What tells the samples apart."""
        ids = [*self.first.ids, *self.second.ids]
        return [ids[row] for row in self.rows]

    def take(self, rows: Any) -> JoinedItems:
        """These samples, in this order."""
        return dataclasses.replace(self, rows=self.rows[np.asarray(rows, dtype=np.int64)])

    def joined(self, other: Items) -> JoinedItems:
        """These samples and then others."""
        return JoinedItems.of(self, other)

    def batch(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> Tensor:
        """Samples (B, …)."""
        places = self.rows[np.asarray(rows, dtype=np.int64)]
        mine = places < len(self.first)
        found = [self.first.batch(places[mine].tolist()), self.second.batch((places[~mine] - len(self.first)).tolist())]
        order = np.argsort(np.concatenate([np.flatnonzero(mine), np.flatnonzero(~mine)]))
        return torch.cat(found)[torch.from_numpy(order)]


@dataclass(frozen=True)
class FileOptions:
    """How images in files are read; see :func:`~classgap.data.load_data`."""

    size: int | None = None
    resize: int | None = None
    root: str | None = None
    test_fraction: float = 0.2
    skip_corrupt: bool = False
    crop_scale: float = 0.08
    interpolation: str = "bilinear"
    partial: bool = False
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "resize"):
            if (value := getattr(self, name)) is not None:
                whole(f"data.{name}", value, low=1)
        fraction("data.test_fraction", self.test_fraction)
        number("data.crop_scale", self.crop_scale, low=0, high=1, open_low=True)
        one_of("data.interpolation", self.interpolation, ("bilinear", "bicubic"))
        whole("workers", self.workers, low=0)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set as published: images uint8 (N, C, H, W) or vectors float32 (N, d), labels int64.

    Attributes:
        mean, std: Channel statistics on the scale [0, 1]; of the training images unless there are usual ones.
        augment: Usual augmentation, used where the configuration names none.
        x_val, y_val: A validation set, where the source has its own.
        members: Changes when the names of the samples do; part of the hash of a split.
        notes: What the user should know, e.g. which files were left out.
        profile: Distribution over the classes that the name stands for, where the samples themselves have another.
        divided: Whether the test set is a share of samples that came without one.
        same: A number for each training sample, equal for those that are the same image or text; ``None`` if all differ.
    """

    name: str
    x_train: Array | Items
    y_train: Array
    x_test: Array | Items
    y_test: Array
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: tuple[str, ...] = ()
    x_val: Array | Items | None = None
    y_val: Array | None = None
    members: Array | None = None
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    divided: bool = False
    same: Array | None = None

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x_train.shape[1:])

    @property
    def is_images(self) -> bool:
        """Images rather than feature vectors or texts."""
        return len(self.x_train.shape) == 4

    @property
    def content(self) -> str:
        """What the samples are, in a word."""
        return {1: "texts", 4: "images"}.get(len(self.x_train.shape), "vectors")


def require_vectors_or_images(what: str, shape: tuple[int, ...]) -> None:
    """Refuse samples that are neither images (C, H, W) nor vectors (d,)."""
    if len(shape) not in (1, 3):
        raise InputError(f"{what} must be images (C, H, W) or vectors (d,), got shape {shape}")


def label_indices(labels: Sequence[str], class_names: Sequence[str]) -> Array:
    """Labels as positions among the class names."""
    place = {name: k for k, name in enumerate(class_names)}
    return np.array([place[label] for label in labels], dtype=np.int64)
