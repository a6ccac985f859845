"""MARC on CIFAR-100-LT: ResNet-32, 13 000 steps and a second stage (MARC, Tables 2, 6, 7, Fig. 6).

    classgap train marc_cifar_lt --set data.imbalance=200 --set epochs=684
    classgap train marc_cifar_lt --set data=cifar10_lt --set data.imbalance=100 --set epochs=520
    classgap train marc_cifar_lt --set stage=none
    classgap train marc_cifar_lt --quick       # on a small stand-in, about a minute on a CPU
    classgap bench marc_cifar_lt               # beside cross-entropy, with the published row

Published: 50.8 (imbalance 100), 47.4 (200); cross-entropy 45.3, 41.0; CIFAR-10-LT 85.3 and 81.1.
Cost: estimate, assuming 15,000 images per second on one A100: 8 minutes.
The text does not state the augmentation; it is that of the authors' code. 591 epochs of 22 steps are 13 000 steps.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=cifar100_lt",
    "data.imbalance=100",
    "data.val_fraction=0",
    "data.augment=crop,flip,autoaugment,cutout",
    "model=resnet32",
    "stage=marc",
    "stage.gamma=1.2",
    "stage.ridge=0",
    "stage.steps=2000",
    "stage.normalize=batch",
    "stage.passes=10",
    "optim.lr=0.05",
    "optim.weight_decay=5e-4",
    "epochs=591",
    "batch=512",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 2", {"overall": 45.3}),
    "marc": ("Table 2", {"overall": 50.8}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
