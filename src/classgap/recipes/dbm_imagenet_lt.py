"""DBM with BCL on ImageNet-LT: ResNet-50 or ResNeXt-50, 90 epochs (DBM, Table 3).

    classgap train dbm_imagenet_lt --set data.root=DIR
    classgap train dbm_imagenet_lt --set data.root=DIR --set model=timm:resnext50_32x4d
    classgap train dbm_imagenet_lt --set data.root=DIR --set method=gml
    classgap train dbm_imagenet_lt --quick       # on a small stand-in, about a minute on a CPU
    classgap bench dbm_imagenet_lt               # beside cross-entropy, with the published row

Published: 56.3 with ResNet-50, 57.4 with ResNeXt-50; BCL 56.0 and 56.7, cross-entropy 41.6 and 44.4 (quoted).
Cost: estimate, assuming 2,500 images per second on one A100 and three views of each image: 3.5 hours.
Learning rate, weight decay and batch are those of the authors' code; the text does not state them.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=imagenet_lt",
    "model=timm:resnet50",
    "data.size=224",
    "data.resize=256",
    "precision=bf16-mixed",
    "data.augment=resized_crop,flip,color_jitter,randaugment",
    "data.view_augment=resized_crop,flip,simclr,blur",
    "method=bcl",
    "method.base=dbm",
    'method.base_params={"variant": "bs", "s": 30.0, "k_m": 0.1}',
    "optim.lr=0.1",
    "optim.weight_decay=5e-4",
    "epochs=90",
    "batch=256",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 3", {"overall": 41.6}),
    "bcl": ("Table 3", {"overall": 56.3}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
