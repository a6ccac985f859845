"""CIFAR-100 with 100 training images per class: many classes, few samples, images.

    classgap bench benchmarks/evidence/cifar100.py --workers 2
Cost on one core: 30 epochs of the small network 3 to 6 minutes, 60 epochs of ResNet-20 in bfloat16 10 to 20, two or three times
as much for ensembles of 2 and for three times the epochs. ResNet-20 with flips alone was tried once, to fit the training images
sooner; 30 epochs are too few for that too. The network of the MR² paper, ResNet-32 for 300 epochs, is the recipe mr2_cifar100.
"""

from __future__ import annotations

import dataclasses

from evidence_common import (
    AUGMENTED,
    AUTOAUGMENT,
    COMPACT,
    DATA,
    ERM,
    MR2,
    MR2_CONSTANT,
    MR2_FORMS,
    RERUN,
    SEEDS,
    SMOOTHING,
    after_training,
    ensembles_of_2,
    longer,
    mr2_regime,
    only_on,
)

from classgap.suites import Suite, Task
from classgap.training import TrainConfig

_SMALL = (ERM, RERUN, MR2, MR2_CONSTANT, COMPACT, SMOOTHING)
_RELEASED = MR2_FORMS[2]
# Also trained for three times the epochs, in which cross-entropy fits the training images.
_LONG = (
    *(MR2, _RELEASED, COMPACT),
    *(
        dataclasses.replace(loss, name=f"{loss.name} + AutoAugment", settings=(AUTOAUGMENT,))
        for loss in (_RELEASED, COMPACT)
    ),
)


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_100per.npz",
            "data.augment=crop,flip",
            "model=wrn-10-1",
            "epochs=30",
            "batch=128",
        ]
    )
    fitting = base.override(["model=resnet20", "epochs=60", "precision=bf16-mixed"])
    flips = fitting.override(["data.augment=flip", "epochs=30"])
    regime, autoaugment = mr2_regime(), AUGMENTED[0]
    return Suite(
        "cifar100",
        tasks=(
            Task("resnet20", fitting, "60 epochs, crop and flip, bfloat16"),
            Task("resnet20, flips", flips, "30 epochs, flips without crops, bfloat16"),
            Task("wrn-10-1", base, "a small network, 30 epochs, crop and flip"),
        ),
        variants=(
            *_SMALL,
            *only_on(("resnet20",), *(variant for variant in regime if variant not in _SMALL)),
            *only_on(("resnet20", "wrn-10-1"), autoaugment),
            *only_on(("resnet20",), after_training(ERM), after_training(autoaugment), *ensembles_of_2()),
            *only_on(
                ("resnet20",),
                *(variant for before in (ERM, autoaugment, *_LONG) for variant in longer(before, fitting.epochs)),
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
