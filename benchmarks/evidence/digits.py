"""Handwritten digits, few training images per class: a task that anybody can repeat in minutes, without a download.

    classgap bench benchmarks/evidence/digits.py
Cost: 150 runs, 2 to 10 seconds each on one core.
"""

from __future__ import annotations

from evidence_common import CONSTANT_WEIGHTS, DECAY, HEADLINE_SEEDS, KEY_VARIANTS, SQUEEZE, WITHOUT_MARGINS, slower

from classgap.suites import Suite, Task
from classgap.training import TrainConfig


def suite() -> Suite:
    base = TrainConfig().override(["data=digits", "data.per_class=15", "model=mlp-128-64", "optim.lr=0.05", "batch=50"])
    return Suite(
        "digits",
        tasks=(
            Task("short", base.override(["epochs=15"]), "15 epochs: training stops before the classes are separated"),
            Task("long", base.override(["epochs=100"]), "100 epochs: to training accuracy 1.0"),
        ),
        variants=(
            *KEY_VARIANTS,
            slower(0.025),
            DECAY,
            *SQUEEZE,
            *CONSTANT_WEIGHTS,
            WITHOUT_MARGINS,
        ),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
    )
