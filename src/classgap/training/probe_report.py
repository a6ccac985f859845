"""What a grid of heads gave: accuracies of every head on validation and test set, and the best head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from classgap.checks import InputError, one_of
from classgap.data import TrainingData
from classgap.measure.statistics.groups import THIRDS, thirds
from classgap.predictions.export import write_table
from classgap.training.config import TrainConfig
from classgap.training.epoch import accuracy_by_class
from classgap.training.outputs import SplitOutputs
from classgap.training.setting_limits import unused_settings
from classgap.writing import replacing_entries, write

WRITTEN = ("grid.csv", "head.safetensors", "predictions_val.npz", "predictions_test.npz")


@dataclass(frozen=True, eq=False)
class HeadResult:
    """One head of a grid.

    Attributes:
        point: Its learning rate, weight decay, seed and parameters of the method.
        weight, bias: Its layer, (K, d) and (K,).
        accuracy: ``accuracy["val"]["hard"]`` and so on: ``overall``, ``easy``, ``medium`` and ``hard`` (thirds of classes).
    """

    point: Mapping[str, Any]
    weight: Tensor
    bias: Tensor | None
    accuracy: Mapping[str, Mapping[str, float]]


def head_result(
    point: Mapping[str, Any], layer: tuple[Tensor, Tensor | None], outputs: Mapping[str, tuple[Tensor, Tensor]]
) -> HeadResult:
    """The head at ``point``, evaluated on the scores and labels of each part."""
    accuracy = {}
    for part, (scores, y) in outputs.items():
        found = accuracy_by_class(scores, y, scores.shape[1])
        group = thirds(found)
        overall = float((scores.argmax(1) == y).float().mean())
        means = (float(found[group == place].mean()) if (group == place).any() else np.nan for place in range(3))
        accuracy[part] = {"overall": overall, **dict(zip(THIRDS, means, strict=True))}
    return HeadResult(point, *layer, accuracy)


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """All heads of a grid, in its order; ``seconds`` is the time of training and evaluation."""

    config: TrainConfig
    heads: tuple[HeadResult, ...]
    data: TrainingData
    seconds: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the data, and settings that have no effect."""
        return (*self.data.notes, *unused_settings(self.config))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each head: its point and its accuracies."""
        return [
            {
                **head.point,
                **{f"{part}_{name}": value for part, found in head.accuracy.items() for name, value in found.items()},
            }
            for head in self.heads
        ]

    def best(self, by: str = "overall") -> HeadResult:
        """The point with the highest validation accuracy, overall or on a third, as a mean over seeds; its first head."""
        one_of("by", by, ("overall", *THIRDS))
        if self.data.val is None:
            raise InputError("heads are chosen on the validation set; set data.val_fraction above 0")
        groups: dict[tuple[str, ...], list[HeadResult]] = {}
        for head in self.heads:
            key = tuple(str(value) for axis, value in head.point.items() if axis != "seed")
            groups.setdefault(key, []).append(head)
        return max(groups.values(), key=lambda heads: np.mean([head.accuracy["val"][by] for head in heads]))[0]

    def outputs(self, head: HeadResult, part: str = "test") -> SplitOutputs:
        """Scores of a head, with features and last layer; ``.predictions()`` is for audit, compare and fix."""
        split = {"test": self.data.test, "val": self.data.val}[one_of("part", part, ("test", "val"))]
        if split is None:
            raise InputError("there is no validation set; set data.val_fraction above 0")
        x = next(iter(split.read([torch.arange(len(split))])))
        if head.bias is None:  # a cosine head
            x = torch.nn.functional.normalize(x, dim=-1)
        scores = x @ head.weight.T + (0 if head.bias is None else head.bias)
        return SplitOutputs(
            y_true=split.y.numpy(),
            scores=scores.numpy(),
            features=x.numpy(),
            weight=head.weight.numpy(),
            bias=None if head.bias is None else head.bias.numpy(),
            class_names=self.data.class_names,
            train_counts=self.data.class_counts.numpy(),
            ids=split.ids,
        )

    def settings(self, head: HeadResult) -> list[str]:
        """The settings with which ``classgap train`` trains this head."""
        places = {"lr": "optim.lr", "weight_decay": "optim.weight_decay", "seed": "seed"}
        return [f"{places.get(axis, f'method.{axis}')}={value}" for axis, value in head.point.items()]

    def save(self, folder: str | Path, by: str = "overall") -> Path:
        """Write ``grid.csv``, and of the best head its layer (``head.safetensors``) and predictions (``predictions_….npz``)."""
        chosen = self.best(by)
        layer = {"weight": chosen.weight} | ({} if chosen.bias is None else {"bias": chosen.bias})
        about = {"settings": json.dumps(self.settings(chosen)), "class_names": json.dumps(self.data.class_names)}
        with replacing_entries(folder, WRITTEN) as place:
            write_table(self.rows, place / "grid.csv")
            write(place / "head.safetensors", save({name: t.contiguous() for name, t in layer.items()}, about))
            for part in ("val", "test"):
                self.outputs(chosen, part).write(place / f"predictions_{part}.npz")
        return Path(folder)
