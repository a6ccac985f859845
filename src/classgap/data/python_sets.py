"""Torch data sets given in Python, as the samples of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.checks import InputError, as_numpy, shown
from classgap.data.images import IMAGENET_PIXELS, pixels_of_picture
from classgap.data.items import Array, Source, require_vectors_or_images

_TRIED = 5  # samples whose label is compared with the list of labels that the data set has


@dataclass(frozen=True, eq=False)
class DatasetItems:
    """Some samples of a torch data set of ``(sample, label)`` pairs.

    A sample is a PIL image, an image tensor (C, H, W) of uint8 or floats, or a vector (d,). Its random transforms, if they draw
    from the generators of torch, NumPy or Python, are a function of the seed of the run, the epoch and the position.

    """

    dataset: Any
    rows: NDArray[np.int64]
    sample_shape: tuple[int, ...]
    random: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of an array of all samples."""
        return (len(self), *self.sample_shape)

    @property
    def ids(self) -> list[str]:
        """Positions in the data set."""
        return [str(row) for row in self.rows]

    def take(self, rows: Any) -> DatasetItems:
        """These samples, in this order."""
        return dataclasses.replace(self, rows=self.rows[np.asarray(rows, dtype=np.int64)])

    def joined(self, other: DatasetItems) -> DatasetItems:
        """These samples and then those of another part of the same data set."""
        return dataclasses.replace(self, rows=np.concatenate([self.rows, other.rows]))

    def batch(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> Tensor:
        """Samples (B, …); without seeds, as in evaluation, the position of a sample is its seed."""
        with _generators_kept():
            return torch.stack(
                [self._sample(int(self.rows[row]), seeds[i] if seeds else None) for i, row in enumerate(rows)]
            )

    def _sample(self, row: int, seed: int | None) -> Tensor:
        seed = row if seed is None else seed
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  what transforms of a user may draw from
        random.seed(seed)
        sample = as_tensor(self.dataset[row][0])
        if tuple(sample.shape) != self.sample_shape:
            raise InputError(
                f"sample {row} of the data set has shape {tuple(sample.shape)}, the first one {self.sample_shape}; resize them "
                "to one shape in its transform"
            )
        return sample


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def dataset_source(train: Any, test: Any) -> Source:
    """Two torch data sets as a source; labels are in ``targets`` or ``labels``, otherwise every sample is read once for them."""
    with _generators_kept():
        y_train, y_test = (dataset_labels(which, dataset) for which, dataset in (("train", train), ("test", test)))
        first = as_tensor(train[0][0])
    shape = tuple(first.shape)
    require_vectors_or_images("samples of the data set", shape)
    names = getattr(train, "classes", None) or range(1 + int(max(y_train.max(), y_test.max())))
    class_names = tuple(str(name) for name in names)
    y_test = _numbered_alike(y_test, getattr(test, "classes", None), class_names)
    if max(y_train.max(), y_test.max()) >= len(class_names):
        raise InputError(
            f"labels go up to {max(y_train.max(), y_test.max())}, but the data set has {len(class_names)} classes"
        )
    pixels = _pixels(shape) if first.dtype == torch.uint8 else ((), ())
    items = [DatasetItems(dataset, np.arange(len(dataset)), shape) for dataset in (train, test)]
    return Source(
        f"dataset:{type(train).__name__}", items[0], y_train, items[1], y_test, class_names, *pixels, members=None
    )


def _numbered_alike(y: Array, own: Sequence[Any] | None, class_names: tuple[str, ...]) -> Array:
    """The labels of the test set in the numbers of the training set, where each has names for its own numbers.

    An ``ImageFolder`` numbers the folders it finds, so a test set in which a class is missing has other numbers.
    """
    theirs = class_names if own is None else tuple(str(name) for name in own)
    if theirs == class_names or y.max() >= len(theirs):
        return y
    used = sorted({theirs[label] for label in y.tolist()})
    if unknown := sorted(set(used) - set(class_names)):
        raise InputError(f"the test data set has samples of class {unknown[0]!r}, which is none of the training set")
    if twice := [name for name in used if class_names.count(name) > 1 or theirs.count(name) > 1]:
        raise InputError(f"the test data set numbers its classes otherwise, and two classes are named {twice[0]!r}")
    return np.array([class_names.index(theirs[label]) for label in y.tolist()], dtype=np.int64)


def _pixels(shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if len(shape) != 3:
        return (), ()
    return IMAGENET_PIXELS if shape[0] == 3 else ((0.5,) * shape[0], (0.25,) * shape[0])


def as_tensor(sample: Any) -> Tensor:
    """A sample as a tensor: uint8 for a PIL image, otherwise as it is."""
    if hasattr(sample, "convert") and hasattr(sample, "getbands"):  # a PIL image
        return pixels_of_picture(sample, "a sample of the data set", grey=sample.mode == "L")
    try:
        tensor = torch.as_tensor(np.ascontiguousarray(sample) if isinstance(sample, np.ndarray) else sample)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"samples of a data set must be PIL images, image tensors or vectors, got {shown(sample)}; change the transform"
        ) from error
    if (
        isinstance(sample, np.ndarray)
        and tensor.dim() == 3
        and sample.shape[2] in (1, 3, 4)
        and sample.shape[0] not in (1, 3, 4)
    ):
        tensor = tensor.permute(2, 0, 1)  # arrays of images have their channels last, tensors have them first
    return tensor if tensor.dtype == torch.uint8 and tensor.dim() == 3 else tensor.to(torch.float32)


def dataset_labels(which: str, dataset: Any) -> Array:
    """Class index of every sample."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"the {which} data must be a torch Dataset with a length and samples by position, got {type(dataset).__name__}"
        )
    if len(dataset) == 0:
        raise InputError(f"the {which} data set is empty")
    known = next((v for name in ("targets", "labels") if (v := getattr(dataset, name, None)) is not None), None)
    if known is None or len(known) != len(dataset) or not _are_labels(which, dataset, known):
        known = [_label(which, dataset[row]) for row in range(len(dataset))]
    labels = as_numpy(known)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"labels of the {which} data set must be class indices from 0, got {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < 0:
        raise InputError(f"labels of the {which} data set must be class indices from 0, got {labels.min()}")
    return labels.astype(np.int64)


def _are_labels(which: str, dataset: Any, known: Any) -> bool:
    """Whether the samples come with these labels; a ``target_transform`` changes them."""
    if getattr(dataset, "target_transform", None) is not None:
        return False
    labels = as_numpy(known)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return True  # refused later, in these words
    rows = np.unique(np.linspace(0, len(dataset) - 1, _TRIED).astype(int)).tolist()
    return all(_label(which, dataset[row]) == labels[row] for row in rows)


def _label(which: str, pair: Any) -> int:
    """The class index in ``(sample, label)``."""
    if not isinstance(pair, (tuple, list)) or len(pair) < 2:
        raise InputError(f"the {which} data set must give pairs (sample, label), got {type(pair).__name__}")
    label = pair[1]
    with contextlib.suppress(AttributeError, ValueError, RuntimeError):  # a number of torch or NumPy
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int):
        raise InputError(f"labels of the {which} data set must be class indices from 0, got {shown(pair[1])}")
    return label
