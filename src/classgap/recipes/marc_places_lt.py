"""MARC on Places-LT: ResNet-152 with ImageNet weights, 30 epochs and a second stage (MARC, Table 5).

    classgap train marc_places_lt --set data.root=DIR
    classgap train marc_places_lt --set data.root=DIR --set stage=none
    classgap train marc_places_lt --quick       # on a small stand-in, about a minute on a CPU
    classgap bench marc_places_lt               # beside cross-entropy, with the published row

Published: 38.4 (many / medium / few 39.9 / 39.8 / 32.6); cross-entropy 31.5 (46.4 / 27.9 / 12.5).
Cost: estimate, assuming 1,000 images per second on one A100: 45 minutes.
The authors' code downloads the first stage instead of training it.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=places_lt",
    "data.size=224",
    "data.resize=256",
    "precision=bf16-mixed",
    "model=torchvision:resnet152",
    "model.pretrained=true",
    "data.augment=resized_crop,flip,color_jitter",
    "stage=marc",
    "stage.gamma=1.2",
    "stage.ridge=0",
    "stage.steps=2000",
    "stage.normalize=batch",
    "stage.passes=10",
    "optim.lr=0.1",
    "optim.weight_decay=5e-4",
    "epochs=30",
    "batch=128",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 5", {"many-shot": 46.4, "medium-shot": 27.9, "few-shot": 12.5, "overall": 31.5}),
    "marc": ("Table 5", {"many-shot": 39.9, "medium-shot": 39.8, "few-shot": 32.6, "overall": 38.4}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
