"""From a source to training, validation and test sets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgap.checks import InputError, number, whole
from classgap.data.images import ImageFiles
from classgap.data.items import Array, FileOptions, Source
from classgap.data.python_sets import dataset_source
from classgap.data.samples import MEMORY_MB, Split, open_splits, resized
from classgap.data.sources import load_source
from classgap.data.splits import Profile, choose, hold_out, profile_counts, split_hash
from classgap.data.texts import Encode
from classgap.data.workers import default_workers

_USUAL_IMBALANCE = 100.0  # of a long-tailed set, where the configuration names none


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The three sets of a run. ``val`` is taken from the training part of the source, never from its test part.

    Attributes:
        val: ``None`` where no validation fraction was asked for.
        augment: Names of the augmentations to apply to batches.
        view_augment: Those of the second and further views of a sample; ``None`` for the same.
        crop_scale: Smallest share of the area that ``resized_crop`` keeps.
        split_hash: Changes when any member of any set changes; two runs are comparable when it agrees.
        notes: What the user should know about the data.
        spare: Samples of the training part that are in none of the sets, for stages that add some of them.
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
    notes: tuple[str, ...] = ()
    view_augment: tuple[str, ...] | None = None
    crop_scale: float = 0.08
    spare: Split | None = None

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

    @cached_property
    def content(self) -> str:
        """Changes when class names do, or samples in arrays with the same labels, which ``split_hash`` does not see."""
        names = zlib.crc32("\0".join(self.class_names).encode())
        parts = [0 if split is None else split.content() for split in (self.train, self.val, self.test)]
        return "-".join(f"{number:08x}" for number in (names, *parts))

    def about(self) -> dict[str, Any]:
        """What is needed to use a network that was trained on these data; ready for JSON."""
        return {
            "name": self.name,
            "class_names": list(self.class_names),
            "train_counts": self.class_counts.tolist(),
            "in_shape": list(self.in_shape),
            "mean": list(self.mean),
            "std": list(self.std),
        }


def load_data(
    name: str | tuple[Any, Any],
    *,
    per_class: int | None = None,
    profile: Profile = "balanced",
    imbalance: float = 1.0,
    val_fraction: float = 0.1,
    augment: Sequence[str] | None = None,
    view_augment: Sequence[str] | None = None,
    seed: int = 0,
    size: int | None = None,
    resize: int | None = None,
    root: str | None = None,
    test_fraction: float = 0.2,
    skip_corrupt: bool = False,
    crop_scale: float = 0.08,
    interpolation: str = "bilinear",
    partial: bool = False,
    spare: int = 0,
    workers: int | None = None,
    memory: int = MEMORY_MB,
    encode: Encode | None = None,
) -> TrainingData:
    """The sets of a run.

    The validation split is taken first, with the same share of every class; the rest is reduced to ``per_class`` samples per
    class or to a long-tail profile. ``val_fraction=0`` gives the published long-tail totals. For ``cifar10_lt`` and
    ``cifar100_lt`` the published long tail is taken first, and the validation split from it.

    Args:
        name: See :func:`~classgap.data.load_source`; or a pair of torch data sets, for training and for testing.
        per_class: Training samples per class (of the largest class, under a profile); all of them by default.
        profile: ``"balanced"`` keeps the source's distribution.
        imbalance: Largest over smallest class under a profile.
        val_fraction: Share of the training samples held out for validation, unless the source has a validation part.
        augment: Names of augmentations, in order; by default the usual ones of the source.
        view_augment: Those of the second and further views of a sample, for methods with several (BCL, GML); the same by default.
        seed: Random seed of the splits; independent of the seed of the training, so that runs with other seeds use the same data.
        size: Side of the square images that the network gets. Their shorter side becomes ``resize`` pixels long (``size`` by
            default), then the centre is cut out. Without it images must all have one size, and keep it.
        root: Folder that the paths in a table or list file are relative to; by default the folder of that file. Of a named set
            the folder of all data sets; by default that of ``CLASSGAP_DATA``.
        test_fraction: Share of every class that becomes the test set, where a folder or table has none.
        skip_corrupt: Leave out image files that cannot be decoded, after trying all of them; otherwise the first one is an error.
        crop_scale: Smallest share of the area that ``resized_crop`` keeps.
        interpolation: How images are resized, ``"bilinear"`` or ``"bicubic"``.
        partial: Use a named set although samples are missing; otherwise that is an error.
        spare: Samples per class, beyond ``per_class``, that are neither trained on nor used for validation; a stage such as
            ``add_samples`` may add some of them.
        workers: Processes that decode image files; by default one per processor core, at most 8. Results do not depend on it.
        memory: Megabytes that the decoded image files may take in memory. A larger set is decoded during training, and so is
            the training part under the augmentation ``resized_crop``, which needs the whole files. Results do not change.
        encode: Turns a list of texts into a tensor with one row for each: the tokeniser of a text model.
    Example:
        >>> data = load_data("digits", per_class=20)
        >>> len(data.train), len(data.val), len(data.test), data.split_hash
        (200, 79, 1000, '4f7a620f2c40')
    """
    number("memory", memory, low=0)
    processes = default_workers() if workers is None else whole("workers", workers, low=0)
    options = FileOptions(
        size,
        resize,
        root,
        test_fraction,
        skip_corrupt,
        crop_scale=crop_scale,
        interpolation=interpolation,
        partial=partial,
        workers=processes,
    )
    if isinstance(name, str):
        source = resized(load_source(name, files=options, encode=encode), options)
    else:
        if options.size is not None or options.resize is not None:
            raise InputError(
                "data.size and data.resize are for files and arrays; resize images in the transform of the data set"
            )
        source, processes = dataset_source(*_pair(name)), workers or 0
    if len(source.class_names) < 2:
        raise InputError(
            f"data={source.name} has samples of a single class ({source.class_names[0]}); a classifier needs at least two"
        )
    notes = source.notes
    if test_fraction != FileOptions.test_fraction and not source.divided:
        notes = (*notes, f"data.test_fraction has no effect: {source.name} has a test set")
    augment = source.augment if augment is None else tuple(augment)
    view_augment = None if view_augment is None else tuple(view_augment)
    if augment and not source.is_images:
        raise InputError(
            f"data.augment={','.join(augment)} needs images, but {source.name} holds {source.content}; set data.augment=none"
        )
    if source.content == "texts":
        raise InputError(f"data={source.name} holds texts, but the model takes images or vectors; choose a text model")
    if source.profile is not None:
        kept, held = _published_tail(source, per_class, profile, imbalance, val_fraction, seed)
        rest = kept
    else:
        has_val = source.y_val is not None
        share = 0.0 if has_val else val_fraction
        rest, held = hold_out(source.y_train, len(source.class_names), share, seed, source.same)
        kept = _thin(source, rest, per_class, profile, imbalance, seed)
    aside = kept[:0] if not spare else _spare(source, rest, kept, per_class, profile, spare, seed)
    crops = "resized_crop" in (*augment, *(view_augment or ()))
    splits = open_splits(source, kept, held, aside, workers=processes, memory=memory, crops=crops)
    members = [array for array in (source.y_val, source.members) if array is not None]
    return TrainingData(
        name=source.name,
        train=splits["train"],
        val=splits.get("val"),
        test=splits["test"],
        class_names=source.class_names,
        mean=source.mean,
        std=source.std,
        augment=_on_batches("data.augment", augment, splits["train"]),
        split_hash=split_hash(kept, held, source.y_train, source.y_test, *members),
        notes=notes,
        view_augment=None if view_augment is None else _on_batches("data.view_augment", view_augment, splits["train"]),
        crop_scale=crop_scale,
        spare=splits.get("spare"),
    )


def _spare(
    source: Source, pool: Array, kept: Array, per_class: int | None, profile: Profile, spare: int, seed: int
) -> Array:
    """The next ``spare`` samples of each class after those that are trained on."""
    if per_class is None or profile != "balanced" or source.profile is not None:
        raise InputError(
            f"data.spare={spare} keeps samples beyond data.per_class aside, so data.per_class must be set and data.profile must "
            f"be balanced; got data.per_class={per_class}, data={source.name}, data.profile={source.profile or profile}"
        )
    available = int(np.bincount(source.y_train[pool], minlength=len(source.class_names)).min())
    if per_class + whole("data.spare", spare, low=0) > available:
        raise InputError(
            f"data.per_class={per_class} and data.spare={spare} ask for {per_class + spare} samples per class, but the smallest "
            f"class has {available} after the validation split; lower one of them or data.val_fraction"
        )
    return np.setdiff1d(_thin(source, pool, per_class + spare, profile, 1.0, seed), kept)


def _thin(source: Source, pool: Array, per_class: int | None, profile: Profile, imbalance: float, seed: int) -> Array:
    if per_class is not None:
        number("data.per_class", per_class, low=1)
    if profile == "balanced" and imbalance > 1:
        raise InputError(
            f"data.imbalance={imbalance:g} needs a profile; set data.profile=exponential or step, or data.imbalance=1"
        )
    available = np.bincount(source.y_train[pool], minlength=len(source.class_names))
    n_max = int(available.min()) if per_class is None else per_class
    counts = profile_counts(len(available), n_max, profile, imbalance)
    if profile == "balanced" and per_class is None:
        return pool
    return choose(source.y_train, pool, counts, seed)


def _published_tail(
    source: Source, per_class: int | None, profile: Profile, imbalance: float, val_fraction: float, seed: int
) -> tuple[Array, Array]:
    """Training and validation samples of a long tail whose members are published; validation samples are taken from these."""
    shape = source.profile if profile == "balanced" and source.profile else profile
    ratio = imbalance if imbalance > 1 else _USUAL_IMBALANCE
    members = _thin(source, np.arange(len(source.y_train)), per_class, shape, ratio, seed)
    rest, held = hold_out(source.y_train[members], len(source.class_names), val_fraction, seed)
    return members[rest], members[held]


def _pair(sets: tuple[Any, Any]) -> tuple[Any, Any]:
    if not isinstance(sets, (tuple, list)) or len(sets) != 2:
        raise InputError("data must be a name, a path, or a pair (training set, test set) of torch data sets")
    return sets[0], sets[1]


def _on_batches(setting: str, augment: Sequence[str], train: Split) -> tuple[str, ...]:
    """Augmentations without the one that is done while files are read."""
    if isinstance(train.x, Tensor) or not getattr(train.x, "random", False) or not isinstance(train.x, ImageFiles):
        return tuple(augment)
    if augment[:1] != ("resized_crop",):
        raise InputError(
            f"{setting}={','.join(augment)}: resized_crop works on the files, so it must come first, in data.augment and in "
            "data.view_augment alike"
        )
    return tuple(augment[1:])
