"""MR² on MAE: fine-tune ViT-B/16 on ImageNet, 100 epochs (MR², Tables 2b, 11b, 15b).

    classgap train mr2_mae --devices 8 --set data.root=DIR
    classgap train mr2_mae --devices 8 --set data.root=DIR --set method=cross_entropy
    classgap train mr2_mae --quick       # on a small stand-in, about a minute on a CPU
    classgap bench mr2_mae               # beside cross-entropy, with the published row

Published: overall / easy / medium / hard 82.0 / 94.8 / 85.3 / 66.1; cross-entropy 80.4 / 94.5 / 83.9 / 62.7 (Table 2b).
Cost: estimate, assuming 1,100 images per second on each of 8 A100: 4 hours.
A base rate of 1e-3 for 256 images is 4e-3 for a batch of 1024. Layer decay and weight decay are those of the MAE paper,
which the text follows without repeating them.
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
    "data.interpolation=bicubic",
    "model=mae:vit_base_patch16_224",
    "model.pretrained=true",
    "method=mr2_published",
    "method.c_bar=2",
    "method.lam=0.5",
    "optim=adamw",
    "optim.lr=4e-3",
    "optim.weight_decay=0.05",
    "optim.layer_decay=0.75",
    "optim.decay_norms=false",
    "schedule.warmup=5",
    "epochs=100",
    "batch=1024",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("Table 2b", {"overall": 80.4, "easy": 94.5, "medium": 83.9, "hard": 62.7}),
    "mr2_published": ("Table 2b", {"overall": 82.0, "easy": 94.8, "medium": 85.3, "hard": 66.1}),
}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
