"""Image augmentation, batched on uint8 tensors and a pure function of the random numbers it is handed.

Every policy gets two uniform numbers per image, so an epoch is the same however it is cut into processes or resumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from classgap import registry
from classgap.checks import InputError
from classgap.registry import method

Policy = Callable[[Tensor, Tensor], Tensor]
"""``policy(images (B, C, H, W) uint8, uniform (B, 2)) -> images``."""


@method("crop", kind="augmentation", family="geometric", paper="arXiv:1512.03385")
def crop(images: Tensor, uniform: Tensor) -> Tensor:
    """Pad by an eighth of the side (4 at 32 pixels) with black and cut at a random place.

    When to use: small images whose subject may lie anywhere; usually together with ``flip``.
    Expect: later overfitting, on balanced data and on long tails; part of the baseline of every table on images.
    Pitfalls: where the position in the image is part of the class, that information is lost.
    """
    n, _, height, width = images.shape
    pad = max(1, height // 8)
    padded = F.pad(images, (pad, pad, pad, pad))
    corner = (uniform * (2 * pad + 1)).long().to(images.device)
    rows = corner[:, :1] + torch.arange(height, device=images.device)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    which = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@method("flip", kind="augmentation", family="geometric", paper="arXiv:1512.03385")
def flip(images: Tensor, uniform: Tensor) -> Tensor:
    """Mirror left and right half of the time.

    When to use: objects that are equally likely in both orientations.
    Expect: twice as many different images, on balanced data and on long tails, at no cost.
    Pitfalls: digits, letters, signs and sides of a body change their meaning.
    """
    mirrored = uniform[:, 0] < 0.5
    if images.is_cuda:
        return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)
    flipped = images.clone()  # one by one: a tenth of the time of the line above on a processor
    for row in torch.nonzero(mirrored).flatten().tolist():
        flipped[row] = images[row].flip(2)
    return flipped


@method("cutout", kind="augmentation", family="occlusion", paper="arXiv:1708.04552")
def cutout(images: Tensor, uniform: Tensor, fill: Sequence[float]) -> Tensor:
    """Set a square of half the side (16 at 32 pixels) around a random pixel to ``fill``, the mean colour of the data.

    When to use: large networks and long training, beside ``crop`` and ``flip``; published with ResNet-18 and Wide ResNets.
    Expect: on balanced data higher training error and, published, lower test error; here -2 overall on CIFAR-10 with a small
    network and 30 epochs. On tails (not measured) nothing particular to rare classes.
    Pitfalls: small or briefly trained networks may lose; a class known by one small detail may lose that detail.
    """
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


@method("autoaugment", kind="augmentation", family="policy", paper="arXiv:1805.09501")
def autoaugment(images: Tensor, uniform: Tensor) -> Tensor:
    """AutoAugment with the policies found on CIFAR-10: one of 25 pairs of colour and geometry changes for each image.

    When to use: natural images, few of them, and a network with the capacity and the epochs to use the variety: its training
    accuracy without the policy says so.
    Expect: on balanced data, ResNet-20 on CIFAR-10 with 500 images per class for 100 epochs (training accuracy 99 % without),
    +3 points overall and on the hard third. Where the network does not fit, a wider gap: on CIFAR-100 with 100 images per class
    for 60 epochs (80 %) +3 overall, +5 on the easy and none on the hard third; a small network on CIFAR-10 for 30 (71 %) -2.5
    overall and -4 on the hard third. On tails (not measured here) it has no preference for rare classes, so add a method that
    has.
    Pitfalls: hard classes of a small or briefly trained network lose. Compare losses with the same augmentation on both sides:
    published gains of a loss may be those of the policy.
    """
    from torchvision.transforms import v2

    return _each(images, uniform, v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10))


@method("randaugment", kind="augmentation", family="policy", paper="arXiv:1909.13719")
def randaugment(images: Tensor, uniform: Tensor) -> Tensor:
    """RandAugment, 2 operations of magnitude 10 for each image, drawn from 14.

    When to use: as ``autoaugment``, where its policies, found on CIFAR-10, do not suit the images.
    Expect: on balanced data as ``autoaugment``: -2 overall and -4 on the hard third with the small network; not measured with a
    larger one or on tails.
    Pitfalls: the published magnitude grows with the network; for a small one this is strong.
    """
    from torchvision.transforms import v2

    return _each(images, uniform, v2.RandAugment(num_ops=2, magnitude=10))


@method("resized_crop", kind="augmentation", family="geometric", paper="arXiv:1409.4842")
def resized_crop(images: Tensor, uniform: Tensor, crop_scale: float = 0.08) -> Tensor:
    """A random part of 8 to 100 % of the area and an aspect ratio between 3:4 and 4:3, resized to the size of the input.

    ``data.crop_scale`` changes the smallest share of the area. Of image files the part is taken from the whole file before
    anything else, as torchvision's ``RandomResizedCrop`` does.

    When to use: photographs of 64 pixels and more, as in all ImageNet recipes; before ``flip``.
    Expect: on balanced data and long tails alike, later overfitting and less dependence on the size of the subject; not
    measured here.
    Pitfalls: image files are decoded anew in every epoch, however small the set. A part may not show the subject at all; where
    the size tells the class, it takes that away.

    Args:
        crop_scale: Smallest share of the area, ``data.crop_scale``.
    """
    from torchvision.transforms import v2

    height, width = images.shape[2:]
    return _each(images, uniform, v2.RandomResizedCrop((height, width), scale=(crop_scale, 1.0)))


@method("color_jitter", kind="augmentation", family="colour", paper="arXiv:2002.05709")
def color_jitter(images: Tensor, uniform: Tensor) -> Tensor:
    """Brightness, contrast and saturation changed by up to 40 %, hue by up to 10 % of the colour circle.

    When to use: photographs under varying light, beside ``resized_crop`` and ``flip``.
    Expect: on balanced data and long tails alike, less dependence on light and camera; not measured here.
    Pitfalls: where the colour tells the class, as of ripe fruit or stained tissue, it takes that away.
    """
    from torchvision.transforms import v2

    return _each(images, uniform, v2.ColorJitter(0.4, 0.4, 0.4, 0.1))


@method("autoaugment_imagenet", kind="augmentation", family="policy", paper="arXiv:1805.09501")
def autoaugment_imagenet(images: Tensor, uniform: Tensor) -> Tensor:
    """AutoAugment with the policies found on ImageNet; ``autoaugment`` has those found on CIFAR-10.

    When to use: as ``autoaugment``, on photographs of ImageNet's size.
    Expect: on balanced data and long tails as ``autoaugment``; not measured here.
    Pitfalls: those of ``autoaugment``.
    """
    from torchvision.transforms import v2

    return _each(images, uniform, v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET))


@method("simclr", kind="augmentation", family="colour", paper="arXiv:2002.05709")
def simclr(images: Tensor, uniform: Tensor) -> Tensor:
    """The colour part of SimCLR's views: ``color_jitter`` on four images of five, and one of five without colour.

    When to use: for the second and further views of contrastive methods (BCL, GML), on photographs also ``blur``:
    ``data.view_augment=resized_crop,flip,simclr``.
    Expect: on balanced data and long tails alike, features that depend less on colour; not measured here.
    Pitfalls: where the colour tells the class, it takes that away.
    """
    from torchvision.transforms import v2

    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    return _each(images, uniform, v2.Compose([jitter, v2.RandomGrayscale(0.2)]))


@method("blur", kind="augmentation", family="texture", paper="arXiv:2002.05709")
def blur(images: Tensor, uniform: Tensor) -> Tensor:
    """Gaussian blur of every second image: standard deviation 0.1 to 2 pixels, kernel of a tenth of the side.

    When to use: last of the views of contrastive methods on photographs of 64 pixels and more.
    Expect: on balanced data and long tails alike, features that depend less on fine texture; not measured here.
    Pitfalls: images of 32 pixels lose their content; SimCLR leaves it out there.
    """
    from torchvision.transforms import v2

    kernel = max(3, 2 * (images.shape[2] // 20) + 1)
    return _each(images, uniform, v2.RandomApply([v2.GaussianBlur(kernel, (0.1, 2.0))], p=0.5))


def _each(images: Tensor, uniform: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a transform that draws from the global generator to each image, under that image's own seed."""
    seeds = (uniform[:, 0] * 2**53).long().tolist()
    with torch.random.fork_rng(devices=[]):
        done = []
        for image, seed in zip(images.contiguous(), seeds, strict=True):
            torch.default_generator.manual_seed(seed)  # not that of a GPU, which nothing here draws from
            done.append(transform(image))
    return torch.stack(done)


def _check_pixels(name: str, channels: int) -> None:
    """Refuse images that a policy cannot change. Those that a data set gives as floating point numbers have 0 ``channels``."""
    if registry.get("augmentation", name).family in ("colour", "policy") and channels not in (1, 3):
        has = f"{channels} channels" if channels else "floating point numbers"
        raise InputError(
            f"augmentation {name} needs images of 1 or 3 channels of 0 to 255, but these have {has}; leave it out"
        )
    if name == "cutout" and not channels:
        raise InputError(
            "augmentation cutout needs images of 0 to 255, but these are floating point numbers; leave it out"
        )


def policies(names: Sequence[str], mean: Sequence[float], *, crop_scale: float = 0.08) -> tuple[Policy, ...]:
    """The policies of these names, to be applied in the order given.

    Args:
        mean: Colour that holes are filled with.
        crop_scale: Smallest share of the area that ``resized_crop`` keeps.
    """
    offered = {"fill": mean, "crop_scale": crop_scale}
    made = []
    for name in names:
        _check_pixels(name, len(mean))
        policy = registry.get("augmentation", name).cls
        taken = inspect.signature(policy).parameters
        made.append(partial(policy, **{key: value for key, value in offered.items() if key in taken}))
    return tuple(made)
