"""MARC on ImageNet-LT: ResNeXt-50, 90 epochs and a second stage (MARC, Tables 4 and 6).

    classgap train marc_imagenet_lt --set data.root=DIR
    classgap train marc_imagenet_lt --set data.root=DIR --set stage=none
    classgap train marc_imagenet_lt --quick       # on a small stand-in, about a minute on a CPU
    classgap bench marc_imagenet_lt               # beside cross-entropy, with the published row

Published: 52.3 (many / medium / few 60.4 / 50.3 / 36.6); cross-entropy 43.1 (65.1 / 35.7 / 6.6).
Cost: estimate, assuming 1,500 images per second on one A100: 2 hours.
The second stage has ten passes over the training images, as ten epochs.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=imagenet_lt",
    "data.size=224",
    "data.resize=256",
    "precision=bf16-mixed",
    "model=timm:resnext50_32x4d",
    "data.augment=resized_crop,flip,color_jitter",
    "stage=marc",
    "stage.gamma=1.2",
    "stage.ridge=0",
    "stage.steps=2000",
    "stage.normalize=batch",
    "stage.passes=10",
    "optim.lr=0.1",
    "optim.weight_decay=5e-4",
    "epochs=90",
    "batch=256",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 4", {"many-shot": 65.1, "medium-shot": 35.7, "few-shot": 6.6, "overall": 43.1}),
    "marc": ("Table 4", {"many-shot": 60.4, "medium-shot": 50.3, "few-shot": 36.6, "overall": 52.3}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
