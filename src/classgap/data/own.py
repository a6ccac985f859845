"""A user's own images: a folder, table or list file as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from classgap.checks import InputError
from classgap.data.images import IMAGENET_PIXELS, open_images, with_size
from classgap.data.items import FileOptions, Source, label_indices
from classgap.data.listing import Listing, divide, for_training, names_hash, read_listing

_SHOWN = 3


def image_source(name: str, path: Path, options: FileOptions) -> Source:
    """The images that a folder, table or list file names, with their training, test and (if there is one) validation part.

    Where there is no test part, ``options.test_fraction`` of every class becomes one. Pixels are standardised with the usual
    statistics of ImageNet; no augmentation is usual, since flipping or cropping may change what an image shows.
    """
    listing = for_training(read_listing(path, options.root))
    images, kept = open_images(listing.root, listing.names, skip_corrupt=options.skip_corrupt, workers=options.workers)
    images = with_size(images, options.size, options.resize)
    notes = _left_out(listing, kept)
    listing = _only(listing, kept)
    parts = np.array(divide(listing, options.test_fraction))
    class_names = listing.class_names
    if len(class_names) < 2:
        raise InputError(
            f"data={name} has images of a single class ({class_names[0]}); a classifier needs at least two"
        )
    y = label_indices(listing.labels, class_names)
    train, val, test = (np.flatnonzero(parts == part) for part in ("train", "val", "test"))
    return Source(
        name,
        images.take(train),
        y[train],
        images.take(test),
        y[test],
        class_names,
        *IMAGENET_PIXELS,
        x_val=images.take(val) if len(val) else None,
        y_val=y[val] if len(val) else None,
        members=names_hash([*listing.names, *class_names, *parts.tolist()]),
        notes=notes,
    )


def _only(listing: Listing, kept: list[int]) -> Listing:
    if len(kept) == len(listing.names):
        return listing
    names, labels, parts = ([column[row] for row in kept if column] for column in _columns(listing))
    lost = sorted(set(listing.labels) - set(labels))
    if lost:
        raise InputError(
            f"{listing.root}: none of the images of class {lost[0]} can be decoded; repair them or remove the class"
        )
    return Listing(listing.root, names, labels, parts)


def _columns(listing: Listing) -> tuple[list[str], list[str], list[str]]:
    return listing.names, listing.labels, listing.parts


def _left_out(listing: Listing, kept: list[int]) -> tuple[str, ...]:
    corrupt = sorted(set(range(len(listing.names))) - set(kept))
    if not corrupt:
        return ()
    shown = ", ".join(listing.names[row] for row in corrupt[:_SHOWN]) + (", …" if len(corrupt) > _SHOWN else "")
    return (f"{len(corrupt)} of {len(listing.names)} images cannot be decoded and are left out: {shown}",)
