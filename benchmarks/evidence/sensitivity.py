"""The default of MR² against cross-entropy as one thing at a time is changed: batch, width, learning rate, length, sampling.

    classgap bench benchmarks/evidence/sensitivity.py --workers 2
The point of departure is the task `mlp` of the suite *embeddings*. Cost: 5 to 60 seconds a run on one core.
"""

from __future__ import annotations

from evidence_common import CONSTANT, DATA, ERM, MR2, SEEDS, only_on

from classgap.bench import Suite, Task, Variant
from classgap.train import TrainConfig

CHANGES = {
    "batch 32": "batch=32",
    "batch 512": "batch=512",
    "width 128": "model=mlp-128",
    "width 2048": "model=mlp-2048",
    "learning rate 0.01": "optim.lr=0.01",
    "learning rate 0.2": "optim.lr=0.2",
    "10 epochs": "epochs=10",
    "100 epochs": "epochs=100",
    "weight decay 0.005": "optim.weight_decay=0.005",
    "32 classes × 4 in a batch": "sampler=p_by_q",
}
FEATURES = {"form": "release", "lam": 1.0, "c_bar": 1.0}  # a weight at which the pull between features acts


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_effnetlite0_pca256.npz",
            "data.per_class=100",
            "data.augment=none",
            "model=mlp-512",
            "optim.lr=0.05",
            "epochs=30",
            "batch=128",
        ]
    )
    return Suite(
        "sensitivity",
        tasks=(
            Task("mlp", base, "the point of departure"),
            *(Task(name, base.override([change])) for name, change in CHANGES.items()),
        ),
        variants=(
            ERM,
            MR2,
            CONSTANT,
            *only_on(
                ("mlp",),
                Variant("MR² as released, λ=1", "mr2", FEATURES),
                Variant("MR² as released, λ=1, queue of 8", "mr2", {**FEATURES, "queue": 8}),
                *(
                    Variant(f"MR² as released, λ=1, spread {spread}", "mr2", {**FEATURES, "spread": spread})
                    for spread in ("ratio", "moments", "batch", "zero")
                ),
            ),
        ),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
