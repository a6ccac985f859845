"""CIFAR-100 with 100 training images per class: many classes, few samples, images.

    classgap bench benchmarks/evidence/cifar100.py --workers 2
Cost on one core: 30 epochs of the small network about 6 minutes, 60 epochs of ResNet-20 in bfloat16 about 20, 40 epochs of
ResNet-32 about 50. ResNet-20 with flips alone was tried once, to fit the training images sooner; 30 epochs are too few for that
too.
"""

from __future__ import annotations

from evidence_common import (
    AUGMENTED,
    AUTOAUGMENT,
    COMPACT,
    DATA,
    ERM,
    MR2,
    MR2_CONSTANT,
    RERUN,
    SEEDS,
    SMOOTHING,
    mr2_regime,
    only_on,
)

from classgap.suites import Suite, Task
from classgap.training import TrainConfig

_SMALL = (ERM, RERUN, MR2, MR2_CONSTANT, COMPACT, SMOOTHING)


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
    paper = base.override(["model=resnet32", "epochs=40"])
    regime = mr2_regime()
    return Suite(
        "cifar100",
        tasks=(
            Task("resnet20", fitting, "60 epochs, crop and flip, bfloat16"),
            Task("resnet20, flips", flips, "30 epochs, flips without crops, bfloat16"),
            Task("wrn-10-1", base, "a small network, 30 epochs, crop and flip"),
            Task("resnet32", paper, "the network of the MR² paper, 40 epochs, crop and flip"),
            Task("resnet32, AutoAugment", paper.override([AUTOAUGMENT]), "the same with AutoAugment on both sides"),
        ),
        variants=(
            *_SMALL,
            *only_on(("resnet20",), *(variant for variant in regime if variant not in _SMALL)),
            *only_on(("wrn-10-1", "resnet32"), AUGMENTED[0]),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
