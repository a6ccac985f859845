"""Long tails, largest class 100 times the smallest: margins from counts against margins from spread, and both.

    classgap bench benchmarks/evidence/longtail.py --workers 2
Cost: 10 seconds a run on embeddings, about 3 minutes on images, on one core.
"""

from __future__ import annotations

from evidence_common import DATA, HEADLINE_SEEDS

from classgap.bench import Suite, Task, Variant
from classgap.train import TrainConfig


def suite() -> Suite:
    tail = ["data.profile=exponential", "data.imbalance=100", "batch=128"]
    embeddings = TrainConfig().override(
        [*tail, "data=npz:cifar100_effnetlite0_pca256.npz", "data.per_class=400", "data.augment=none"]
    )
    images = TrainConfig().override(
        [*tail, "data=npz:cifar10_500per.npz", "data.augment=crop,flip", "model=resnet20", "precision=bf16-mixed"]
    )
    return Suite(
        "longtail",
        tasks=(
            Task(
                "embeddings",
                embeddings.override(["model=mlp-512", "optim.lr=0.05", "epochs=30"]),
                "CIFAR-100 embeddings, 400 to 4 samples a class, one hidden layer",
            ),
            Task("cifar10", images.override(["epochs=60"]), "CIFAR-10, 450 to 4 images a class, ResNet-20"),
        ),
        variants=(
            Variant("cross_entropy"),
            Variant("cross_entropy, re-run", seed_shift=1000, note="the null: the same method with other seeds"),
            Variant("logit adjustment", "logit_adjusted"),
            Variant("balanced softmax", "balanced_softmax"),
            Variant("LA, uniform temperature 2", "mr2", {"gamma_rule": "uniform", "c_bar": 2.0, "lam": 0.0}),
            Variant("LA + MR² (default)", "mr2", note="MR2Loss(num_classes, class_counts=…)"),
            Variant("MR² without LA", "mr2", {"tau": 0.0}),
            Variant("MR², γ by spread and count", "mr2", {"gamma_rule": "imbalanced"}),
            Variant("ELM", "elm"),
            Variant("DBM + balanced softmax", "dbm", {"variant": "bs"}),
            Variant("LDAM + DRW", "drw", {"base": "ldam"}),
        ),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
