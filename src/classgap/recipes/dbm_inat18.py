"""DBM with BCL on iNaturalist 2018: ResNet-50, 100 epochs (DBM, Table 4).

    classgap train dbm_inat18 --devices 8 --set data.root=DIR
    classgap train dbm_inat18 --devices 8 --set data.root=DIR --set method=gml
    classgap train dbm_inat18 --quick       # on a small stand-in, about a minute on a CPU
    classgap bench dbm_inat18               # beside cross-entropy, with the published row

Published: 71.9 (many / medium / few 65.6 / 71.8 / 73.8); BCL 71.0, cross-entropy 61.0 (quoted).
Cost: estimate, assuming 2,500 images per second on each of 8 A100 and three views of each image: 2 hours.
Learning rate, weight decay and batch are those of the authors' code; the text does not state them.
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
    "precision=bf16-mixed",
    "data.augment=resized_crop,flip,color_jitter,randaugment",
    "data.view_augment=resized_crop,flip,simclr,blur",
    "method=bcl",
    "method.base=dbm",
    'method.base_params={"variant": "bs", "s": 30.0, "k_m": 0.1}',
    "optim.lr=0.2",
    "optim.weight_decay=1e-4",
    "epochs=100",
    "batch=256",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 4", {"many-shot": 73.9, "medium-shot": 63.5, "few-shot": 55.5, "overall": 61.0}),
    "bcl": ("Table 4", {"many-shot": 65.6, "medium-shot": 71.8, "few-shot": 73.8, "overall": 71.9}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
