"""CIFAR-10 with 500 training images a class (the paper's Table 14), with and without AutoAugment on both sides.

    classgap bench benchmarks/evidence/cifar10.py --workers 2
Cost on one core: 30 epochs of Wide ResNet-10-1 about 4 minutes, of ResNet-20 about 15, of ResNet-32 about 25;
150 epochs of ResNet-32 about two hours.
"""

from __future__ import annotations

from evidence_common import (
    AUTOAUGMENT,
    DATA,
    ERM,
    MR2,
    ON_LOGITS,
    RELEASED,
    RERUN,
    SEEDS,
    SMOOTHING,
    TEMPERATURE,
    margin_only,
    only_on,
)

from classgap.bench import Suite, Task, Variant
from classgap.train import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(["data=npz:cifar10_500per.npz", "data.augment=crop,flip", "epochs=30", "batch=128"])
    small, large = base.override(["model=wrn-10-1"]), base.override(["model=resnet32", "epochs=150"])
    return Suite(
        "cifar10",
        tasks=(
            Task("wrn-10-1", small, "a small network, crop and flip"),
            Task("wrn-10-1, AutoAugment", small.override([AUTOAUGMENT]), "the same with AutoAugment on both sides"),
            Task("resnet20", base.override(["model=resnet20"]), "crop and flip"),
            Task("resnet32, 150 epochs", large, "the paper's network, crop and flip"),
            Task("resnet32, 150 epochs, AutoAugment", large.override([AUTOAUGMENT]), "AutoAugment on both sides"),
        ),
        variants=(
            ERM,
            MR2,
            *only_on(
                ("wrn-10-1",),
                Variant("cross_entropy + AutoAugment", settings=(AUTOAUGMENT,), note="augmentation as the remedy"),
                Variant("MR² (default) + AutoAugment", "mr2", settings=(AUTOAUGMENT,)),
                RERUN,
                SMOOTHING,
                *ON_LOGITS,
                RELEASED[1],
                margin_only("γ only, c̄=2", 2.0),
                TEMPERATURE,
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
