"""ELM on CIFAR-100-LT, imbalance 100: ResNet-32 (ELM, Tables 2 and 3).

    classgap train elm_cifar_lt
    classgap train elm_cifar_lt --set data=cifar10_lt --set method.alpha=prior
    classgap train elm_cifar_lt --set method=logit_adjusted
    classgap train elm_cifar_lt --quick       # on a small stand-in, about a minute on a CPU
    classgap bench elm_cifar_lt               # beside cross-entropy, with the published row

Published: 45.77; cross-entropy 38.36, logit adjustment 43.89. CIFAR-10-LT: 77.95, 72.84, 77.67 (3 runs).
Cost: estimate, assuming 15,000 images per second on one A100: 3 minutes.
The paper sums the pull over all samples of a class, training over those of the batch.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=cifar100_lt",
    "data.imbalance=100",
    "data.val_fraction=0",
    "data.augment=crop,flip",
    "model=resnet32",
    "method=elm",
    "method.alpha=sqrt_count",
    "method.lam=0.01",
    "optim.lr=0.4",
    "optim.weight_decay=1e-4",
    "schedule=step",
    "schedule.warmup=15",
    "schedule.milestones=96,192,224",
    "epochs=256",
    "batch=128",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 2", {"overall": 38.36}),
    "elm": ("Table 2", {"overall": 45.77}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
