"""What to do, by situation, with what was measured; docs/evidence.md shows all rows, README.md some of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from committed import HERE, Measured, filled
from figures import draw_situations

from classgap.suites.render import Table
from classgap.training.recipes import load_file, recipe_file

FITS_NOT, FITS = "finetune:EfficientNet-Lite0", "finetune:EfficientNet-Lite0, 9 epochs"
SCRATCH, SCRATCH_FITS, HIDDEN = "remedies_images:wrn-10-1", "remedies_images:resnet20", "embeddings:mlp"
CIFAR100 = "cifar100:resnet20"
AUGMENTED_LONG = f"{CIFAR100}/cross_entropy + AutoAugment, 3 × the epochs, flipped views + gap dial"
TRIPLE = "train for three times the epochs (cost × 3)"


@dataclass(frozen=True)
class Advice:
    """One row: a situation, what to do, and the committed result ``suite:task/variant`` that speaks for or against it.

    Attributes:
        situation: Empty where it is that of the row before.
        readme: Whether README.md shows the row.
    """

    situation: str
    action: str
    result: str
    readme: bool = False


ADVICE = (
    Advice(
        "images from scratch, training accuracy far below 100 %",
        TRIPLE,
        f"{SCRATCH}/cross_entropy, 3 × the epochs",
        readme=True,
    ),
    Advice(
        "",
        "the same, then mirrored views and a gap dial of strength 1",
        f"{SCRATCH}/cross_entropy, 3 × the epochs, flipped views + gap dial",
    ),
    Advice(
        "",
        "an ensemble of 3 short runs, mirrored views and a dial (cost × 3)",
        f"{SCRATCH}/cross_entropy, ensemble of 3, flipped views + gap dial",
    ),
    Advice("", "ResNet-20, CIFAR-100: three times the epochs (cost × 3)", f"{CIFAR100}/cross_entropy, 3 × the epochs"),
    Advice("", "the same with AutoAugment, then mirrored views and a gap dial (cost × 3)", AUGMENTED_LONG),
    Advice("", "not AutoAugment without more epochs", f"{CIFAR100}/cross_entropy + AutoAugment"),
    Advice(
        "images from scratch, training images fitted",
        "AutoAugment",
        f"{SCRATCH_FITS}/cross_entropy + AutoAugment",
    ),
    Advice(
        "",
        "AutoAugment, then mirrored views and a gap dial of strength 1",
        f"{SCRATCH_FITS}/cross_entropy + AutoAugment, flipped views + gap dial",
        readme=True,
    ),
    Advice("", "the same on CIFAR-100, 180 epochs on both sides", f"{AUGMENTED_LONG}, equal epochs", readme=True),
    Advice(
        "fine-tuning, training accuracy far below 100 %",
        TRIPLE,
        f"{FITS_NOT}/cross_entropy, 3 × the epochs",
        readme=True,
    ),
    Advice(
        "",
        "the same, then mirrored views and a gap dial of strength 1",
        f"{FITS_NOT}/cross_entropy, 3 × the epochs, flipped views + gap dial",
    ),
    Advice("", "not MR2Loss: its pull slows training down", f"{FITS_NOT}/MR²", readme=True),
    Advice("fine-tuning, training images fitted", "CompactLogitsLoss", f"{FITS}/compact logits"),
    Advice(
        "",
        "CompactLogitsLoss, then mirrored views and a gap dial of strength 1",
        f"{FITS}/compact logits, flipped views + gap dial",
        readme=True,
    ),
    Advice(
        "",
        "an ensemble of 2, mirrored views and a dial (cost × 2)",
        f"{FITS}/cross_entropy, ensemble of 2, flipped views + gap dial",
    ),
    Advice("frozen features, hidden layer", "CompactLogitsLoss", f"{HIDDEN}/compact logits", readme=True),
    Advice(
        "",
        "CompactLogitsLoss, then gap dial and refit; as many samples on both sides",
        f"{HIDDEN}/compact logits + gap dial, refit, equal samples",
        readme=True,
    ),
    Advice(
        "",
        "CompactLogitsLoss, an ensemble of 3 and a dial (cost × 3)",
        "remedies:hidden layer/compact logits, ensemble of 3 + gap dial",
    ),
    Advice("", "MR2Loss", f"{HIDDEN}/MR²"),
    Advice("frozen features, linear head", "CompactLogitsLoss", "embeddings:linear/compact logits"),
    Advice("", "MR2Loss", "embeddings:linear/MR²"),
    Advice("frozen features, cosine head (CLIP)", "CompactLogitsLoss", "cosine:hidden layer/compact logits"),
    Advice("", "MR2Loss.published, λ=0.5", "cosine:hidden layer/MR² published, λ=0.5"),
    Advice(
        "text, frozen encoder, hidden layer",
        "CompactLogitsLoss on the features of a sentence encoder",
        "banking77:frozen, hidden layer/compact logits",
        readme=True,
    ),
    Advice(
        "text, encoder fine-tuned",
        "instead a frozen encoder, a hidden layer and CompactLogitsLoss",
        "banking77:frozen, hidden layer/compact logits, against fine-tuned",
        readme=True,
    ),
    Advice("", "cross-entropy; not CompactLogitsLoss", "banking77:fine-tuned/compact logits"),
    Advice("", "cross-entropy; not MR2Loss", "banking77:fine-tuned/MR²"),
    Advice(
        "long tail, 400 to 4 samples per class",
        "CompactLogitsLoss(class_counts=…)",
        "embeddings:linear, tail 100/compact logits",
        readme=True,
    ),
    Advice("", "logit adjustment", "embeddings:linear, tail 100/logit adjustment"),
    Advice("50 % more labels can be had", "label more samples", f"{HIDDEN}/cross_entropy, more samples"),
    Advice(
        "1,650 more labels can be had",
        "spread them over all classes",
        "remedies:hidden layer/more labels for all classes",
    ),
    Advice("", "give them to the hard third", "remedies:hidden layer/more labels for the hard third"),
)
HEADS = ("situation", "what to do", "Δ overall", "Δ hard", "Δ easy", "runs")
CAPTION = (
    "Differences to cross-entropy in points, with 95 % intervals over test samples and seeds; ↑ ↓ where the interval "
    "excludes 0. Hard and easy are cross-fitted thirds of the classes. The sections below say on which data."
)
PICTURE = "Change of the accuracy of hard and easy classes in every situation, with 95 % intervals"
# The recipes of MR²; each row needs data or a GPU that these runs did not have.
RECIPES = ("mr2_cifar100", "mr2_cifar100_lt", "mr2_imagenet", "mr2_clip", "mr2_mae", "mr2_moco")


def _by_situation() -> Iterator[tuple[str, Advice]]:
    """Every row with its situation, also where that is the one of the row before."""
    situation = ""
    for advice in ADVICE:
        situation = advice.situation or situation
        yield situation, advice


def rows(measured: Mapping[str, Measured], *, readme: bool = False) -> list[tuple[str, ...]]:
    """The cells of the table, for README.md or for docs/evidence.md."""
    made: list[tuple[str, ...]] = []
    for situation, advice in _by_situation():
        if advice.readme or not readme:
            found = measured[advice.result]
            shown = "" if made and made[-1][0] == situation else situation
            made.append((situation, shown, advice.action, *found.deltas("overall", "hard", "easy"), str(found.runs)))
    return [tuple(cells) for _, *cells in made]


def situation_table(measured: Mapping[str, Measured]) -> str:
    """The table of all situations, the picture of it, and the text below it."""
    table = Table("What to do, by situation", CAPTION, HEADS, tuple(rows(measured)))
    picture = f"![{PICTURE}](images/{draw_situations(points(measured))})\n"
    return "\n".join([table.render("md", level=2), picture, filled((HERE / "situations.md").read_text(), measured)])


def points(measured: Mapping[str, Measured]) -> list[dict[str, object]]:
    """What the picture shows: the changes of the hard and of the easy classes in every row, in points."""
    made: list[dict[str, object]] = []
    for situation, advice in _by_situation():
        thirds = measured[advice.result].comparison.groups["cross"]
        for third in ("easy", "hard"):
            delta = thirds[third].delta
            numbers = {key: round(100 * getattr(delta, key), 2) for key in ("value", "low", "high")}
            made.append({"situation": situation, "action": advice.action, "measure": third, **numbers})
    return made


def unmeasured_section() -> str:
    """What the paper reports of MR², and what it would take to repeat it."""
    lines = []
    for name in RECIPES:
        module = load_file(recipe_file(name), "recipe")
        title, text = _parts(module.__doc__ or "")
        plain, ours = (module.PUBLISHED[method][1] for method in ("cross_entropy", "mr2_published"))
        published = (f"{plain[group]} → {ours[group]}" for group in ("overall", "hard"))
        lines.append((title, *published, f"classgap train {name}", text))
    heads = ("setting", "published overall", "published hard", "command", "estimated cost of one run")
    caption = (
        "Accuracies in %, cross-entropy → MR², as printed in the paper; not repeated here, so nothing on this page "
        "speaks for or against them."
    )
    return Table("What the settings of the paper would need", caption, heads, tuple(lines)).render("md", level=2)


def _parts(text: str) -> tuple[str, str]:
    """Title and estimated cost from the text of a recipe."""
    text = inspect.cleandoc(text)
    cost = re.search(r"^Cost: estimate, (.*?)\.$", text, re.MULTILINE)
    if cost is None:
        raise SystemExit(f"no line 'Cost: estimate, …' in the recipe {text.splitlines()[0]!r}")
    title = re.sub(r" \(MR², .*\)\.$", "", text.splitlines()[0])
    return title.removeprefix("MR² on "), cost[1]
