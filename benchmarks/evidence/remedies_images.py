"""What closes the gap on images besides a loss, at equal cost and with equal data: CIFAR-10, 500 training images per class.

    classgap bench benchmarks/evidence/remedies_images.py --workers 2
A small network from scratch; the same remedies after ImageNet weights are in the suite *finetune*, with frozen features in the
suite *remedies*. Cost on one core: about 4 minutes per run, three times as much for ensembles and for three times the epochs.
"""

from __future__ import annotations

from evidence_common import AUGMENTED, COMPACT, DATA, ERM, HEADLINE_SEEDS, RERUN, remedies

from classgap.suites import Suite, Task
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(
        ["data=npz:cifar10_500per.npz", "data.augment=crop,flip", "model=wrn-10-1", "epochs=30", "batch=128"]
    )
    return Suite(
        "remedies_images",
        tasks=(Task("wrn-10-1", base, "a small network, 30 epochs, crop and flip"),),
        variants=(ERM, RERUN, COMPACT, *remedies(base.epochs), *AUGMENTED[:1]),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=DATA,
    )
