"""What closes the gap on images besides a loss, at equal cost and with equal data: CIFAR-10, 500 training images per class.

    classgap bench benchmarks/evidence/remedies_images.py --workers 2
A small network from scratch, and ResNet-20 until the training images are fitted; the same remedies after ImageNet weights are
in the suite *finetune*, with frozen features in the suite *remedies*. Cost on one core: about 4 minutes per run of the small
network, three times as much for ensembles and for three times the epochs; about 20 minutes per run of ResNet-20.
"""

from __future__ import annotations

from evidence_common import (
    AUGMENTED,
    COMPACT,
    DATA,
    ERM,
    FITTED,
    HEADLINE_SEEDS,
    RERUN,
    SWA,
    after_training,
    only_on,
    remedies,
)

from classgap.suites import Suite, Task
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        ["data=npz:cifar10_500per.npz", "data.augment=crop,flip", "model=wrn-10-1", "epochs=30", "batch=128"]
    )
    fitting = base.override(["model=resnet20", "epochs=100", "precision=bf16-mixed"])
    autoaugment, randaugment, *_, cutmix = AUGMENTED
    of_small = (variant for variant in remedies(base.epochs) if variant not in FITTED)
    return Suite(
        "remedies_images",
        tasks=(
            Task("wrn-10-1", base, "a small network, 30 epochs, crop and flip"),
            Task("resnet20", fitting, "until the training images are fitted, 100 epochs, crop and flip, bfloat16"),
        ),
        variants=(
            ERM,
            RERUN,
            *only_on(("wrn-10-1",), COMPACT, *of_small),
            *FITTED,
            autoaugment,
            *only_on(("resnet20",), randaugment, cutmix, SWA, after_training(ERM), after_training(autoaugment)),
        ),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
