"""ELM on iNaturalist 2018: ResNet-50, 90 epochs (ELM, Tables 2 and 3).

    classgap train elm_inat18 --devices 8 --set data.root=DIR
    classgap train elm_inat18 --devices 8 --set data.root=DIR --set method=logit_adjusted
    classgap train elm_inat18 --quick       # on a small stand-in, about a minute on a CPU
    classgap bench elm_inat18               # beside cross-entropy, with the published row

Published: 68.71; cross-entropy 61.34, logit adjustment 66.36 (3 runs).
Cost: estimate, assuming 2,500 images per second on each of 8 A100: 35 minutes.
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
    "method=elm",
    "method.alpha=sqrt_count",
    "method.lam=0.01",
    "optim.lr=0.4",
    "optim.weight_decay=1e-4",
    "epochs=90",
    "batch=1024",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 2", {"overall": 61.34}),
    "elm": ("Table 2", {"overall": 68.71}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
