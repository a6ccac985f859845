"""What the evidence suites share: where data are, and the variants every task is asked about."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from classgap.bench import Variant

# Archives that are not part of the repository; CLASSGAP_DATA names another place.
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
HEADLINE_SEEDS = (0, 1, 2, 3, 4)
SEEDS = (0, 1, 2)

ERM = Variant("cross_entropy")
RERUN = Variant(
    "cross_entropy, re-run",
    seed_shift=1000,
    note="the null: the same method with other seeds, so every effect is chance",
)
SMOOTHING = Variant("label smoothing 0.1", params={"label_smoothing": 0.1})
MR2_PAPER = Variant(
    "MR² as in the paper",
    "mr2",
    {"form": "paper", "c_bar": 2.0, "lam": 0.5},
    note="eq. 1 and 2 with the published c̄ and λ",
)
MR2 = Variant(
    "MR² (default)",
    "mr2",
    note="`MR2Loss(num_classes)` with no further argument: pull between logits in so far as they fit, λ=0.02, and c̄=1",
)
CONSTANT = Variant(
    "MR², constant pull",
    "mr2",
    {"form": "logit"},
    note="the default until it was found to take from hard classes where classes overlap: the same pull whatever the fit",
)


def _dialled(title: str, *settings: str, note: str) -> tuple[Variant, ...]:
    note = f"offsets of classes fitted to the validation set after training, {note}"
    return tuple(
        Variant(f"{before.name} + gap dial{title}", before.method, settings=("stage=gap_dial", *settings), note=note)
        for before in (ERM, MR2)
    )


DIALLED = _dialled("", note="their strength chosen there")
REFITTED = _dialled(", refit", "stage.refit=true", note="then training once more with those samples as well")
DIALLED_BY_2 = _dialled(", strength 2", "stage.strength=2", "stage.ridge=1", note="their strength given")


def more_samples(*settings: str) -> tuple[Variant, ...]:
    """The dial's control: training on as many samples more as the dial is given for validation."""
    note = "control of the gap dial: as many further training samples as it has for validation"
    return tuple(
        Variant(f"{before.name}, more samples", before.method, settings=("data.val_fraction=0", *settings), note=note)
        for before in (ERM, MR2)
    )


def only_on(tasks: tuple[str, ...], *variants: Variant) -> tuple[Variant, ...]:
    """The same variants, taking part in these tasks alone."""
    return tuple(dataclasses.replace(variant, tasks=tasks) for variant in variants)


def margin_only(name: str, c_bar: float, **params: object) -> Variant:
    """MR² without its representation term, whose form then does not matter."""
    return Variant(name, "mr2", {"c_bar": c_bar, "lam": 0.0, "form": "scale_free", **params})


def pull_only(name: str, lam: float, **params: object) -> Variant:
    """MR² without its logit margin: cross-entropy and the pull inside each class."""
    return Variant(name, "mr2", {"gamma_rule": "uniform", "c_bar": 1.0, "lam": lam, "form": "scale_free", **params})


WEIGHTED = margin_only("γ only, c̄=2, weighted by γ", 2.0, weight_by_gamma=True)
_SCALE_FREE = {"form": "scale_free", "c_bar": 2.0, "lam": 0.1}
MR2_SCALE_FREE = Variant(
    "MR² scale-free, c̄=2", "mr2", _SCALE_FREE, note="distances in units of the total scatter, λ=0.1"
)
MR2_WEIGHTED = Variant(
    "MR² scale-free, c̄=2, weighted by γ",
    "mr2",
    {**_SCALE_FREE, "weight_by_gamma": True},
    note="the same, each loss multiplied by its margin",
)
TEMPERATURE = margin_only("uniform temperature 2", 2.0, gamma_rule="uniform")
AUTOAUGMENT = "data.augment=crop,flip,autoaugment"
AUGMENTED = tuple(
    Variant(f"cross_entropy + {name}", settings=(setting,), note="augmentation as the remedy, beside crop and flip")
    for name, setting in (
        ("AutoAugment", AUTOAUGMENT),
        ("RandAugment", "data.augment=crop,flip,randaugment"),
        ("Cutout", "data.augment=crop,flip,cutout"),
        ("mixup", "mix=mixup"),
        ("CutMix", "mix=cutmix"),
    )
)
FOCAL = Variant("focal", "focal")
CENTER = Variant("center loss", "center")
LDAM = Variant("LDAM", "ldam")
GROUP_DRO = Variant("class-group DRO", "group_dro")
SAM = Variant("SAM", settings=("wrapper=sam",))


def slower(rate: float) -> Variant:
    """The control of every temperature, which slows learning down: cross-entropy with half the learning rate."""
    name = f"cross_entropy, learning rate {rate:g}"
    return Variant(name, settings=(f"optim.lr={rate:g}",), note="control: half the learning rate")


DECAY = Variant(
    "cross_entropy, weight decay 0.005",
    settings=("optim.weight_decay=0.005",),
    note="control: ten times the weight decay, which shrinks features too",
)
SQUEEZE = tuple(
    Variant(
        f"squeeze {of}, weight {weight:g}",
        "squeeze",
        {"weight": weight, "of": of},
        note=f"control: a price on large {of}, whatever their class",
    )
    for of, weight in (("features", 0.003), ("features", 0.01), ("logits", 0.003), ("logits", 0.01))
)
ON_LOGITS = tuple(
    Variant(f"MR², constant pull, λ={lam:g}", "mr2", {"form": "logit", "lam": lam, "c_bar": 1.0})
    for lam in (0.006, 0.06, 0.2)
)
WITHOUT_MARGINS = Variant(
    "MR², constant pull, without γ",
    "mr2",
    {"form": "logit", "lam": 0.02, "c_bar": 1.0, "gamma_rule": "uniform"},
    note="cross-entropy and the pull between logits alone",
)
RELEASED = tuple(
    Variant(
        f"MR² as released, λ={lam:g}",
        "mr2",
        {"form": "release", "lam": lam, "c_bar": 1.0},
        note="pull between features, scaled as in the authors' code",
    )
    for lam in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
)
KEY_VARIANTS = (
    ERM,
    RERUN,
    SMOOTHING,
    margin_only("γ only, c̄=1", 1.0),
    margin_only("γ only, c̄=2", 2.0),
    WEIGHTED,
    TEMPERATURE,
    pull_only("pull only, λ=0.1", 0.1),
    MR2_PAPER,
    MR2,
    CONSTANT,
    MR2_SCALE_FREE,
    MR2_WEIGHTED,
)
