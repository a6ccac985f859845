"""Fashion-MNIST with 300 training images a class: shirts, pullovers and coats against everything else.

    classgap bench benchmarks/evidence/fashion.py --workers 2
Cost: 30 epochs of ResNet-20 take about 2 minutes on one core. Data: `classgap data prepare fashion_mnist`.
"""

from __future__ import annotations

from evidence_common import KEY_VARIANTS, SEEDS

from classgap.bench import Suite, Task
from classgap.train import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        [
            "data=fashion_mnist",
            "data.per_class=300",
            "data.val_fraction=0.05",
            "model=resnet20",
            "precision=bf16-mixed",
            "epochs=30",
            "batch=128",
        ]
    )
    return Suite(
        "fashion",
        tasks=(
            Task("plain", base.override(["data.augment=none"]), "no augmentation: training accuracy reaches 1.0"),
            Task("crop and flip", base.override(["data.augment=crop,flip"]), "the customary augmentation"),
        ),
        variants=KEY_VARIANTS,
        seeds=SEEDS,
        about=__doc__.split("\n", 1)[0],
    )
