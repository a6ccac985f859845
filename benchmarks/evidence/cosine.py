"""CIFAR-100 embeddings with a cosine head: unit features, unit class vectors and a learned scale, as in CLIP.

    classgap bench benchmarks/evidence/cosine.py --workers 2
Cost: about 20 seconds per run on one core. Margins have norms of order 3, as in the paper (of order 2 all are equal).
The learning rate is that of cross-entropy with the best validation accuracy among 0.05, 0.2 and 0.5.
"""

from __future__ import annotations

from evidence_common import DATA, HEADLINE_SEEDS, mr2_regime

from classgap.suites import Suite, Task
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=npz:cifar100_effnetlite0_pca256.npz",
            "data.per_class=100",
            "data.augment=none",
            "model=mlp-512",
            "model.head=cosine",
            "optim.lr=0.05",
            "epochs=30",
            "batch=128",
        ]
    )
    return Suite(
        "cosine",
        tasks=(Task("hidden layer", base, "a hidden layer of 512 on frozen features of EfficientNet-Lite0"),),
        variants=mr2_regime(p=3.0),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
