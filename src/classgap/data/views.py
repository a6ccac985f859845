"""Views of images for prediction: mirrored and shifted copies whose scores are averaged (test-time augmentation)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor
from torch.nn import functional as F

from classgap.checks import InputError


def require_images(setting: str, shape: Sequence[int]) -> None:
    """Raise where samples are not images."""
    if len(shape) != 3:
        raise InputError(f"{setting} is for images; these samples have shape {tuple(shape)}; leave it out")


def image_views(images: Tensor, names: Sequence[str]) -> Iterator[Tensor]:
    """The images themselves, and their other views, one after the other.

    Args:
        images: (N, C, H, W), before they are standardised; the border of a shifted image is black, as in training.
        names: ``flip``: also mirrored left and right, 2 views. ``crop``: also shifted along both diagonals, by half of what
            training shifts at most, 5 views. 10 views for both.
    """
    for shifted in _shifts(images) if "crop" in names else (images,):
        yield shifted
        if "flip" in names:
            yield shifted.flip(3)


def mean_over_views(
    forward: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor, names: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Means of the scores and of the features that ``forward`` gives for the views of images.

    Scores are averaged, not probabilities: they then are those of the last layer for the averaged features, and what reads both
    (audit, fix, a correction of the last layer) stays exact.
    """
    found = [forward(view) for view in image_views(images, names)]
    scores, features = (sum(parts[1:], parts[0]) / len(parts) for parts in zip(*found, strict=True))
    return scores, features


def _shifts(images: Tensor) -> Iterator[Tensor]:
    height, width = images.shape[2:]
    by = max(1, height // 16)  # half of an eighth of the side, see classgap.data.augment.crop
    padded = F.pad(images, (by, by, by, by))
    for row, column in ((by, by), (0, 0), (0, 2 * by), (2 * by, 0), (2 * by, 2 * by)):
        yield padded[:, :, row : row + height, column : column + width]
