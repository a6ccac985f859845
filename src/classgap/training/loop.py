"""The training loop. It uses the needs that a loss declares, never its name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from classgap.batchstats import all_reduce_sum
from classgap.data import Batch, ConfusedMix
from classgap.heads import cosine_heads, learned_scales
from classgap.losses import LossBatch
from classgap.training.averaging import WeightAverage, sentence, without_effect
from classgap.training.build import declared_loss
from classgap.training.checkpoint import fitting, restore_rng
from classgap.training.collapse import has_collapsed, warning, way_out
from classgap.training.epoch import EpochMeter, accuracy_by_class, add_groups, append_log, read_log
from classgap.training.interpolate import START_FILE, mix_weights, save_start
from classgap.training.interruption import RunInterrupted, received
from classgap.training.outputs import forward_all
from classgap.training.progress import TrainProgress
from classgap.training.schedule import in_epochs, rate_factor
from classgap.training.state import RunState

_STEPS_BETWEEN_QUESTIONS = 10  # whether any process was asked to stop; the question is a message between all of them


class Trainer(RunState):
    """The loop over the epochs and steps of a run; arguments and attributes are those of :class:`RunState`."""

    def run(self) -> None:
        """Train from the current position to the end."""
        if not self.finished:
            self._begin()
        while not self.finished:
            started = time.perf_counter()
            self._train_epoch()
            record = {"epoch": self.epoch, "lr": self._rate(self.epoch), **self.meter.record()}
            if learned_scales(self.model):
                record["head_scale"] = [
                    head.scale.item() for head in cosine_heads(self.model) if head.scale is not None
                ]
            self.end_epoch(record, started)
        if not self._mixed:
            if self.average is not None:
                self.average.apply()
            if self.config.model.wise < 1:
                mix_weights(self.fabric, self.model, self.folder / START_FILE, self.config.model.wise)
            self._mixed = True

    def _begin(self) -> None:
        if self.before_training is not None:
            self.before_training(self)
        # Only now: the runs before draw random numbers, fewer if some of them were finished already.
        if self._saved_rng is not None:
            restore_rng(self.fabric, self._saved_rng)
        else:
            torch.manual_seed(self._seed_of(self.fabric.global_rank))
        if self.fresh and self.config.model.wise < 1:
            save_start(self.fabric, self.model, self.folder / START_FILE, without_head=self._head_is_new)
        # Only now too: an earlier stage may decide how long an epoch is.
        with fitting(self.checkpoint):
            if self.step > self.batches.steps(self.epoch):
                raise ValueError(f"its position is step {self.step} of epoch {self.epoch}")
        lengths = (self.batches.steps(epoch) for epoch in range(self.config.epochs))
        self._steps_until = [0, *itertools.accumulate(lengths)]
        self._schedule = in_epochs(self.config.schedule, self._steps_until)
        name = self.config.method.name
        if self.head == "cosine" and self.config.model.head == "auto":
            self._report(note=f"head: cosine, since {name} works on cosines")
        if learned_scales(self.model) and self.config.model.head_scale is None:
            self._report(note="head: cosine, with a learned scale (model.head_scale)")
        if self.average is not None:
            alone = without_effect(self.config.average, self._steps_until)
            self._report(note=alone or sentence(self.config.average, self._steps_until[-1]))
        for note in self._notes:
            self._report(note=note)
        if self.batches.views > 1 and not self.batches.augmented:
            self._report(note=f"without augmentation all views that {name} compares are equal; see data.augment")
        if self.batches.views == 1 and self.config.data.view_augment is not None:
            self._report(note=f"data.view_augment has no effect: {name} compares no views")

    def end_epoch(self, record: dict[str, Any], started: float) -> None:
        """Write the log and the checkpoint of an epoch that began at ``started``."""
        if self.data.val is not None:
            scores, _ = self.predict(self.data.val)
            add_groups(record, accuracy_by_class(scores, self.data.val.y.to(scores.device), self.data.num_classes))
            if isinstance(self.batches.mix, ConfusedMix):
                self.batches.mix.measure(scores, self.data.val.y)
        if self.average is not None and self.epoch == self.config.epochs - 1:
            record["average"] = self._finish_average(self.average)
        record["seconds"] = time.perf_counter() - started
        if self.fabric.is_global_zero:
            self._watch_features(record)
            append_log(self.log, record)
        self.epoch, self.step = self.epoch + 1, 0
        self.meter = EpochMeter(self.data.num_classes, self.fabric.device)
        self.save()
        self._report(record)
        if not self.finished and (stop := self._asked_to_stop(last=True)):
            raise RunInterrupted(stop)

    def _watch_features(self, record: dict[str, Any]) -> None:
        """Warn once where the features of all samples have become nearly the same."""
        if "features" not in record or self._warned:
            return
        before = [entry for entry in read_log(self.log) if entry["epoch"] < self.epoch]
        self._warned = any("warning" in entry for entry in before)
        start = (before or [record])[0].get("features", {}).get("start")
        counts = self.data.class_counts.numpy()
        if not self._warned and has_collapsed([*before, record], start, counts):
            out = way_out(self.config.method.name, declared_loss(self.config).defaults, self.criterion.if_collapsed)
            record["warning"] = warning(record, start, counts, out)
            self._warned = True
            self._report(note=record["warning"])

    def _train_epoch(self) -> None:
        self.model.train(self.trains != "head")
        if self.config.model.freeze_norms:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        self.criterion.train()
        if self.step == 0:
            self.criterion.start_epoch(self.epoch, self._training_pass)
        steps = self.batches.steps(self.epoch)
        for batch in self.batches.epoch(self.epoch, self.step):
            rate = self._rate(self.epoch + self.step / steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group.get("lr_factor", 1.0)
            self._update(batch)
            self.step += 1
            if self.average is not None:
                done = self._steps_until[self.epoch] + self.step
                self.average.update(done, self._steps_until[-1], epoch_ends=self.step == steps)
            cadence = self.config.checkpoint_steps
            stop = self._asked_to_stop(last=self.step == steps)
            if self.step < steps and (stop or (cadence and self.step % cadence == 0)):
                self.save()
            self._report()
            if stop and self.step < steps:
                raise RunInterrupted(stop)
        self._require_finite()

    def _finish_average(self, average: WeightAverage) -> dict[str, Any]:
        """Complete the average with statistics of normalisation; what the log says about it."""
        norms = self.trains != "head" and not self.config.model.freeze_norms
        batches = self.batches.epoch(self.config.epochs - 1)  # those of the last epoch, as augmented and mixed there
        average.finish(self.fabric, batches, self.config.optim.accumulate, norms=norms)
        found: dict[str, Any] = {"count": average.count}
        if self.data.val is not None:
            with average.applied():
                scores, _ = self.predict(self.data.val)
            accuracy = accuracy_by_class(scores, self.data.val.y.to(scores.device), self.data.num_classes)
            found["val"] = {"balanced": float(np.nanmean(accuracy)), "worst": float(np.nanmin(accuracy))}
        return found

    def _asked_to_stop(self, *, last: bool) -> int:
        """Number of the signal that asks this run to stop, 0 for none; the same on every process."""
        if self.fabric.world_size == 1:
            return received()
        if not last and self.step % _STEPS_BETWEEN_QUESTIONS:
            return 0
        mine = torch.zeros(self.fabric.world_size, device=self.fabric.device)
        mine[self.fabric.global_rank] = received()
        return int(all_reduce_sum(mine)[0].max())

    def _update(self, batch: Batch) -> None:
        """One optimiser step."""
        self.optimizer.zero_grad()
        self._gradients(batch)
        if self.config.wrapper.name != "none":
            # The second pass of a sharpness-aware step; state of the loss, normalisation and log come from the first pass.
            with self.optimizer.perturbed(self.model, self.criterion):
                self._gradients(batch, measured=False)
        if self.config.optim.clip:
            # If a gradient overflowed in half precision, the scaler skips the step.
            limit = self.config.optim.clip
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        self.optimizer.step()

    def _gradients(self, batch: Batch, *, measured: bool = True) -> None:
        """Gradient of the mean loss over the whole batch, whatever the number of processes and pieces."""
        pieces = list(batch.pieces(self.config.optim.accumulate))
        shares = self._shares(batch, pieces)
        for position, (piece, share) in enumerate(zip(pieces, shares, strict=True)):
            with self.fabric.no_backward_sync(self.model, enabled=position < len(pieces) - 1):
                self.criterion.observe(piece.x if len(piece.y) else piece.x[:0])
                logits, features = self._network(piece.x)
                if not len(piece.y):  # this process has no sample of the last batch of the epoch
                    logits, features = logits[:0], features[:0]
                loss = self.criterion(logits, piece.y, features=features, index=piece.index, epoch=self.epoch)
                self._backward(loss if share == 1 else loss * share)
            if measured:
                scores = self.criterion.scores(logits.detach(), features.detach())
                self.meter.add(scores, features.detach().flatten(1), piece.y, {"loss": loss, **self.criterion.last})

    def _shares(self, batch: Batch, pieces: list[Batch]) -> list[float]:
        """What each piece counts: its share of the samples, or of their class weights, times the number of processes.

        Gradients of processes are averaged, hence the last factor. A loss with class weights divides by their sum.
        """
        world = self.fabric.world_size
        if self.criterion.class_weight is None or batch.y.dim() != 1 or not self.criterion.has_sample_losses:
            return [len(piece.y) * world / batch.total for piece in pieces]
        sums = torch.stack([self.criterion.divisor(piece.y) for piece in pieces])
        total = all_reduce_sum(sums.sum())[0]
        return (sums * (world / total.clamp_min(1e-30))).tolist()

    def _rate(self, position: float) -> float:
        return self.config.optim.lr * rate_factor(self._schedule, position, self.config.epochs)

    def _training_pass(self) -> Iterator[LossBatch]:
        """The training set in evaluation mode, for losses that need it before an epoch."""
        logits, features = forward_all(self.fabric, self.model, self.batches.split, self.normalise)
        index = torch.arange(len(logits), device=logits.device)
        for rows in torch.split(index, self.config.batch):
            yield LossBatch(logits[rows], self.batches.split.y[rows], features[rows], rows)

    def _report(self, record: dict[str, Any] | None = None, *, note: str = "") -> None:
        if self.watch is not None and self.fabric.is_global_zero:
            done, total = self._steps_until[self.epoch] + self.step, self._steps_until[-1]
            self.watch(TrainProgress(done, total, self.epoch, self.config.epochs, record, note=note))
