"""CIFAR-100 with 100 training images per class, EfficientNet-Lite0 with its ImageNet weights, fine-tuned at 64 pixels.

    python benchmarks/evidence/prepare.py
    classgap bench benchmarks/evidence/finetune.py --workers 2
Cost on one core: 3 to 5 minutes per run, three times as much for ensembles and for three times the epochs.
"""

from __future__ import annotations

from evidence_common import (
    COMPACT,
    ERM,
    FITTED,
    HEADLINE_SEEDS,
    MR2,
    PREPARED,
    RERUN,
    SMOOTHING,
    after_training,
    more_labels,
    mr2_regime,
    only_on,
    remedies,
    remedies_of_fitted,
)

from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig


def suite() -> Suite:
    tuned = TrainConfig().override(
        [
            "data=npz:cifar100_64px.npz",
            "data.augment=flip",
            "model=timm:tf_efficientnet_lite0",
            "model.pretrained=runs/data/efficientnet_lite0.pth",
            "model.freeze_norms=true",
            "optim=adamw",
            "optim.lr=0.0005",
            "optim.weight_decay=0.01",
            "optim.decay_norms=false",
            "optim.clip=1",
            "schedule.warmup_steps=30",
            "epochs=3",
            "batch=64",
        ]
    )
    fitted = tuned.override(["epochs=9"])
    fewer = fitted.override(["data.per_class=60", "data.spare=30"])
    to_the_end = (RERUN, MR2, COMPACT, SMOOTHING, *FITTED)
    others = (variant for variant in (*mr2_regime(), *remedies(tuned.epochs)) if variant not in (ERM, *to_the_end))
    # As expensive to train as the distillation of an ensemble of 2: two teachers, their predictions, and the pupil.
    equal_cost = Variant(
        "cross_entropy, 33 epochs",
        settings=("epochs=33",),
        note="control of the distillation: the same cost of training",
    )
    short, long, small = "EfficientNet-Lite0", "EfficientNet-Lite0, 9 epochs", "EfficientNet-Lite0, 60 images per class"
    return Suite(
        "finetune",
        tasks=(
            Task(short, tuned, "all layers, 3 epochs, flips"),
            Task(long, fitted, "until the training images are fitted"),
            Task(small, fewer, "9 epochs; 30 more images per class are kept aside"),
        ),
        variants=(
            ERM,
            *only_on((short, long), *to_the_end),
            *only_on((long,), after_training(ERM), after_training(COMPACT), *remedies_of_fitted(), equal_cost),
            *only_on((short,), *others),
            *only_on((small,), *more_labels(classes=100, spare=30)),
        ),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=PREPARED,
    )
