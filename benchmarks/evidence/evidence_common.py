"""What the evidence suites share: where the data are, and the variants that several suites run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from classgap.suites import Variant

# Data archives, which are not part of the repository; CLASSGAP_DATA names another folder.
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
# Files that prepare.py makes; suites name them relative to the root of the repository.
PREPARED = Path(__file__).resolve().parents[2] / "runs" / "data"
HEADLINE_SEEDS = (0, 1, 2, 3, 4)
SEEDS = (0, 1, 2)

ERM = Variant("cross_entropy")
RERUN = Variant(
    "cross_entropy, re-run",
    seed_shift=1000,
    note="the null: the same method with other seeds, so every difference is chance",
)
SMOOTHING = Variant("label smoothing 0.1", params={"label_smoothing": 0.1})
# MR² with every parameter spelled out, so that these runs keep their meaning when a default changes.
_MR2 = {"temperature": 1.0, "p": 2.0, "decay": 0.9, "margins": "spread", "spread": None, "tau": 1.0, "fit_power": 0.0}
MR2_PUBLISHED_WEIGHTS = Variant(
    "MR², T=1, λ=0.5",
    "mr2",
    {**_MR2, "c_bar": 2.0, "lam": 0.5, "spread": "pooled"},
    note="equations 1, 2 and 4 with the published c̄=2 and λ=0.5; the average spread is estimated from decayed sums pooled over "
    "all classes, not by the paper's moving average of batch statistics (`mr2_published`)",
)
_DEFAULT = {"temperature": None, "p": 2.0, "decay": 0.9, "margins": "spread", "spread": None, "c_bar": 1.0, "lam": 0.01}
MR2 = Variant(
    "MR²",
    "mr2",
    {**_DEFAULT, "fit_power": 4.0},
    note="`MR2Loss(num_classes)`: equations 1, 2 and 4 with c̄=1, temperature 10·d and λ=0.01 times (batch accuracy)⁴",
)
MR2_CONSTANT = Variant(
    "MR², constant λ",
    "mr2",
    {**_DEFAULT, "fit_power": 0.0},
    note="`MR2Loss(num_classes, fit_power=0)`: the same with a weight that ignores the batch accuracy, as in the paper",
)
MR2_FORMS = (
    MR2,
    Variant(
        "MR² published",
        "mr2_published",
        {"c_bar": 2.0, "lam": 0.5, "p": 2.0, "decay": 0.9, "margins": "spread", "spread": "ema"},
        note="`MR2Loss.published(num_classes)`: c̄=2, λ=0.5 and the moving averages of the paper",
    ),
    Variant(
        "MR² released",
        "mr2_released",
        {"file": "cifar"},
        note="`MR2Loss.released(num_classes)`: step by step what the authors' CIFAR file computes",
    ),
)
COMPACT = Variant(
    "compact logits",
    "compact_logits",
    note="`CompactLogitsLoss(num_classes)`, our own method: a pull between the logits of a class, λ=0.02, scaled by (batch "
    "accuracy)⁴, and the margins of MR² with c̄=1",
)
CONSTANT = Variant(
    "compact logits, constant pull",
    "compact_logits",
    {"fit_power": 0.0},
    note="the same with a pull that does not depend on the batch accuracy",
)


def _dialled(title: str, *settings: str, note: str) -> tuple[Variant, ...]:
    note = f"class offsets fitted on the validation set after training; {note}"
    return tuple(
        Variant(f"{before.name} + gap dial{title}", before.method, settings=("stage=gap_dial", *settings), note=note)
        for before in (ERM, COMPACT)
    )


DIALLED = _dialled("", note="their strength is chosen on the same set")
REFITTED = _dialled(", refit", "stage.refit=true", note="then the network is trained again with those samples as well")
DIALLED_BY_2 = _dialled(", strength 2", "stage.strength=2", "stage.ridge=1", note="their strength is fixed at 2")


def more_samples(*settings: str) -> tuple[Variant, ...]:
    """The control of the gap dial: training with as many additional samples as the dial has for validation."""
    note = "control of the gap dial: as many additional training samples as it has for validation"
    return tuple(
        Variant(f"{before.name}, more samples", before.method, settings=("data.val_fraction=0", *settings), note=note)
        for before in (ERM, COMPACT)
    )


def more_labels(classes: int, spare: int) -> tuple[Variant, ...]:
    """The same number of additional labels for different classes; ``spare`` samples of each class were kept aside."""
    added = classes // 3 * spare
    each = added // classes
    return tuple(
        Variant(
            f"more labels for {title}",
            settings=("stage=add_samples", f"stage.to={to}"),
            note=f"{added:,} more labels in all: {how}",
        )
        for to, title, how in (
            ("hard", "the hard third", f"{spare} for each class of the third with the lowest validation accuracy"),
            ("random", "a random third", f"{spare} for each class of a third drawn at random"),
            ("all", "all classes", f"{each} or {each + 1} for each class"),
        )
    )


def published(lam: float, **params: object) -> Variant:
    """MR² as published but for the weight λ; 0.5 is the paper's on CIFAR-100."""
    values = {"c_bar": 2.0, "lam": lam, "p": 2.0, "decay": 0.9, "margins": "spread", "spread": "ema"}
    return Variant(
        f"MR² published, λ={lam:g}",
        "mr2_published",
        {**values, **params},
        note=f"`MR2Loss.published(num_classes, lam={lam:g})`: T=1, c̄=2 and the moving averages of the paper",
    )


def mr2_regime(p: float = 2.0) -> tuple[Variant, ...]:
    """What every regime of the paper compares; ``p`` is the norm of the margins where the method has a choice."""
    default, constant = (dataclasses.replace(form, params={**form.params, "p": p}) for form in (MR2, MR2_CONSTANT))
    representation = Variant(
        "MR², representation margin only",
        "mr2",
        {**default.params, "margins": "uniform"},
        note="`MR2Loss(num_classes, margins='uniform')`: cross-entropy and the pull between features",
    )
    return (
        ERM,
        RERUN,
        default,
        constant,
        COMPACT if p == MR2.params["p"] else dataclasses.replace(COMPACT, params={"p": p}),
        MR2_FORMS[2],
        *(published(lam, p=p) for lam in (0.5, 0.1, 0.01)),
        margin_only("γ only, c̄=2", 2.0, p=p),
        representation,
        SMOOTHING,
    )


def only_on(tasks: tuple[str, ...], *variants: Variant) -> tuple[Variant, ...]:
    """The same variants, restricted to these tasks."""
    return tuple(dataclasses.replace(variant, tasks=tasks) for variant in variants)


def margin_only(name: str, c_bar: float, **params: object) -> Variant:
    """MR² without its representation margin (λ=0): the temperature and the estimator of the spread then do not matter."""
    uniform = params.get("margins") == "uniform"
    note = f"cross-entropy of the logits divided by {c_bar:g}" if uniform else "MR² with λ=0: logit margins only"
    return Variant(name, "mr2", {**_MR2, "c_bar": c_bar, "lam": 0.0, **params}, note=note)


TEMPERATURE = margin_only("uniform temperature 2", 2.0, margins="uniform")
AUTOAUGMENT = "data.augment=crop,flip,autoaugment"
AUGMENTED = tuple(
    Variant(
        f"cross_entropy + {name}", settings=(setting,), note="augmentation as the remedy, in addition to crop and flip"
    )
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
    """The control of every temperature, which slows learning down: cross-entropy with a lower learning rate."""
    name = f"cross_entropy, learning rate {rate:g}"
    return Variant(name, settings=(f"optim.lr={rate:g}",), note="control: half the learning rate")


DECAY = Variant(
    "cross_entropy, weight decay 0.005",
    settings=("optim.weight_decay=0.005",),
    note="control: ten times the weight decay, which also shrinks the features",
)
SQUEEZE = tuple(
    Variant(
        f"squeeze {of}, weight {weight:g}",
        "squeeze",
        {"weight": weight, "of": of},
        note=f"control: a penalty on large {of}, regardless of the class",
    )
    for of, weight in (("features", 0.003), ("features", 0.01), ("logits", 0.003), ("logits", 0.01))
)
CONSTANT_WEIGHTS = tuple(
    Variant(f"compact logits, constant pull, λ={lam:g}", "compact_logits", {"fit_power": 0.0, "lam": lam})
    for lam in (0.006, 0.06, 0.2)
)
WITHOUT_MARGINS = Variant(
    "compact logits, constant pull, without γ",
    "compact_logits",
    {"fit_power": 0.0, "margins": "uniform"},
    note="cross-entropy and the pull between logits only",
)
KEY_VARIANTS = (
    ERM,
    RERUN,
    SMOOTHING,
    margin_only("γ only, c̄=1", 1.0),
    margin_only("γ only, c̄=2", 2.0),
    TEMPERATURE,
    *MR2_FORMS,
    MR2_CONSTANT,
    MR2_PUBLISHED_WEIGHTS,
    COMPACT,
    CONSTANT,
)


# Members of ensembles have the seeds of the re-run, so an ensemble of 2 costs nothing more than both rows.
_TOGETHER = ("stage.seed_step=1000",)


_VIEWS = "predict.augment=flip"
_DIAL = ("stage=gap_dial", "stage.strength=1", "stage.ridge=1")


def after_training(before: Variant, *, images: bool = True) -> Variant:
    """What may be added to a finished network: mirrored views of images, and class offsets of a fixed strength."""
    offsets = "class offsets of strength 1 fitted on the validation set"
    return Variant(
        f"{before.name}, flipped views + gap dial" if images else f"{before.name} + gap dial, strength 1",
        before.method,
        before.params,
        settings=(*before.settings, *([_VIEWS] if images else []), *_DIAL),
        note=f"mean over image and mirror image, with {offsets}" if images else offsets,
    )


def longer(before: Variant, epochs: int, *, images: bool = True) -> tuple[Variant, Variant]:
    """Three times the epochs, the control of ensembles of 3, and the same with all that may be added after training."""
    long = Variant(
        f"{before.name}, 3 × the epochs",
        before.method,
        before.params,
        settings=(*before.settings, f"epochs={3 * epochs}"),
    )
    return long, after_training(long, images=images)


def _ensemble(members: int, *settings: str, note: str = "") -> Variant:
    with_views = ", flipped views" if _VIEWS in settings else ""
    with_dial = " + gap dial" if "stage.dial=1" in settings else ""
    return Variant(
        f"cross_entropy, ensemble of {members}{with_views}{with_dial}",
        settings=("stage=ensemble", f"stage.members={members}", *_TOGETHER, *settings),
        note=note,
    )


EMA = Variant("cross_entropy, EMA", settings=("average=ema",), note="exponential average of the weights")
SWA = Variant(
    "cross_entropy, SWA",
    settings=("average=swa", "schedule.floor=0.05"),
    note="average of the weights of the last quarter",
)
MIXUP = Variant("cross_entropy + mixup", settings=("mix=mixup",))
CONFUSED_MIXUP = Variant(
    "cross_entropy + confused mixup", settings=("mix=confused_mixup",), note="partners from confused classes"
)


def ensembles_of_2(*, images: bool = True) -> tuple[Variant, Variant]:
    """Two networks, and the same with all that may be added after training."""
    offsets = "class offsets of strength 1"
    with_all = _ensemble(2, _VIEWS, "stage.dial=1", note=f"mirrored views, {offsets}")
    return _ensemble(2), with_all if images else _ensemble(2, "stage.dial=1", note=offsets)


# Remedies for a network that fits its training images as well as for one that does not.
FITTED = (ensembles_of_2()[0], EMA, MIXUP)


def remedies_of_fitted() -> tuple[Variant, ...]:
    """What else may help a network that fits its training images; ``data.augment`` is ``flip``."""
    return (
        ensembles_of_2()[1],
        SWA,
        Variant("cross_entropy + CutMix", settings=("mix=cutmix",)),
        CONFUSED_MIXUP,
        Variant("cross_entropy + RandAugment", settings=("data.augment=flip,randaugment",)),
        *(
            Variant(
                f"cross_entropy + RandAugment for {title}",
                settings=("stage=augment_classes", f"stage.to={to}", "stage.augment=flip,randaugment"),
                note=note,
            )
            for to, title, note in (
                ("hard", "the hard third", "by the validation accuracy of a first run"),
                ("random", "a random third", "the control"),
            )
        ),
        Variant(
            "distillation of an ensemble of 2",
            "distillation",
            settings=("stage=ensemble_teacher", "stage.members=2", *_TOGETHER),
            note="one network that learns from the ensemble",
        ),
    )


def remedies(epochs: int) -> tuple[Variant, ...]:
    """What may close the gap on images besides a loss."""
    return (
        Variant(
            "cross_entropy, flipped views",
            settings=(_VIEWS,),
            note="mean over image and mirror image",
        ),
        FITTED[0],
        _ensemble(3),
        _ensemble(3, _VIEWS),
        _ensemble(3, _VIEWS, "stage.dial=1", note="the same with class offsets of strength 1"),
        *longer(ERM, epochs),
        Variant(
            "distillation of an ensemble of 3",
            "distillation",
            settings=("stage=ensemble_teacher", "stage.members=3", *_TOGETHER),
            note="one network that learns from the ensemble",
        ),
        *FITTED[1:],
        DIALLED[0],
    )
