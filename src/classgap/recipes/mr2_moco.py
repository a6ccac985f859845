"""MR² on MoCo v2: a linear probe of a frozen ResNet-50 on ImageNet with the logit margin alone (MR², Tables 2b and 15b).

    classgap train mr2_moco --set data.root=DIR --set model.pretrained=moco_v2_800ep_pretrain.pth.tar
    classgap train mr2_moco --set data.root=DIR --set model.pretrained=FILE --set method=cross_entropy
    classgap train mr2_moco --quick       # on a small stand-in, about a minute on a CPU
    classgap bench mr2_moco               # beside cross-entropy, with the published row

Published: overall / easy / medium / hard 72.4 / 89.6 / 74.8 / 52.7; cross-entropy 71.1 / 89.0 / 73.5 / 50.7 (Table 2b).
Cost: estimate, assuming 7,000 images per second through the frozen network on one A100: 5 hours.
The weights are those of the MoCo repository (800 epochs). Weight decay is not stated; MoCo has 0.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=imagenet",
    "data.size=224",
    "data.resize=256",
    "data.augment=resized_crop,flip",
    "precision=bf16-mixed",
    "data.val_fraction=0",
    "model=torchvision:resnet50",
    "model.pretrained=moco_v2_800ep_pretrain.pth.tar",
    "model.frozen=true",
    "method=mr2_published",
    "method.c_bar=2",
    "method.lam=0",
    "optim.lr=30",
    "optim.weight_decay=0",
    "schedule=step",
    "schedule.milestones=60,80",
    "epochs=100",
    "batch=256",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 2b", {"overall": 71.1, "easy": 89.0, "medium": 73.5, "hard": 50.7}),
    "mr2_published": ("Table 2b", {"overall": 72.4, "easy": 89.6, "medium": 74.8, "hard": 52.7}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
