"""Frozen CIFAR-100 embeddings, 100 training samples per class, and long tails: what does each part of the losses do?

    classgap bench benchmarks/evidence/embeddings.py
Cost: 290 runs, 7 to 25 seconds each on one core.
"""

from __future__ import annotations

from evidence_common import (
    COMPACT,
    CONSTANT,
    CONSTANT_WEIGHTS,
    DATA,
    DIALLED,
    DIALLED_BY_2,
    ERM,
    HEADLINE_SEEDS,
    MR2,
    MR2_CONSTANT,
    MR2_FORMS,
    MR2_PUBLISHED_WEIGHTS,
    REFITTED,
    RERUN,
    SMOOTHING,
    SQUEEZE,
    TEMPERATURE,
    WITHOUT_MARGINS,
    margin_only,
    more_samples,
    only_on,
    slower,
)

from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig

TRAINED_FEATURES = ("mlp",)  # the features of a linear probe are not trained
BALANCED = ("linear", "mlp")


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_effnetlite0_pca256.npz",
            "data.per_class=100",
            "data.augment=none",
            "epochs=30",
            "batch=128",
        ]
    )
    linear = base.override(["model=linear", "optim.lr=0.02"])
    tail = linear.override(["data.per_class=400", "data.profile=exponential"])
    return Suite(
        "embeddings",
        tasks=(
            Task("linear", linear, "linear probe: classes overlap, training accuracy 0.83"),
            Task(
                "mlp",
                base.override(["model=mlp-512", "optim.lr=0.05"]),
                "one hidden layer of 512: training accuracy 1.0, classes are separated",
            ),
            Task("linear, tail 10", tail.override(["data.imbalance=10"]), "linear probe, 400 to 40 samples per class"),
            Task("linear, tail 100", tail.override(["data.imbalance=100"]), "linear probe, 400 to 4 samples per class"),
        ),
        variants=(
            ERM,
            COMPACT,
            *only_on(("linear, tail*",), Variant("logit adjustment", "logit_adjusted")),
            *only_on(
                BALANCED,
                MR2,
                MR2_CONSTANT,
                CONSTANT,
                RERUN,
                SMOOTHING,
                margin_only("γ only, c̄=1", 1.0),
                margin_only("γ only, c̄=2", 2.0),
                margin_only("γ only, c̄=3", 3.0),
                TEMPERATURE,
                margin_only("γ only, c̄=2, p=1", 2.0, p=1.0),
                margin_only("γ only, c̄=2, p=3", 2.0, p=3.0),
                *CONSTANT_WEIGHTS,
                *DIALLED,
                *DIALLED_BY_2,
                *REFITTED,
                *more_samples("data.per_class=150"),
            ),
            *only_on(
                TRAINED_FEATURES,
                slower(0.025),
                *SQUEEZE,
                WITHOUT_MARGINS,
                *MR2_FORMS[1:],
                MR2_PUBLISHED_WEIGHTS,
            ),
        ),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
