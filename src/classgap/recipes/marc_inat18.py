"""MARC on iNaturalist 2018: ResNet-50, 200 epochs and a second stage (MARC, Table 3).

    classgap train marc_inat18 --devices 8 --set data.root=DIR
    classgap train marc_inat18 --devices 8 --set data.root=DIR --set stage=none
    classgap train marc_inat18 --quick       # on a small stand-in, about a minute on a CPU
    classgap bench marc_inat18               # beside cross-entropy, with the published row

Published: 70.4; cross-entropy 65.0.
Cost: estimate, assuming 2,500 images per second on each of 8 A100: 90 minutes.
The second stage has thirty passes over the training images, as thirty epochs. The authors' code downloads the first stage.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=inat18",
    "data.val_fraction=0",
    "model=timm:resnet50",
    "data.size=224",
    "data.resize=256",
    "data.augment=resized_crop,flip",
    "precision=bf16-mixed",
    "stage=marc",
    "stage.gamma=1.2",
    "stage.ridge=0",
    "stage.steps=2000",
    "stage.normalize=batch",
    "stage.passes=30",
    "optim.lr=0.1",
    "optim.weight_decay=1e-4",
    "epochs=200",
    "batch=256",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 3", {"overall": 65.0}),
    "marc": ("Table 3", {"overall": 70.4}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
