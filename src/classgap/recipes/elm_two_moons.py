"""ELM on two moons with a rare class: a network of 16, 8 and 2 units (ELM, Fig. 1).

    classgap train elm_two_moons
    classgap train elm_two_moons --set method=logit_adjusted
    classgap train elm_two_moons --quick       # on a small stand-in, about a minute on a CPU
    classgap bench elm_two_moons               # beside cross-entropy, with the published row

Published: a figure without numbers; `examples/two_moons.py` draws it.
Cost: seconds on a CPU.
Noise, optimiser, α and λ of the figure are not stated. Every step takes all 400 points.
"""

from __future__ import annotations

from classgap.training import TrainConfig
from classgap.training.recipes import build

SETTINGS = (
    "data=two_moons",
    "data.val_fraction=0",
    "model=mlp-16-8-2",
    "method=elm",
    "method.alpha=sqrt_count",
    "method.lam=0.01",
    "optim=adamw",
    "optim.lr=0.01",
    "optim.weight_decay=0",
    "epochs=500",
    "batch=400",
)
PUBLISHED: dict[str, tuple[str, dict[str, float]]] = {}


def config(quick: bool = False) -> TrainConfig:
    """The published setting, or a short run on a stand-in."""
    return build(SETTINGS, quick)
