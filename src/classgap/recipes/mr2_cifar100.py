"""MR² on CIFAR-100: ResNet-32 from scratch, 300 epochs (MR², Tables 1a, 2a, 3, 8, 11a to 13, 15a).

    classgap train mr2_cifar100
    classgap train mr2_cifar100 --set model=wrn-22-10
    classgap train mr2_cifar100 --set method=cross_entropy
    classgap train mr2_cifar100 --quick       # on a small stand-in, about a minute on a CPU
    classgap bench mr2_cifar100               # beside cross-entropy, with the published row

Published: overall / easy / medium / hard 73.9 / 85.9 / 73.8 / 61.9; cross-entropy 70.9 / 84.5 / 71.0 / 56.7 (3 runs, Table
1a).
Cost: estimate, assuming 15,000 images per second on one A100: 20 minutes; WRN-22-10 two hours.
Tuned "on validation sets" over c̄ ∈ {1, 2, 3} and λ ∈ {0.1, …, 0.9}; the values here are the best ones of Tables 12 and 13,
see also `classgap tune`. This is eq. 2 as it is printed, which stopped training in all smaller settings that were tried with
features not scaled to unit length (docs/evidence.md); method=mr2_released follows the authors' code, method=mr2 is the default
of this package.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=cifar100",
    "data.val_fraction=0",
    "data.augment=crop,flip",
    "model=resnet32",
    "method=mr2_published",
    "method.c_bar=2",
    "method.lam=0.5",
    "optim.lr=0.1",
    "optim.weight_decay=5e-4",
    "epochs=300",
    "batch=128",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 1a", {"overall": 70.9, "easy": 84.5, "medium": 71.0, "hard": 56.7}),
    "mr2_published": ("Table 1a", {"overall": 73.9, "easy": 85.9, "medium": 73.8, "hard": 61.9}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
