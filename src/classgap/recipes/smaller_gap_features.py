"""A smaller gap on frozen features: a hidden layer, compact logits and a gap dial (classgap).

    classgap features timm:resnet50 photos/ --set data.size=224 --out photos.safetensors
    classgap train smaller_gap_features --set data=photos.safetensors
    classgap train smaller_gap_features          # digits, whose 64 pixels are the features
    classgap train smaller_gap_features --quick       # two epochs
    classgap bench smaller_gap_features          # beside cross-entropy, a re-run of it, and compact logits alone

Measured in points against cross-entropy with as many samples, with 95 % intervals (docs/evidence.md):
features of EfficientNet-Lite0 for CIFAR-100, 100 images per class, 5 seeds:
overall +1.8 [+1.2, +2.5], hard +3.6 [+2.3, +4.8], easy +0.5 [-0.4, +1.4].
On texts (Banking77, features of all-MiniLM-L6-v2, 3 seeds) no gain of the gap dial could be shown; compact logits alone
(--set stage=none), against cross-entropy without the validation samples too:
overall +1.3 [+0.7, +1.8], hard +1.9 [+0.8, +3.0], easy +0.6 [+0.0, +1.1].
Cost: measured, a minute on one core for 10,000 samples; the dial is fitted on validation samples, and then the network is
trained again with those samples too.
For features that a hidden layer can separate: cross-entropy should fit its training samples.
"""

from __future__ import annotations

from classgap.recipes.smaller_gap_images import compared
from classgap.suites import Suite, Variant
from classgap.training import TrainConfig
from classgap.training.recipes import build

PLAIN = ("data=digits", "data.augment=none", "model=mlp-512", "optim.lr=0.05", "epochs=30", "batch=128")
DIAL = ("stage=gap_dial", "stage.refit=true")
ALL_SAMPLES = "data.val_fraction=0"  # the network behind the dial is trained on all samples in the end


def config(quick: bool = False) -> TrainConfig:
    """Compact logits, the dial, and training again with the dial's samples."""
    return build((*PLAIN, "method=compact_logits", *DIAL), quick)


def suite() -> Suite:
    """The remedies beside the same training without them, with as many samples."""
    held_out = f"data.val_fraction={build(PLAIN, quick=False).data.val_fraction:g}"
    return compared(
        "smaller_gap_features",
        build((*PLAIN, ALL_SAMPLES), quick=False),
        Variant("compact logits", "compact_logits"),
        Variant("compact logits, gap dial, refit", "compact_logits", settings=(held_out, *DIAL)),
    )
