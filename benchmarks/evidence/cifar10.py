"""CIFAR-10 with 500 training images a class (the paper's Table 14), with and without AutoAugment on both sides.

    classgap bench benchmarks/evidence/cifar10.py --workers 2
Cost: 40 epochs of ResNet-32 take about 5 minutes on one core, with AutoAugment about 8.
"""

from __future__ import annotations

from evidence_common import DATA, KEY_VARIANTS, SEEDS

from classgap.bench import Suite, Task, Variant
from classgap.train import TrainConfig

AUTOAUGMENT = "data.augment=crop,flip,autoaugment"


def suite() -> Suite:
    base = TrainConfig().override(
        ["data=npz:cifar10_500per.npz", "data.augment=crop,flip", "precision=bf16-mixed", "epochs=40", "batch=128"]
    )
    resnet20, resnet32 = (base.override([f"model={name}"]) for name in ("resnet20", "resnet32"))
    return Suite(
        "cifar10",
        tasks=(
            Task("resnet32", resnet32, "crop and flip, 40 epochs"),
            Task("resnet32, AutoAugment", resnet32.override([AUTOAUGMENT]), "the same with AutoAugment, 40 epochs"),
            Task("resnet20", resnet20, "a smaller network, crop and flip, 40 epochs"),
            Task("resnet20, AutoAugment", resnet20.override([AUTOAUGMENT]), "the same with AutoAugment, 40 epochs"),
            Task("resnet32, 150 epochs", resnet32.override(["epochs=150"]), "long training, crop and flip"),
            Task(
                "resnet32, 150 epochs, AutoAugment",
                resnet32.override(["epochs=150", AUTOAUGMENT]),
                "long training with AutoAugment",
            ),
        ),
        variants=(
            *KEY_VARIANTS,
            # The same runs as the reference of the AutoAugment tasks: augmentation judged as a remedy of its own.
            Variant(
                "cross_entropy + AutoAugment",
                settings=(AUTOAUGMENT,),
                tasks=("resnet20", "resnet32", "resnet32, 150 epochs"),
                note="augmentation as the remedy",
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
