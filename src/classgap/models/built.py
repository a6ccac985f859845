"""What a library of networks gives, and what all of them share."""

from __future__ import annotations

import contextlib
import difflib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from classgap.checks import InputError, did_you_mean

Shape = tuple[int, ...]
Pixels = tuple[tuple[float, ...], tuple[float, ...]]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Built:
    """A network for some number of classes.

    Attributes:
        head_is_new: Whether the last layer is new, not part of the weights that were loaded.
        notes: Sentences for the user about its weights.
    """

    model: nn.Module
    head_is_new: bool = True
    notes: tuple[str, ...] = ()


def image_shape(name: str, in_shape: Shape) -> tuple[int, int, int]:
    """``in_shape``, which must be that of images."""
    if len(in_shape) != 3:
        raise InputError(
            f"model {name!r} needs images (channels, height, width), but the data are vectors of shape {in_shape}; "
            "use mlp or linear"
        )
    return in_shape


def unknown(name: str, known: Iterable[str], *, what: str) -> str:
    """As ``did_you_mean``, for libraries with a thousand names: lists only the near ones."""
    return did_you_mean(name, difflib.get_close_matches(name, list(known), n=5, cutoff=0.3), what=what)


def published(what: str, load: Callable[[], T]) -> T:
    """What ``load`` downloads; a sentence where it cannot, whatever its library raises then."""
    try:
        with quiet(logging.ERROR):  # huggingface_hub reports each of its attempts
            return load()
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
        raise InputError(
            f"{what} could not be loaded: {reason} ({type(error).__name__}). Without a network, give a local copy: "
            "model.pretrained=FILE (or a folder, for hf: models)"
        ) from error


@contextlib.contextmanager
def quiet(level: int = logging.WARNING) -> Iterator[None]:
    """Without the warnings of a library and its log messages up to a level."""
    before = logging.root.manager.disable
    logging.disable(max(level, before))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
