"""CIFAR-10 with 500 training images per class (as in Table 14 of the MR² paper), with and without AutoAugment on both sides.

    classgap bench benchmarks/evidence/cifar10.py --workers 2
Cost on one core: 30 epochs of Wide ResNet-10-1 about 4 minutes, 100 epochs of ResNet-20 about 35 (45 with AutoAugment),
150 epochs of ResNet-32 about 75; a long-tailed run two minutes.
"""

from __future__ import annotations

from evidence_common import (
    AUGMENTED,
    AUTOAUGMENT,
    COMPACT,
    CONSTANT,
    CONSTANT_WEIGHTS,
    DATA,
    DIALLED,
    ERM,
    MR2,
    MR2_CONSTANT,
    REFITTED,
    RERUN,
    SEEDS,
    SMOOTHING,
    TEMPERATURE,
    margin_only,
    more_samples,
    only_on,
)

from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(["data=npz:cifar10_500per.npz", "data.augment=crop,flip", "epochs=30", "batch=128"])
    small = base.override(["model=wrn-10-1"])
    longer, paper = (base.override([f"model={m}", f"epochs={e}"]) for m, e in (("resnet20", 100), ("resnet32", 150)))
    tail = small.override(["epochs=60", "data.profile=exponential"])
    return Suite(
        "cifar10",
        tasks=(
            Task("wrn-10-1", small, "a small network, crop and flip"),
            Task("wrn-10-1, AutoAugment", small.override([AUTOAUGMENT]), "the same with AutoAugment on both sides"),
            Task("resnet20", longer, "100 epochs, crop and flip"),
            Task("resnet20, AutoAugment", longer.override([AUTOAUGMENT]), "the same with AutoAugment on both sides"),
            Task("resnet32", paper, "the network of the MR² paper, 150 epochs, crop and flip"),
            Task("resnet32, AutoAugment", paper.override([AUTOAUGMENT]), "the same with AutoAugment on both sides"),
            Task(
                "tail 10",
                tail.override(["data.imbalance=10"]),
                "450 to 45 images per class, the small network, 60 epochs",
            ),
            Task("tail 100", tail.override(["data.imbalance=100"]), "450 to 4 images per class"),
        ),
        variants=(
            ERM,
            COMPACT,
            *only_on(("wrn*", "resnet*"), MR2, CONSTANT),
            *only_on(("wrn-10-1",), MR2_CONSTANT),
            *only_on(
                ("wrn-10-1", "resnet20", "resnet32"),
                *AUGMENTED,
                Variant("compact logits + AutoAugment", COMPACT.method, settings=(AUTOAUGMENT,)),
                Variant(
                    "compact logits, constant pull + AutoAugment",
                    CONSTANT.method,
                    CONSTANT.params,
                    settings=(AUTOAUGMENT,),
                ),
            ),
            *only_on(("wrn-10-1", "resnet20*", "resnet32*"), *DIALLED),
            *only_on(("wrn-10-1", "resnet20"), *REFITTED, *more_samples()),
            *only_on(
                ("tail*",),
                Variant("logit adjustment", "logit_adjusted"),
                Variant("LDAM + DRW", "drw", {"base": "ldam"}),
            ),
            *only_on(
                ("wrn-10-1",),
                RERUN,
                SMOOTHING,
                *CONSTANT_WEIGHTS,
                margin_only("γ only, c̄=2", 2.0),
                TEMPERATURE,
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
