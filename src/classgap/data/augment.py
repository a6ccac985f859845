"""Image augmentation, batched on uint8 tensors and a pure function of the random numbers it is handed.

Every policy gets two uniform numbers per image, so an epoch is the same however it is cut into processes or resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from classgap._checks import InputError, did_you_mean

Policy = Callable[[Tensor, Tensor], Tensor]
"""``policy(images (B, C, H, W) uint8, uniform (B, 2)) -> images``."""


def crop(images: Tensor, uniform: Tensor) -> Tensor:
    """Pad by an eighth of the side (4 at 32 pixels) with black and cut at a random place."""
    n, _, height, width = images.shape
    pad = max(1, height // 8)
    padded = F.pad(images, (pad, pad, pad, pad))
    corner = (uniform * (2 * pad + 1)).long().to(images.device)
    rows = corner[:, :1] + torch.arange(height, device=images.device)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    which = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flip(images: Tensor, uniform: Tensor) -> Tensor:
    """Mirror left and right half of the time."""
    mirrored = (uniform[:, 0] < 0.5).to(images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def cutout(images: Tensor, uniform: Tensor, fill: Sequence[float] = (0.0,)) -> Tensor:
    """Set a square of half the side (16 at 32 pixels) around a random pixel to ``fill`` (arXiv:1708.04552)."""
    height, width = images.shape[2:]
    half = height // 4
    centre = (uniform * torch.tensor([height, width])).long().to(images.device)
    rows = _within(torch.arange(height, device=images.device) - centre[:, :1], half)
    columns = _within(torch.arange(width, device=images.device) - centre[:, 1:], half)
    hole = (rows[:, :, None] & columns[:, None, :])[:, None]
    paint = torch.tensor(fill, device=images.device).mul(255).round().to(images.dtype)
    return torch.where(hole, paint[:, None, None], images)


def _within(offset: Tensor, half: int) -> Tensor:
    return (offset >= -half) & (offset < half)


def autoaugment(images: Tensor, uniform: Tensor) -> Tensor:
    """AutoAugment with the policies found on CIFAR-10 (arXiv:1805.09501)."""
    from torchvision.transforms import v2

    return _each(images, uniform, v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10))


def randaugment(images: Tensor, uniform: Tensor) -> Tensor:
    """RandAugment, 2 operations of magnitude 10 (arXiv:1909.13719)."""
    from torchvision.transforms import v2

    return _each(images, uniform, v2.RandAugment(num_ops=2, magnitude=10))


def _each(images: Tensor, uniform: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a transform that draws from the global generator to each image, under that image's own seed."""
    seeds = (uniform[:, 0] * 2**53).long().tolist()
    with torch.random.fork_rng(devices=[]):
        done = []
        for image, seed in zip(images.contiguous(), seeds, strict=True):
            torch.manual_seed(seed)
            done.append(transform(image))
    return torch.stack(done)


POLICIES: dict[str, Policy] = {p.__name__: p for p in (crop, flip, autoaugment, randaugment, cutout)}


def policies(names: Sequence[str], mean: Sequence[float]) -> tuple[Policy, ...]:
    """The policies of these names, to be applied in the order given; ``mean`` is the colour holes are filled with."""
    for name in names:
        if name not in POLICIES:
            raise InputError(did_you_mean(name, POLICIES, what="augmentation"))
    return tuple(partial(cutout, fill=mean) if name == "cutout" else POLICIES[name] for name in names)
