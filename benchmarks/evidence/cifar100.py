"""CIFAR-100 with 100 training images a class: many classes, few samples, images.

    classgap bench benchmarks/evidence/cifar100.py --workers 2
Cost: 40 epochs of ResNet-32 take about 50 minutes on one core.
"""

from __future__ import annotations

from evidence_common import AUTOAUGMENT, DATA, KEY_VARIANTS, SEEDS

from classgap.bench import Suite, Task, Variant
from classgap.train import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_100per.npz",
            "data.augment=crop,flip",
            "model=resnet32",
            "epochs=40",
            "batch=128",
        ]
    )
    return Suite(
        "cifar100",
        tasks=(
            Task("resnet32", base, "crop and flip, 40 epochs"),
            Task("resnet32, AutoAugment", base.override([AUTOAUGMENT]), "the same with AutoAugment"),
        ),
        variants=(
            *KEY_VARIANTS,
            Variant(
                "cross_entropy + AutoAugment",
                settings=(AUTOAUGMENT,),
                tasks=("resnet32",),
                note="augmentation as the remedy",
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
