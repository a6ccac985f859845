"""Banking77: customer questions in 77 intents with 35 to 187 training samples each, with the sentence encoder all-MiniLM-L6-v2.

    python benchmarks/evidence/prepare.py
    classgap bench benchmarks/evidence/banking77.py --workers 2
Cost on one core: seconds per run on frozen features; fine-tuned, 15 to 25 minutes in float32, and 5 minutes in bfloat16 where
the processor has instructions for it, otherwise 45. Learning rates of the frozen tasks are those
of cross-entropy with the best validation accuracy among 0.03, 0.1, 0.3, 1 and 3. Fine-tuned, cross-entropy fits the training
questions faster with 0.001 and layer decay than with 0.0001 and 0.0005 without; no validation or test accuracy was looked at.
"""

from __future__ import annotations

import dataclasses

from evidence_common import (
    COMPACT,
    DIALLED,
    ERM,
    HEADLINE_SEEDS,
    PREPARED,
    REFITTED,
    after_training,
    ensembles_of_2,
    longer,
    more_samples,
    mr2_regime,
    only_on,
)

from classgap.suites import Suite, Task, Variant
from classgap.training import TrainConfig

KNOW_COUNTS = ("MR²", "MR², constant λ", "compact logits")
COUNTS = "knows the number of training samples of each class"


def _with_counts(variant: Variant) -> Variant:
    params = {**variant.params, "class_counts": "train"}
    return dataclasses.replace(variant, name=f"{variant.name}, class counts", params=params, note=COUNTS)


def _without_counts(variant: Variant) -> Variant:
    """Losses that adjust logits where they know the class counts, without them, as on balanced data."""
    if variant.method not in ("mr2", "mr2_published", "compact_logits"):
        return variant
    return dataclasses.replace(variant, params={**variant.params, "class_counts": None})


def _remedies(epochs: int) -> tuple[Variant, ...]:
    """What may help a fine-tuned encoder besides a loss."""
    return (
        after_training(ERM, images=False),
        *longer(ERM, epochs, images=False),
        *ensembles_of_2(images=False),
        *longer(_without_counts(COMPACT), epochs, images=False),
    )


def suite() -> Suite:
    frozen = TrainConfig().override(["data=runs/data/banking77.safetensors", "epochs=30", "batch=128"])
    tuned = TrainConfig().override(
        [
            "data=runs/data/banking77.csv",
            "model=hf:runs/data/minilm",
            "model.pretrained=true",
            "model.tokens=32",
            "optim=adamw",
            "optim.lr=0.001",
            "optim.layer_decay=0.75",
            "optim.weight_decay=0.01",
            "optim.decay_norms=false",
            "optim.clip=1",
            "schedule.warmup=0.3",
            "precision=bf16-mixed",
            "epochs=4",
            "batch=64",
        ]
    )
    regime = mr2_regime()
    counted = [_with_counts(variant) for variant in regime if variant.name in KNOW_COUNTS]
    return Suite(
        "banking77",
        tasks=(
            Task(
                "frozen, linear", frozen.override(["model=linear", "optim.lr=1"]), "a linear head on the frozen encoder"
            ),
            Task(
                "frozen, hidden layer",
                frozen.override(["model=mlp-512", "optim.lr=0.1"]),
                "a hidden layer of 512 on the frozen encoder",
            ),
            Task("fine-tuned", tuned, "all layers, 4 epochs, bfloat16"),
            Task("fine-tuned, float32", tuned.override(["precision=32-true"]), "all layers, 4 epochs"),
        ),
        variants=(
            *map(_without_counts, regime),
            *counted,
            Variant("logit adjustment", "logit_adjusted", note=COUNTS),
            *only_on(("frozen, hidden layer",), *map(_without_counts, (*DIALLED, *REFITTED, *more_samples()))),
            *only_on(("fine-tuned",), *_remedies(tuned.epochs)),
        ),
        seeds=HEADLINE_SEEDS,
        about=__doc__.split("\n", 1)[0],
        data=PREPARED,
    )
