"""The samples of a part of a data set: in memory, or read by worker processes when they are needed."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from classgap.checks import InputError
from classgap.data.features import FeatureRows
from classgap.data.images import ImageFiles, read_all, shorter_side
from classgap.data.items import Array, FileOptions, Items, Source
from classgap.data.texts import Texts
from classgap.data.workers import in_order

_CONTENT_BYTES = 256_000_000
MEMORY_MB = 1000
"""Image files whose decoded pixels take more than this are read during training instead of before it."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples (uint8 images or float vectors) and labels, in memory or to be read when they are needed.

    Attributes:
        workers: Processes that read samples ahead; 0 to read them in this process.
        origin: The files of images that are in memory.
    """

    x: Tensor | Items
    y: Tensor
    workers: int = 0
    origin: Items | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def ids(self) -> list[str] | None:
        """What tells the samples apart, e.g. names of files; ``None`` for arrays."""
        items = self.origin if isinstance(self.x, Tensor) else self.x
        return None if items is None else items.ids

    def content(self) -> int:
        """Changes when samples do that are arrays; 0 for samples of files, which are known by their names.

        Of an array of more than 256 MB equally spaced rows are taken.
        """
        if not isinstance(self.x, Tensor) or self.origin is not None or not len(self):
            return 0
        size = self.x.element_size() * self.x.numel()
        rows = self.x[:: -(-size // _CONTENT_BYTES)].contiguous().cpu()
        return zlib.crc32(rows.view(torch.uint8).numpy().data)

    def to(self, device: torch.device) -> Split:
        """On that device; sets in memory live there whole, of others only the labels."""
        x = self.x.to(device) if isinstance(self.x, Tensor) else self.x
        return Split(x, self.y.to(device), self.workers, self.origin)

    def read(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        """The samples of each chunk of row numbers, on the device of the labels, without augmentation."""
        if isinstance(self.x, Tensor):
            yield from (self.x[rows.to(self.x.device)] for rows in chunks)
        else:
            for x in in_order(_Read(self.x, chunks), range(len(chunks)), self.workers):
                yield x.to(self.y.device)

    def take(self, rows: Tensor) -> Split:
        """These samples, in this order."""
        items = None if self.origin is None else self.origin.take(rows.numpy())
        x = self.x[rows] if isinstance(self.x, Tensor) else self.x.take(rows.numpy())
        return Split(x, self.y[rows], self.workers, items)

    def joined(self, other: Split) -> Split:
        """These samples and then those of another part of the same data set."""
        y = torch.cat([self.y, other.y])
        mine, theirs = (split.origin if isinstance(split.x, Tensor) else split.x for split in (self, other))
        items = None if mine is None or theirs is None else mine.joined(theirs)
        if isinstance(self.x, Tensor) and isinstance(other.x, Tensor):
            return Split(torch.cat([self.x, other.x]), y, self.workers, items)
        assert items is not None
        return Split(items, y, self.workers)


@dataclass(frozen=True, eq=False)
class _Read:
    items: Items
    chunks: Sequence[Tensor]

    def __call__(self, step: int) -> Tensor:
        return self.items.batch(self.chunks[step].tolist())


def open_splits(
    source: Source, kept: Array, held: Array, aside: Array, *, workers: int, memory: int, crops: bool
) -> dict[str, Split]:
    """Training (``kept``), validation (``held``, or the source's own), spare (``aside``) and test samples.

    Arrays are in memory, and so are image files whose decoded pixels take at most ``memory`` megabytes in all; others are read
    when they are needed. With ``crops``, training sees random parts of image files, which are read anew each time.
    """
    parts = {"train": (_rows(source.x_train, kept), source.y_train[kept]), "test": (source.x_test, source.y_test)}
    if source.x_val is not None and source.y_val is not None:
        parts["val"] = (source.x_val, source.y_val)
    elif len(held):
        parts["val"] = (_rows(source.x_train, held), source.y_train[held])
    if len(aside):
        parts["spare"] = (_rows(source.x_train, aside), source.y_train[aside])
    numbers = sum(int(np.prod(x.shape)) for x, _ in parts.values())
    fits = numbers <= memory * 1_000_000
    splits = {}
    for part, (x, y) in parts.items():
        labels = torch.from_numpy(y)
        if isinstance(x, np.ndarray):
            splits[part] = Split(torch.from_numpy(np.ascontiguousarray(x)), labels)
        elif isinstance(x, ImageFiles) and crops and part in ("train", "spare"):
            splits[part] = Split(x.randomly(), labels, workers)
        elif isinstance(x, FeatureRows):  # a file that does not fit is mapped into memory, without worker processes
            splits[part] = Split(x.whole(), labels, origin=x) if 4 * numbers <= memory * 1_000_000 else Split(x, labels)
        elif isinstance(x, Texts):
            splits[part] = Split(x.encoded(), labels, origin=x)
        elif isinstance(x, ImageFiles) and fits:
            splits[part] = Split(read_all(x, workers), labels, origin=x)
        else:
            splits[part] = Split(x, labels, workers)
    return splits


def _rows(x: Array | Items, rows: Array) -> Array | Items:
    return x[rows] if isinstance(x, np.ndarray) else x.take(rows)


def resized(source: Source, options: FileOptions) -> Source:
    """A source with its images in memory brought to ``options.size``; those of files are when they are read."""
    if not isinstance(source.x_train, np.ndarray):
        return source
    shorter = shorter_side(options.size, options.resize)
    if options.size is None:
        return source
    if not source.is_images:
        raise InputError(f"data.size={options.size} needs images, but {source.name} holds vectors; leave it out")
    x_train, x_test = (
        _resize(x, options.size, shorter, options.interpolation) for x in (source.x_train, source.x_test)
    )
    return dataclasses.replace(source, x_train=x_train, x_test=x_test)


def _resize(x: Array | Items, size: int, shorter: int, interpolation: str) -> Array:
    from torchvision.transforms.v2 import functional as F

    assert isinstance(x, np.ndarray)
    chunks, mode = torch.split(torch.from_numpy(x), 500), F.InterpolationMode(interpolation)
    done = [F.center_crop(F.resize(chunk, [shorter], mode, antialias=True), [size, size]) for chunk in chunks]
    return torch.cat(done).numpy()
