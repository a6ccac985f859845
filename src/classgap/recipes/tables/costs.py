"""What a run of a table needs: an estimate from the number of images that one GPU is assumed to train on per second."""

from __future__ import annotations

import dataclasses

from classgap.data.catalogue import SOURCES
from classgap.data.splits import profile_counts
from classgap.suites import Suite
from classgap.training import TrainConfig

GPU = "A100"
CIFAR_RATE = 15_000
# Images per second on one GPU; a frozen network only computes forward.
RATES = {
    "wrn-22-10": 2_100,
    "timm:resnet18": CIFAR_RATE,  # on images of 28 pixels
    "timm:resnet50": 2_500,
    "timm:resnext50_32x4d": 1_500,
    "torchvision:resnet50": 7_000,  # frozen
    "torchvision:resnet152": 1_000,
    "clip:RN50": 1_800,
    "clip:ViT-B-32": 1_800,
    "mae:vit_base_patch16_224": 1_100,
}


def with_costs(suite: Suite) -> Suite:
    """The suite with an estimate of what a run of each task costs."""
    tasks = (dataclasses.replace(task, cost=estimated_cost(task.config)) for task in suite.tasks)
    return dataclasses.replace(suite, tasks=tuple(tasks))


def estimated_cost(config: TrainConfig) -> str:
    """Time of one plain run in words.

    Example:
        >>> estimated_cost(TrainConfig().override(["data=cifar100", "model=resnet32", "epochs=300"]))
        'about 17 minutes of one A100, assuming 15,000 images per second'
    """
    name = config.model.name.removesuffix("-quickgelu")
    rate = RATES[name] if ":" in name else RATES.get(name, CIFAR_RATE)  # a network of a library must be listed
    minutes = training_images(config) * config.epochs / rate / 60
    time = f"{minutes / 60:.0f} hours" if minutes > 180 else f"{max(1, round(minutes))} minutes"
    return f"about {time.removesuffix('s') if time.startswith('1 ') else time} of one {GPU}, assuming {rate:,} images per second"


def training_images(config: TrainConfig) -> int:
    """Images that an epoch of the run visits, before any are kept for validation."""
    known, data = SOURCES[config.data.name], config.data
    if data.per_class is None:
        return known.counts[0]
    return int(profile_counts(known.classes, data.per_class, data.profile, data.imbalance).sum())
