"""Stages in which an estimator is fitted once to the outputs of the frozen network for its training or validation set."""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgap import posthoc
from classgap.batchstats import gather_rows
from classgap.checks import InputError
from classgap.data import Split, TrainingData, shuffled
from classgap.posthoc import PostHocMethod
from classgap.training.config import TrainConfig
from classgap.training.loop import Trainer
from classgap.training.outputs import SplitOutputs
from classgap.training.stages.parts import log_outputs
from classgap.training.state import Array

_SAME_PRIOR = 1.5  # factor by which the share of a class may change; a class of few samples changes by rounding already


class CorrectedTrainer(Trainer):
    """A run whose scores are corrected after training; its predictions and its saved network contain the correction.

    Attributes:
        estimator: The correction; it is fitted before anything is predicted.
    """

    estimator: PostHocMethod

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.criterion.ranks_by_output:
            raise InputError(
                f"this stage corrects the scores of the last layer, but method {self.config.method.name} ranks classes by "
                "something else; leave the stage out, or use classgap fix on the predictions of the run"
            )

    def predict(self, split: Split) -> tuple[Tensor, Tensor]:
        scores, features = super().predict(split)
        return self._corrected(scores, features), features

    def last_layer(self) -> tuple[Array | None, Array | None]:
        if not self.estimator.foldable:
            return None, None  # the scores are not those of a linear layer
        weight, bias = super().last_layer()
        new_weight, new_bias = self.estimator.fold(weight, bias)
        return new_weight.astype(np.float32), new_bias.astype(np.float32)

    def predictions(self, split: Split) -> SplitOutputs:
        norms = self.estimator.margin_norms
        return dataclasses.replace(
            super().predictions(split), margin_norms=None if norms is None else np.asarray(norms, dtype=np.float32)
        )

    def weights(self) -> dict[str, Tensor]:
        """The network with the correction folded in, or without it where its last layer cannot hold it.

        A cosine head has neither a bias nor rows of several lengths, and some corrections depend on the features; the correction
        then is in the files of the estimator, and in the predictions.
        """
        if self.head == "cosine" or not self.estimator.foldable:
            return super().weights()
        layer = dict(zip(("weight", "bias"), self.last_layer(), strict=True))
        head = {f"{self.model.layer}.{k}": torch.from_numpy(v) for k, v in layer.items() if v is not None}
        return {**super().weights(), **head}

    def _corrected(self, scores: Tensor, features: Tensor) -> Tensor:
        new = self.estimator.transform(scores.cpu().numpy(), features=features.cpu().numpy())
        return torch.from_numpy(np.ascontiguousarray(new, dtype=np.float32)).to(scores.device)

    def _save_estimator(self) -> None:
        if self.fabric.is_global_zero:
            posthoc.save(self.estimator, self.folder)


class EstimatorTrainer(CorrectedTrainer):
    """A last stage that is fitted once instead of trained. The network of the stage before is not changed.

    Args:
        estimator: What is fitted; the fitted one is written to the folder.
        passes: Passes over the augmented training set; None for an estimator that wants samples the network has not seen, and
            so is fitted to the validation set.
    """

    def __init__(self, *args: Any, estimator: PostHocMethod, passes: int | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.estimator, self.passes = estimator, passes
        if passes is None:
            validation_set(self.data)

    def run(self) -> None:
        """Fit, once."""
        if self.finished:
            return
        self._begin()
        started = time.perf_counter()
        fitted_to = self._fit()
        self._save_estimator()
        # the log has accuracy on training samples, whatever the fit was made on
        scores, features, y = fitted_to if self.passes else self._training_outputs(1)
        log_outputs(self, self._corrected(scores, features), features, y, started)

    def resume(self) -> None:
        super().resume()
        if self.finished:
            self._fit()

    def _fit(self) -> tuple[Tensor, Tensor, Tensor]:
        """Fit the estimator; returns what it was fitted to."""
        scores, features, y = self._training_outputs(self.passes) if self.passes else self._validation_outputs()
        weight, bias = Trainer.last_layer(self)  # not yet corrected
        assert weight is not None
        norms = np.linalg.norm(weight, axis=1)
        self.estimator.fit(
            scores.cpu().numpy(),
            y.cpu().numpy(),
            class_counts=self.data.class_counts.numpy(),
            weight_norms=norms,
            bias=np.zeros(len(norms)) if bias is None else bias,
            features=features.cpu().numpy(),
        )
        return scores, features, y

    def _validation_outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, features and labels of the validation set."""
        held_out = validation_set(self.data)
        scores, features = Trainer.predict(self, held_out)
        return scores.float(), features.float(), held_out.y.to(scores.device)

    @torch.no_grad()
    def _training_outputs(self, passes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, features and labels of the training set, augmented as in training, the network in evaluation mode.

        Rows come in the order of the training set, pass by pass, whatever the number of processes that made them.
        """
        batches, count = copy.copy(self.batches), len(self.data.train)
        batches.views, batches.mix, batches.order = 1, None, shuffled(count, self.config.seed)
        self.model.eval()
        rows = []
        for turn in range(passes if batches.augmented else 1):
            for batch in batches.epoch(turn):
                logits, features = self.model(batch.x)
                scores, features = self._scored(logits, features)
                rows.append((scores.float(), features.float(), batch.y, turn * count + batch.index))
        scores, features, y, place = (gather_rows(torch.cat(parts)) for parts in zip(*rows, strict=True))
        order = place.argsort()
        return scores[order], features[order], y[order]


class RefitTrainer(CorrectedTrainer):
    """Trains once more, on training and validation samples together, under the correction of the stage before.

    The samples that were held out for the correction are used for training this way; nothing is held out any more.
    """

    def __init__(self, config: TrainConfig, data: TrainingData, *args: Any, **kwargs: Any) -> None:
        held_out = validation_set(data)
        together = dataclasses.replace(data, train=data.train.joined(held_out), val=None)
        _require_same_prior(data, together)
        super().__init__(config, together, *args, **kwargs)

    def use_correction_of(self, before: Trainer) -> None:
        """Use the correction of the stage before in this run."""
        assert isinstance(before, EstimatorTrainer)
        self.estimator = before.estimator
        self._save_estimator()

    def resume(self) -> None:
        super().resume()
        if self.finished:
            self.estimator = posthoc.load(self.folder)


def _require_same_prior(data: TrainingData, together: TrainingData) -> None:
    """A correction that was fitted for one class prior is wrong for another."""
    before, after = (counts / counts.sum() for counts in (data.class_counts, together.class_counts))
    worst = int((after / before).log().abs().argmax())
    if not 1 / _SAME_PRIOR < after[worst] / before[worst] < _SAME_PRIOR:
        raise InputError(
            f"stage.refit needs validation samples in the proportions of the training samples, but class "
            f"{data.class_names[worst]} has {before[worst]:.1%} of the latter and {after[worst]:.1%} of both together; "
            "leave stage.refit out"
        )


def validation_set(data: TrainingData) -> Split:
    """The samples that a correction is fitted to."""
    if data.val is None:
        raise InputError("this stage is fitted to the validation set; set data.val_fraction above 0")
    return data.val
