"""Hugging Face's ``Trainer`` with any loss of classgap. ::

    trainer = ClassLossTrainer(model, args, criterion=MR2Loss(num_classes=77), compute_metrics=ClassMetrics(), …)

For every loss that is a mean over samples, also one with class weights, the loss of a step is that of one batch with all samples
of the step, whatever the number of accumulated batches and processes. Statistics and pairs of a loss see the samples of one
forward pass on all processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import EvalPrediction, Trainer

from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.heads import FeatureTap, logits_of
from classgap.integrations import criteria
from classgap.integrations.scalars import class_counts, class_scalars
from classgap.losses import ClassLoss
from classgap.losses.options import IGNORED


class ClassLossTrainer(Trainer):
    """``transformers.Trainer`` that trains with ``criterion``, reads features, and saves and restores the state of the loss.

    With a ``Trainer`` class of your own: ``class MyTrainer(ClassLossTrainer, YourTrainer)``.

    Predictions, and so the metrics, are what the loss ranks classes by (``criterion.scores``): the logits of the model, cosines
    at the scale of the loss, or minus the distances to the means of L-GM.

    Labels of -100 are left out. ``label_smoothing_factor`` is honoured where the loss takes probabilities as target. Evaluation
    does not change the state of the loss. Parameters of the loss are optimised without weight decay and not clipped.

    Args:
        criterion: A loss that needs at most features and class counts.
        layer: Name of the head in ``model.named_modules()``, where the last linear layer is not it.
    """

    criterion: ClassLoss

    def __init__(self, *args: Any, criterion: ClassLoss, layer: str | None = None, **kwargs: Any) -> None:
        criteria.check_criterion(criterion, "Hugging Face's Trainer")
        if kwargs.get("compute_loss_func") is not None:
            raise InputError("compute_loss_func cannot be combined with criterion; give one of them")
        self._layer = layer
        self._tap: FeatureTap | None = None
        self._calls: list[tuple[Tensor, Tensor]] = []
        super().__init__(*args, compute_loss_func=self._loss, **kwargs)
        if isinstance(self.model, FeatureTap):
            raise InputError("model is a FeatureTap; pass the plain model, whose features the trainer reads itself")
        if self.args.n_gpu > 1:
            raise InputError(
                f"{self.args.n_gpu} GPUs in one process (torch.nn.DataParallel) would split the statistics of the loss; "
                "start one process per GPU with torchrun or accelerate launch"
            )
        criteria.check_smoothing(criterion, self.args.label_smoothing_factor, "label_smoothing_factor")
        self.criterion = criterion.to(self.args.device)
        if self.args.label_smoothing_factor:
            self.criterion.label_smoothing = self.args.label_smoothing_factor

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of ``Trainer``, with the features of the same forward pass."""
        if "labels" not in inputs:
            raise InputError(f"the batch must hold 'labels' for {self.criterion.name}, got {', '.join(inputs)}")
        self.criterion.train(model.training)
        with self._recording():
            found = super().compute_loss(model, inputs, *args, **kwargs)
        if isinstance(found, tuple) and isinstance(found[1], Tensor):  # Trainer would take its first row for the loss
            return found[0], {"logits": found[1]}
        return found

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Tensor | None, Any, Any]:
        """Loss, predictions and labels of a batch; predictions are what the loss ranks classes by."""
        with self._recording(), torch.no_grad():
            loss, outputs, labels = super().prediction_step(*args, **kwargs)
            if outputs is None:
                return loss, None, labels
            logits, *others = outputs if isinstance(outputs, (tuple, list)) else (outputs,)  # perhaps hidden states
            if logits.dim() == 1:  # Trainer takes one row of a tensor for a tuple of one
                logits = logits[None]
            scores = self.criterion.scores(logits, self._features(logits))
        return loss, (scores, *others) if others else scores, labels

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Record the features of the forward pass in this block; of two blocks, one inside the other, the one that runs it."""
        if self._tap is None or self._tap.model is not self.model:  # model_init makes a new model for each training
            self._tap = criteria.tap(self.criterion, self.model, self._layer)
        with contextlib.ExitStack() as stack:
            self._calls = [] if self._tap is None else stack.enter_context(self._tap.listening())
            yield

    def _features(self, logits: Tensor) -> Tensor | None:
        return None if self._tap is None else self._tap.features_of(self._calls, logits)

    def _loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = logits_of(outputs)
        loss: Tensor = self.criterion(logits, labels, features=self._features(logits))
        if num_items_in_batch is not None:  # in all batches of the step; Trainer itself undoes the mean over processes
            return torch.mul(loss, self.criterion.divisor(labels) / num_items_in_batch)
        steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        return loss / steps if self.criterion.training else loss

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        """What the mean over all samples of a step divides by; ``Trainer`` counts labels, which is not that for class weights."""
        labels = [batch["labels"].to(device) for batch in batch_samples if batch.get("labels") is not None]
        if not labels:
            return None
        total = torch.stack([self.criterion.divisor(part) for part in labels]).sum()
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        replicas: int = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        return torch.div(total, replicas)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer of ``Trainer``, with the parameters of the loss in a group of their own."""
        optimizer = super().create_optimizer(*args, **kwargs)
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        own = [p for p in self.criterion.parameters() if p.requires_grad and id(p) not in known]
        if own:
            optimizer.add_param_group({"params": own, "weight_decay": 0.0})
            plain = getattr(optimizer, "optimizer", optimizer)
            plain.register_step_pre_hook(lambda *_: criteria.share_gradients(own))
            plain.register_step_post_hook(lambda *_: self.criterion.zero_grad())  # Trainer does so for the model only
        return optimizer

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the model, and the state and settings of the loss beside it."""
        super().save_model(output_dir, *args, **kwargs)
        if self.args.should_save:
            criteria.save_criterion(self.criterion, output_dir or self.args.output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        criteria.load_criterion(self.criterion, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        criteria.load_criterion(self.criterion, self.state.best_model_checkpoint)


class ClassMetrics:
    """``compute_metrics`` for a ``Trainer``: ``overall, balanced, easy, medium, hard, worst, worst_decile, gap``.

    With ``metric_for_best_model="hard"`` and ``load_best_model_at_end=True`` the best checkpoint is the one with
    the best hard third. ``batch_eval_metrics=True`` works too, and then no logits of the whole evaluation set are kept.

    Example:
        >>> logits, labels = np.eye(3)[[0, 1, 1, 2]], np.array([0, 1, 2, 2])
        >>> ClassMetrics()(EvalPrediction(predictions=logits, label_ids=labels))["worst"]
        0.5
    """

    def __init__(self) -> None:
        self._counts: tuple[Ints, Ints] | None = None

    def __call__(self, prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """Numbers of these predictions; with ``batch_eval_metrics`` of all batches since the last result."""
        scores, labels = prediction.predictions, prediction.label_ids
        scores = scores[0] if isinstance(scores, (tuple, list)) else scores  # hidden states may follow the logits
        scores, labels = (np.asarray(torch.as_tensor(value).float().cpu()) for value in (scores, labels))
        y_true = (labels if labels.ndim == 1 else labels.argmax(-1)).astype(np.int64)
        keep = y_true != IGNORED
        counts = class_counts(y_true[keep], scores.argmax(-1)[keep], scores.shape[-1])
        if self._counts is not None:
            counts = counts[0] + self._counts[0], counts[1] + self._counts[1]
        self._counts = None if compute_result else counts
        return class_scalars(*counts) if compute_result else {}
