"""MARC on long-tailed CIFAR (Table 2): re-sampling, losses, and second stages on the same network.

    classgap bench benchmarks/papers/marc.py --only "CIFAR-100-LT 200/*"
Settings as published: 13 000 steps of 512 images, SGD with a cosine, augmentation as in the authors' code; for a GPU. MARC is
eq. 11 without a ridge, by 2000 steps of SGD, the number of the authors' code (the paper does not say). The other second stages
are fitted exactly instead of by SGD, LWS and DisAlign with a ridge of 0.1 towards no change, which their papers do not have.
Each second stage comes after a first stage of its own. BBN and Hybrid-SC are not part of it.
"""

from __future__ import annotations

import math

from papers_common import ERM, RERUN, tail

from classgap.bench import Suite, Task, Variant

STEPS, BATCH = 13_000, 512
IMAGES = {("cifar10", 100): 12406, ("cifar10", 200): 11203, ("cifar100", 100): 10847, ("cifar100", 200): 9502}
AUGMENT = "data.augment=crop,flip,autoaugment,cutout"


def long_tail(data: str, imbalance: int) -> Task:
    epochs = round(STEPS / math.ceil(IMAGES[data, imbalance] / BATCH))
    return tail(
        data, imbalance, f"epochs={epochs}", f"batch={BATCH}", "optim.lr=0.05", "optim.weight_decay=5e-4", AUGMENT
    )


def suite() -> Suite:
    return Suite(
        "marc",
        tasks=tuple(long_tail(data, imbalance) for data, imbalance in IMAGES),
        variants=(
            ERM,
            RERUN,
            Variant("class-balanced sampling", settings=("sampler=class_balanced",)),
            Variant("class-balanced weights", "class_balanced", {"beta": 1 - 1e-7}, note="inverse class counts"),
            Variant("class-balanced loss", "class_balanced"),
            Variant("focal", "focal"),
            Variant("LADE", "lade"),
            Variant("LDAM", "ldam"),
            Variant("EQL", "eql"),
            Variant("balanced softmax", "balanced_softmax"),
            *(Variant(name, settings=settings) for name, settings in STAGES.items()),
        ),
        about=__doc__.split("\n", 1)[0],
    )


STAGES = {
    "DisAlign": ("stage=disalign",),
    "cRT": ("stage=crt",),
    "LWS": ("stage=lws",),
    "MARC": ("stage=marc", "stage.ridge=0", "stage.steps=2000", "stage.normalize=batch"),
}
