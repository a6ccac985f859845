"""ELM on ImageNet-LT: ResNet-50, 90 epochs (ELM, Tables 2 and 3).

    classgap train elm_imagenet_lt --set data.root=DIR
    classgap train elm_imagenet_lt --set data.root=DIR --set method=logit_adjusted
    classgap train elm_imagenet_lt --quick       # on a small stand-in, about a minute on a CPU
    classgap bench elm_imagenet_lt               # beside cross-entropy, with the published row

Published: 50.60; cross-entropy 45.20, logit adjustment 50.37 (3 runs).
Cost: estimate, assuming 2,500 images per second on one A100: 70 minutes.
α is 10 √π, λ is 0.001 (section A.2).
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=imagenet_lt",
    "model=timm:resnet50",
    "data.size=224",
    "data.resize=256",
    "data.augment=resized_crop,flip",
    "precision=bf16-mixed",
    "method=elm",
    "method.alpha=sqrt_prior",
    "method.alpha_scale=10",
    "method.lam=0.001",
    "optim.lr=0.4",
    "optim.weight_decay=5e-4",
    "epochs=90",
    "batch=512",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 2", {"overall": 45.2}),
    "elm": ("Table 2", {"overall": 50.6}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
