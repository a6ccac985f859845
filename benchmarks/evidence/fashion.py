"""Fashion-MNIST with 100 training images per class: shirts, pullovers and coats against everything else.

    classgap bench benchmarks/evidence/fashion.py --workers 2
Cost: about a minute per run on one core. Data: `classgap data prepare fashion_mnist`.
"""

from __future__ import annotations

from evidence_common import (
    AUGMENTED,
    CENTER,
    COMPACT,
    CONSTANT,
    CONSTANT_WEIGHTS,
    DECAY,
    DIALLED,
    ERM,
    FOCAL,
    GROUP_DRO,
    LDAM,
    MR2,
    MR2_CONSTANT,
    MR2_PUBLISHED_WEIGHTS,
    REFITTED,
    RERUN,
    SAM,
    SEEDS,
    SMOOTHING,
    SQUEEZE,
    TEMPERATURE,
    margin_only,
    more_samples,
    only_on,
    slower,
)

from classgap.suites import Suite, Task
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=fashion_mnist",
            "data.per_class=100",
            "data.val_fraction=0.01",
            "model=wrn-10-1",
            "epochs=40",
            "batch=64",
        ]
    )
    return Suite(
        "fashion",
        tasks=(
            Task("plain", base.override(["data.augment=none"]), "no augmentation: training accuracy reaches 1.0"),
            Task("crop and flip", base.override(["data.augment=crop,flip"]), "the customary augmentation"),
        ),
        variants=(
            ERM,
            RERUN,
            MR2,
            MR2_CONSTANT,
            COMPACT,
            CONSTANT,
            SMOOTHING,
            margin_only("γ only, c̄=1", 1.0),
            margin_only("γ only, c̄=2", 2.0),
            TEMPERATURE,
            *only_on(("crop and flip",), *AUGMENTED),
            *only_on(("plain",), slower(0.05), MR2_PUBLISHED_WEIGHTS),
            *CONSTANT_WEIGHTS,
            *DIALLED,
            *REFITTED,
            *more_samples("data.per_class=160"),
            *only_on(("plain",), *SQUEEZE),
            *only_on(("plain",), DECAY, FOCAL, CENTER, LDAM, GROUP_DRO, SAM),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
    )
