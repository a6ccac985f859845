"""Compact logits against cross-entropy as one setting at a time is changed: batch, width, learning rate, length, sampling.

    classgap bench benchmarks/evidence/sensitivity.py --workers 2
The base setting is the task `mlp` of the suite *embeddings*. Cost: 5 to 60 seconds per run on one core.
"""

from __future__ import annotations

from evidence_common import COMPACT, CONSTANT, DATA, ERM, SEEDS

from classgap.suites import Suite, Task
from classgap.training import TrainConfig

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
            Task("mlp", base, "the base setting"),
            *(Task(name, base.override([change])) for name, change in CHANGES.items()),
        ),
        variants=(ERM, COMPACT, CONSTANT),
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
