"""Samples that a listing names as a source: a user's own images or texts, and the published sets of image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError
from classgap.data.images import IMAGENET_PIXELS, ImageFiles, open_images, with_size
from classgap.data.items import FileOptions, Source, label_indices
from classgap.data.listing import Listing, divide, for_training, names_hash, read_listing
from classgap.data.texts import Encode, Texts

_SHOWN = 3


def own_source(name: str, path: Path, options: FileOptions, encode: Encode | None = None) -> Source:
    """The samples that a folder, table or list file names, with their training, test and (if there is one) validation part.

    Where there is no test part, ``options.test_fraction`` of every class becomes one. Pixels are standardised with the usual
    statistics of ImageNet; no augmentation is usual, since flipping or cropping may change what an image shows.
    """
    return listed_source(name, read_listing(path, options.root), options, encode)


def listed_source(
    name: str,
    listing: Listing,
    options: FileOptions,
    encode: Encode | None = None,
    pixels: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET_PIXELS,
) -> Source:
    """A source of the samples of a listing."""
    listing = for_training(listing)
    items, kept = open_listing(listing, options, encode)
    if isinstance(items, ImageFiles):
        items = with_size(items, options.size, options.resize)
    notes = (*listing.notes, *left_out(listing, kept))
    listing = _only(listing, kept)
    parts = np.array(divide(listing, options.test_fraction))
    class_names = listing.class_names
    if len(class_names) < 2:
        raise InputError(
            f"data={name} has {listing.kind}s of a single class ({class_names[0]}); a classifier needs at least two"
        )
    y = label_indices(listing.labels, class_names)
    train, val, test = (np.flatnonzero(parts == part) for part in ("train", "val", "test"))
    mean, std = pixels if listing.kind == "image" else ((), ())
    return Source(
        name,
        items.take(train),
        y[train],
        items.take(test),
        y[test],
        class_names,
        mean,
        std,
        x_val=items.take(val) if len(val) else None,
        y_val=y[val] if len(val) else None,
        members=names_hash([*listing.names, *class_names, *parts.tolist()]),
        notes=notes,
        divided="test" not in listing.parts,
        same=_same([listing.names[row] for row in train]),
    )


def _same(names: Sequence[str]) -> NDArray[np.int64] | None:
    number = {name: row for row, name in enumerate(names)}
    return None if len(number) == len(names) else np.array([number[name] for name in names], dtype=np.int64)


def open_listing(
    listing: Listing, options: FileOptions, encode: Encode | None = None
) -> tuple[ImageFiles | Texts, list[int]]:
    """The samples of a listing, images of a size still to be chosen, and the rows of those to be used."""
    if listing.kind == "text":
        return Texts.of(listing.names, encode), list(range(len(listing.names)))
    return open_images(listing.root, listing.names, options, listing.pictures)


def _only(listing: Listing, kept: list[int]) -> Listing:
    if len(kept) == len(listing.names):
        return listing
    rest = listing.take(kept)
    for kind, part in (("", ""), ("training ", "train")):
        lost = sorted(_labels(listing, part) - _labels(rest, part))
        if lost:
            raise InputError(
                f"{listing.root}: none of the {kind}images of class {lost[0]} can be decoded; repair them or remove the class"
            )
    return rest


def _labels(listing: Listing, part: str) -> set[str]:
    """Labels of the samples in a part, or of all."""
    if not part or not listing.parts:
        return set(listing.labels)
    return {label for label, where in zip(listing.labels, listing.parts, strict=True) if where == part}


def left_out(listing: Listing, kept: list[int]) -> tuple[str, ...]:
    """Which images are not among the rows that are used."""
    corrupt = sorted(set(range(len(listing.names))) - set(kept))
    if not corrupt:
        return ()
    shown = ", ".join(listing.names[row] for row in corrupt[:_SHOWN]) + (", …" if len(corrupt) > _SHOWN else "")
    return (f"{len(corrupt)} of {len(listing.names)} images cannot be decoded and are left out: {shown}",)
