"""Scores and features of a whole split, and the file ``classgap audit`` reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from classgap.batchstats import gather_rows
from classgap.checks import InputError
from classgap.data import Normalise, Split, mean_over_views
from classgap.heads import CosineHead
from classgap.predictions import Predictions
from classgap.predictions.export import write_arrays, write_table


@dataclass(frozen=True, eq=False)
class SplitOutputs:
    """The outputs of a trained classifier for a split; NumPy arrays, float32.

    Attributes:
        scores: What classes were ranked by, (n, K); cosines times their scale, whether the head or the loss has it.
        features: Input of the last layer, (n, d); unit vectors for a cosine head; concatenated for several networks; with
            test-time augmentation means over the views, like the scores.
        weight, bias: That layer: ``features @ weight.T + bias`` are the scores of a linear and of a cosine head. ``bias`` is
            ``None`` for a cosine head, both for a causal head, for several networks and for ``lgm``.
        margin_norms: Norms of that layer's rows before MARC calibrated its margins, (K,); ``None`` otherwise.
        ids: What tells the samples apart, e.g. names of files; ``None`` for arrays.
        notes: What the user should know about the samples, e.g. which files were left out.
    """

    y_true: NDArray[np.int64]
    scores: NDArray[np.float32]
    features: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    class_names: tuple[str, ...]
    train_counts: NDArray[np.int64]
    margin_norms: NDArray[np.float32] | None = None
    ids: Sequence[str] | None = None
    notes: tuple[str, ...] = ()

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
            ids=None if self.ids is None else np.array(self.ids),
        )

    def write(self, path: Path) -> None:
        """Write a file that audit, compare and fix read, in the format its ending says; a table has labels and logits only."""
        if path.suffix.lower() == ".npz":
            self.save(path)
        else:
            write_table(self._table(), path)

    def _table(self) -> Any:
        import polars as pl

        names = np.array(self.class_names)
        ids = {} if self.ids is None else {"id": list(self.ids)}
        labels = {"y_true": names[self.y_true], "y_pred": names[self.y_pred]}
        return pl.DataFrame(
            {**ids, **labels, **{f"logit_{name}": self.scores[:, k] for k, name in enumerate(self.class_names)}}
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
        if self.ids is not None:
            arrays["ids"] = np.array(self.ids)
        write_arrays(path, arrays)


def scores_and_features(criterion: Any, head: str, logits: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Scores classes are ranked by, and features as the head sees them; those of several networks side by side."""
    scores = criterion.scores(logits, features)
    if head == "cosine" and "encoder_features" in criterion.needs:
        features = nn.functional.normalize(features, dim=-1)
    return scores, features.flatten(1)


class ScoredNetwork(nn.Module):
    """A network with the loss that turns its outputs into scores: ``(scores (N, K), features (N, d))`` of inputs."""

    def __init__(self, network: nn.Module, criterion: nn.Module, head: str) -> None:
        super().__init__()
        self.network, self.criterion, self.head = network, criterion, head

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and features as an audit reads them."""
        return scores_and_features(self.criterion, self.head, *self.network(inputs))


def last_layer(model: Any, head: str, experts: int, criterion: Any) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of the layer behind the scores, where there is one.

    A causal head has none: its scores are no linear function of the features. Nor has a loss that ranks classes by something
    else than the output of the network.
    """
    if experts or head == "causal" or not criterion.ranks_by_output:
        return None, None
    if isinstance(model.head, CosineHead):  # on unit vectors, which is what predictions have as features, it is linear
        return model.head.as_linear() * criterion.cosine_scale, None
    return model.head.weight, getattr(model.head, "bias", None)


def require_finite_scores(scores: Tensor | NDArray[Any], way_out: str) -> None:
    """Refuse scores that are no numbers: no prediction can be read from them."""
    if not np.isfinite(scores.detach().float().cpu().numpy() if isinstance(scores, Tensor) else scores).all():
        raise InputError(f"the network gives scores that are nan or infinite: {way_out}")


def chunk_size(shape: Sequence[int]) -> int:
    """Samples of this shape for one forward pass."""
    return max(1, min(500, _NUMBERS_AT_ONCE // max(1, math.prod(shape))))


_NUMBERS_AT_ONCE = 8_000_000  # inputs of one forward pass: 53 images of 224 × 224, all 500 of a batch of small ones


@torch.no_grad()
def forward_all(
    fabric: Fabric,
    model: nn.Module,
    split: Split,
    normalise: Normalise,
    *,
    batch: int | None = None,
    views: Sequence[str] = (),
    finish: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits and features of every sample in evaluation mode, in order, on every process; leaves the mode as it was.

    Args:
        views: Views of images to average over, see :mod:`classgap.data.views`.
        finish: What is made of logits and features before anything is averaged.
    """

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = model(normalise(x))
        return (logits, features) if finish is None else finish(logits.float(), features.float())

    was_training = model.training
    model.eval()
    try:
        # Every process gets equally many samples, since their collectives must match; surplus rows are cut off again.
        share = -(-len(split) // fabric.world_size)
        mine = torch.arange(fabric.global_rank * share, (fabric.global_rank + 1) * share) % len(split)
        chunks = torch.split(mine, batch or chunk_size(split.x.shape[1:]))
        parts = [mean_over_views(forward, x, views) if views else forward(x) for x in split.read(chunks)]
    finally:
        model.train(was_training)
    logits, features = (torch.cat(part).float() for part in zip(*parts, strict=True))
    return gather_rows(logits)[: len(split)], gather_rows(features)[: len(split)]
