"""Scores and features of a whole split, and the file ``classgap audit`` reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from classgap.batchstats import gather_rows
from classgap.data import Normalise, Split
from classgap.predictions import Predictions


@dataclass(frozen=True, eq=False)
class SplitOutputs:
    """What a trained classifier says about a split; NumPy, float32.

    Attributes:
        scores: What classes were ranked by, (n, K); cosines times their scale, whether the head or the loss has it.
        features: Input of the last layer, (n, d); unit vectors for a cosine head; of several networks side by side.
        weight, bias: That layer: ``features @ weight.T + bias`` are the scores of a linear and of a cosine head. ``bias`` is
            ``None`` for a cosine head, both for a causal head and for several networks.
        margin_norms: Norms of that layer's rows before MARC calibrated its margins, (K,); ``None`` otherwise.
    """

    y_true: NDArray[np.int64]
    scores: NDArray[np.float32]
    features: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    class_names: tuple[str, ...]
    train_counts: NDArray[np.int64]
    margin_norms: NDArray[np.float32] | None = None

    @property
    def y_pred(self) -> NDArray[np.int64]:
        """Highest score."""
        return np.asarray(self.scores.argmax(1), dtype=np.int64)

    def predictions(self) -> Predictions:
        """The same as what :func:`classgap.audit`, :func:`classgap.compare` and :func:`classgap.fix` read."""
        return Predictions.from_arrays(
            self.y_true,
            self.y_pred,
            scores=self.scores,
            scores_kind="logits",
            features=self.features,
            head=None if self.weight is None else (self.weight, self.bias),
            margin_norms=self.margin_norms,
            class_names=self.class_names,
            train_counts=self.train_counts,
        )

    def save(self, path: Path) -> None:
        """Write a NumPy archive that ``classgap audit`` reads."""
        arrays: dict[str, Any] = {
            "y_true": self.y_true,
            "y_pred": self.y_pred,
            "scores": self.scores,
            "features": self.features,
            "class_names": np.array(self.class_names),
            "train_counts": self.train_counts,
        }
        layer = {"weight": self.weight, "bias": self.bias, "margin_norms": self.margin_norms}
        arrays |= {name: array for name, array in layer.items() if array is not None}
        np.savez_compressed(path, **arrays)


_NUMBERS_AT_ONCE = 8_000_000  # inputs of one forward pass: 53 images of 224 × 224, all 500 of a batch of small ones


@torch.no_grad()
def forward_all(
    fabric: Fabric, model: nn.Module, split: Split, normalise: Normalise, *, batch: int | None = None
) -> tuple[Tensor, Tensor]:
    """Logits and features of every sample in evaluation mode, in order, on every process; leaves the mode as it was."""
    was_training = model.training
    model.eval()
    try:
        # Every process gets equally many samples, since their collectives must match; surplus rows are cut off again.
        share = -(-len(split) // fabric.world_size)
        mine = torch.arange(fabric.global_rank * share, (fabric.global_rank + 1) * share) % len(split)
        size = batch or max(1, min(500, _NUMBERS_AT_ONCE // max(1, math.prod(split.x.shape[1:]))))
        parts = [model(normalise(x)) for x in split.read(torch.split(mine, size))]
    finally:
        model.train(was_training)
    logits, features = (torch.cat(part).float() for part in zip(*parts, strict=True))
    return gather_rows(logits)[: len(split)], gather_rows(features)[: len(split)]
