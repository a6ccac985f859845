"""A last stage that is fitted in one go: an estimator on what the frozen network says of its training or validation set."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from classgap import posthoc
from classgap._checks import InputError
from classgap.data import Split, shuffled
from classgap.posthoc import PostHocMethod
from classgap.stats import gather_rows
from classgap.train.loop import Array, Trainer


class FittedTrainer(Trainer):
    """A last stage that is fitted in one go instead of trained. The network stays as the stage before left it.

    Args:
        estimator: What is fitted; the fitted one is written to the folder.
        passes: Passes over the augmented training set; None for an estimator that wants samples the network has not seen, and
            so is fitted to the validation set.
    """

    def __init__(self, *args: Any, estimator: PostHocMethod, passes: int | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.estimator, self.passes = estimator, passes
        if passes is None and self.data.val is None:
            raise InputError(
                f"stage {estimator.method.name} is fitted to the validation set; set data.val_fraction above 0"
            )

    def run(self) -> None:
        """Fit, once."""
        if self.finished:
            return
        self._begin()
        started = time.perf_counter()
        fitted_to = self._fit()
        if self.fabric.is_global_zero:
            posthoc.save(self.estimator, self.folder)
        # the log has accuracy on training samples, whatever the fit was made on
        scores, features, y = fitted_to if self.passes else self._seen(1)
        mine = slice(self.fabric.global_rank, None, self.fabric.world_size)
        corrected, y = self._corrected(scores, features)[mine], y[mine]
        self.meter.add(corrected, features[mine], y, {"loss": F.cross_entropy(corrected, y)})
        self._end_epoch({"epoch": self.epoch, "lr": 0.0, **self.meter.record()}, started)

    def resume(self) -> None:
        super().resume()
        if self.finished:
            self._fit()

    def predict(self, split: Split) -> tuple[Tensor, Tensor]:
        scores, features = super().predict(split)
        return self._corrected(scores * _cosine_scale(self.criterion), features), features

    def last_layer(self) -> tuple[Array | None, Array | None]:
        weight, bias = super().last_layer()
        # A correction of cosines is no linear layer on features; a head of its own is one whatever was there before.
        foldable = type(self.estimator)._fold is not PostHocMethod._fold
        if not foldable or (self.head == "cosine" and not self.estimator.uses_features):
            return weight, bias
        new_weight, new_bias = self.estimator.fold(weight, bias)
        return np.float32(new_weight), np.float32(new_bias)

    def weights(self) -> dict[str, Tensor]:
        layer = dict(zip(("weight", "bias"), self.last_layer(), strict=True))
        head = {f"{self.model.layer}.{k}": torch.from_numpy(v) for k, v in layer.items() if v is not None}
        return {**super().weights(), **head}

    def _fit(self) -> tuple[Tensor, Tensor, Tensor]:
        """Fit the estimator; returns what it was fitted to."""
        scores, features, y = self._seen(self.passes) if self.passes else self._held_out()
        weight, bias = super().last_layer()
        assert weight is not None
        norms = np.ones(len(weight)) if self.head == "cosine" else np.linalg.norm(weight, axis=1)
        self.estimator.fit(
            scores.cpu().numpy(),
            y.cpu().numpy(),
            class_counts=self.data.class_counts.numpy(),
            weight_norms=norms,
            bias=np.zeros(len(norms)) if bias is None else bias,
            features=features.cpu().numpy(),
        )
        return scores, features, y

    def _held_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, features and labels of the validation set."""
        assert self.data.val is not None  # seen to at the start
        scores, features = super().predict(self.data.val)
        return scores.float() * _cosine_scale(self.criterion), features.float(), self.data.val.y.to(scores.device)

    @torch.no_grad()
    def _seen(self, passes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, features and labels of the training set, augmented as in training, the network in evaluation mode.

        Rows come in the order of the training set, pass by pass, whatever the number of processes that made them.
        """
        batches, count = copy.copy(self.batches), len(self.data.train)
        batches.views, batches.mix, batches.order = 1, None, shuffled(count, self.config.seed)
        self.model.eval()
        rows = []
        for turn in range(passes if batches.policies else 1):
            for batch in batches.epoch(turn):
                logits, features = self.model(batch.x)
                scores = self.criterion.scores(logits, features)
                rows.append((scores.float(), features.float(), batch.y, turn * count + batch.index))
        scores, features, y, place = (gather_rows(torch.cat(parts)) for parts in zip(*rows, strict=True))
        order = place.argsort()
        return scores[order] * _cosine_scale(self.criterion), features[order], y[order]

    def _corrected(self, scores: Tensor, features: Tensor) -> Tensor:
        new = self.estimator.transform(scores.cpu().numpy(), features=features.cpu().numpy())
        return torch.from_numpy(np.ascontiguousarray(new, dtype=np.float32)).to(scores.device)


def _cosine_scale(criterion: Any) -> float:
    """What a loss on cosines multiplies them by before the softmax; 1 for one on plain logits."""
    if "cosine_head" not in criterion.needs:
        return 1.0
    for name in ("s", "scale"):
        if hasattr(criterion, name):
            return float(getattr(criterion, name))
    return _cosine_scale(criterion.base) if hasattr(criterion, "base") else 1.0
