"""Whether a loss gets the number of training samples of each class. The decision is reported, and stored with the run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from classgap import registry
from classgap.checks import InputError
from classgap.data import TrainingData

LONG_TAIL = 2.0
"""Largest over smallest class count above which a training set is called long-tailed.

ImageNet-1k, which is usually called balanced, has 732 to 1300 images per class, a ratio of 1.8, and the validation split of a
small data set makes ratios of 1.1. Long tails of the literature begin at 10; Banking77 has 35 to 187 texts per class, a ratio
of 5.3.
"""


@dataclass(frozen=True, eq=False)
class CountsChoice:
    """The decision.

    Attributes:
        counts: What the constructor of the loss gets as ``class_counts``; ``None`` for nothing.
        source: ``"train"`` (the counts of the training set), ``"given"`` (numbers in the configuration) or ``"none"``.
        ratio: Largest over smallest class count of the training set.
        note: A sentence for the user where the data decided; empty where nothing had to be decided.
    """

    counts: Tensor | Sequence[float] | None
    source: str
    ratio: float
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For ``run.json``."""
        ratio = round(self.ratio, 4) if math.isfinite(self.ratio) else None
        return {"source": self.source, "largest_over_smallest": ratio, "long_tail_above": LONG_TAIL}


def choose_counts(spec: registry.Method, params: Mapping[str, Any], data: TrainingData) -> CountsChoice:
    """The class counts a loss is built with.

    A loss gets those of the training set, which only matters if it needs them or a parameter of it asks for them. One that
    computes something else as soon as it has them (``optional``, see :func:`classgap.registry.method`) gets them if the training
    set is long-tailed. The parameter ``class_counts`` of the method overrides that: ``None`` for never, ``"train"`` for always,
    or the counts themselves.
    """
    train = data.class_counts
    largest, smallest = int(train.max()), int(train.min())
    ratio = largest / smallest if smallest else math.inf
    if "class_counts" in params:
        return _as_configured(spec, params["class_counts"], data, ratio)
    if "class_counts" not in spec.optional:
        return CountsChoice(train, "train", ratio)
    between = f"training classes have {smallest} to {largest} samples, a ratio of {ratio:.3g}"
    if ratio > LONG_TAIL:
        note = (
            f"class counts: {between}, above {LONG_TAIL:g}: a long tail, so {spec.name} is given them and trains in its form "
            "for long tails; without: --set method.class_counts=none"
        )
        return CountsChoice(train, "train", ratio, note)
    note = (
        f"class counts: {between}, at most {LONG_TAIL:g}: {spec.name} trains as on balanced data; its form for long tails: "
        "--set method.class_counts=train"
    )
    return CountsChoice(None, "none", ratio, note if ratio > 1 else "")


def _as_configured(spec: registry.Method, wanted: Any, data: TrainingData, ratio: float) -> CountsChoice:
    if "class_counts" not in inspect.signature(spec.cls).parameters:
        raise InputError(f"method {spec.name} does not use class counts; leave method.class_counts out")
    if wanted is None:
        if "class_counts" in spec.needs:
            raise InputError(f"method {spec.name} needs class counts; leave method.class_counts=none out")
        return CountsChoice(None, "none", ratio)
    if wanted == "train":
        return CountsChoice(data.class_counts, "train", ratio)
    if isinstance(wanted, (list, tuple)):
        return CountsChoice(wanted, "given", ratio)
    raise InputError(
        f"method.class_counts must be none, train or a list of {data.num_classes} numbers, got {wanted!r}; without it "
        f"{spec.name} gets the counts of the training set where it needs them, or where they are long-tailed"
    )
