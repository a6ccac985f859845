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
    RERUN,
    SEEDS,
    SMOOTHING,
    TEMPERATURE,
    default_with,
    margin_only,
    only_on,
)

from classgap.bench import Suite, Task, Variant
from classgap.train import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(["data=npz:cifar10_500per.npz", "data.augment=crop,flip", "epochs=30", "batch=128"])
    return Suite(
        "cifar10",
        tasks=(
            Task("wrn-10-1", base.override(["model=wrn-10-1"]), "a small network, crop and flip"),
            Task("resnet20", base.override(["model=resnet20"]), "crop and flip"),
            Task("resnet32, 150 epochs", base.override(["model=resnet32", "epochs=150"]), "the paper's network, long"),
        ),
        variants=(
            ERM,
            MR2,
            # The reference of "MR² + AutoAugment" and a remedy of its own.
            Variant("cross_entropy + AutoAugment", settings=(AUTOAUGMENT,), note="augmentation as the remedy"),
            Variant("MR² (default) + AutoAugment", "mr2", settings=(AUTOAUGMENT,)),
            default_with(1.0),
            *only_on(
                ("wrn-10-1",),
                RERUN,
                SMOOTHING,
                margin_only("γ only, c̄=2", 2.0),
                TEMPERATURE,
                default_with(0.3),
                default_with(3.0),
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
