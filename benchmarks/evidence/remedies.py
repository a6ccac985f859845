"""What closes the gap besides a loss: averages of weights, ensembles, longer training, mixing, and more labels for some classes.

    classgap bench benchmarks/evidence/remedies.py --workers 2
CIFAR-100 embeddings, a hidden layer, 100 training samples per class; 50 more per class are kept aside for the variants that add
samples. The control of a remedy has the same cost or the same number of labels. Cost: about 20 seconds per training on one core.
"""

from __future__ import annotations

from evidence_common import COMPACT, CONFUSED_MIXUP, DATA, EMA, ERM, MIXUP, RERUN, SEEDS, SWA, more_labels

from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_effnetlite0_pca256.npz",
            "data.per_class=100",
            "data.spare=50",
            "data.augment=none",
            "model=mlp-512",
            "optim.lr=0.05",
            "epochs=30",
            "batch=128",
        ]
    )
    variants = (
        ERM,
        RERUN,
        COMPACT,
        EMA,
        SWA,
        Variant("cross_entropy, 3 × the epochs", settings=("epochs=90",), note="control of the ensemble"),
        Variant(
            "cross_entropy, ensemble of 2",
            settings=("stage=ensemble", "stage.members=2"),
        ),
        Variant(
            "cross_entropy, ensemble of 3",
            settings=("stage=ensemble", "stage.members=3"),
        ),
        *(
            Variant(
                f"{loss.name}, ensemble of 3 + gap dial",
                loss.method,
                settings=("stage=ensemble", "stage.members=3", "stage.dial=1"),
                note="the same with class offsets of strength 1",
            )
            for loss in (ERM, COMPACT)
        ),
        Variant(
            "distillation of an ensemble of 3",
            "distillation",
            settings=("stage=ensemble_teacher", "stage.members=3"),
            note="one network that learns from the ensemble",
        ),
        MIXUP,
        CONFUSED_MIXUP,
        *more_labels(classes=100, spare=50),
    )
    return Suite(
        "remedies",
        tasks=(Task("hidden layer", base, "100 training samples per class, a hidden layer of 512"),),
        variants=variants,
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
