"""The training loop. It uses the needs that a loss declares, never its name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.precision import Precision
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from numpy.typing import NDArray
from torch import Tensor, nn

import classgap
from classgap.batchstats import all_reduce_sum
from classgap.batchstats.divided import whole
from classgap.checks import InputError
from classgap.data import (
    Batch,
    Batches,
    ConfusedMix,
    Normalise,
    Split,
    TrainingData,
    mixed_seed,
    policies,
    require_images,
)
from classgap.heads import FeatureTap, cosine_heads, learned_scales
from classgap.losses import LossBatch
from classgap.training.averaging import WeightAverage, sentence
from classgap.training.build import Network, build_mix, build_network, build_optimizer, build_order, declared_loss
from classgap.training.checkpoint import (
    check_optimizer,
    check_rng,
    fitting,
    read_checkpoint,
    restore_rng,
    rng_state,
    rng_unused,
    save_checkpoint,
)
from classgap.training.collapse import has_collapsed, warning, way_out
from classgap.training.config import TrainConfig
from classgap.training.epoch import EpochMeter, accuracy_by_class, add_groups, append_log, cut_log, read_log
from classgap.training.interpolate import START_FILE, mix_weights, save_start
from classgap.training.interruption import RunInterrupted, received
from classgap.training.outputs import SplitOutputs, forward_all, last_layer, scores_and_features
from classgap.training.processes import per_process_part, size_options
from classgap.training.schedule import in_epochs, rate_factor
from classgap.training.sharding import check_origin, is_sharded, require_shardable, set_up

Array = NDArray[np.float32]
Trains = Literal["all", "body", "head"]


class DivergedError(InputError):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class TrainProgress:
    """Progress of a training run.

    Attributes:
        record: The log entry of an epoch that has just ended.
        stage: Which of several runs this is, e.g. ``"teacher"``; empty for the run itself.
        note: A message for the user, sent once.
    """

    step: int
    steps: int
    epoch: int
    epochs: int
    record: dict[str, Any] | None = None
    stage: str = ""
    note: str = ""


Watcher = Callable[[TrainProgress], None]
_STEPS_BETWEEN_QUESTIONS = 10  # whether any process was asked to stop; the question is a message between all of them


class Trainer:
    """A run in progress: everything a checkpoint holds, and the loop over it.

    Args:
        folder: Folder of checkpoint and log.
        watch: Called after every step and every epoch, on the first process.
        trains: Which part of the network is trained; the rest is frozen, including running statistics of normalisation layers.
        teacher: A trained network, for methods that learn from one.
        build: Makes network and loss.
    Attributes:
        before_training: Called before training starts or is resumed; trains the other runs that this one needs.
        lock: Lock of the folder, held by the first process.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: TrainingData,
        fabric: Fabric,
        folder: Path,
        watch: Watcher | None = None,
        *,
        trains: Trains = "all",
        teacher: nn.Module | None = None,
        build: Callable[..., Network] = build_network,
    ) -> None:
        if config.predict.augment:
            require_images("predict.augment", data.in_shape)
        self.config, self.data, self.fabric, self.folder, self.watch = config, data, fabric, folder, watch
        self.checkpoint, self.log = folder / "checkpoint.pt", folder / "log.jsonl"
        self.trains = _trained_part(config, trains)
        self.before_training: Callable[[Trainer], None] | None = None
        fabric.seed_everything(config.seed, verbose=False)
        network = build(config, data, teacher=teacher)
        self.head, self.experts = network.head, network.experts
        self.chosen, self._notes = network.chosen, [*data.notes, *network.notes]
        _freeze_rest(network.model, self.trains)
        if is_sharded(fabric):
            require_shardable(config, network.model, network.criterion)
        make = partial(build_optimizer, config.optim, config.wrapper, network.model, network.criterion)
        if fabric.device.type == "cpu" and not is_sharded(fabric):
            make = partial(make, fused=True)
        self.model, self.optimizer = set_up(fabric, network.model, make)
        learns = any(p.requires_grad for p in network.criterion.parameters())
        self.criterion: Any = (fabric.setup_module if learns else fabric.to_device)(network.criterion)
        if teacher is not None:
            self.bind_teacher(teacher)
        self.average = self._new_average()
        # Where Fabric adds nothing, its wrappers are left out: they take as long as a small layer.
        plain = fabric.world_size == 1 and type(fabric.strategy.precision) is Precision
        plain = plain and isinstance(fabric.strategy, SingleDeviceStrategy)
        self._network: Callable[[Tensor], tuple[Tensor, Tensor]] = self.model.module if plain else self.model
        self._backward: Callable[[Tensor], None] = Tensor.backward if plain else fabric.backward

        channels_last = config.channels_last and len(data.in_shape) == 3
        self.normalise = Normalise(data.mean, data.std, channels_last=channels_last)
        self.batches = Batches(
            data.train.to(fabric.device),
            batch=config.batch,
            order=build_order(config, data),
            normalise=self.normalise,
            policies=policies(data.augment, data.mean, crop_scale=data.crop_scale),
            view_policies=None
            if data.view_augment is None
            else policies(data.view_augment, data.mean, crop_scale=data.crop_scale),
            views=network.views,
            mix=build_mix(config.mix, data),
            seed=config.seed,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )
        if not self.batches.steps():
            raise InputError(f"training needs at least two samples, got {len(data.train)}")
        self.epoch, self.step = 0, 0
        self.meter = EpochMeter(data.num_classes, fabric.device)
        self._saved_rng: Tensor | None = None
        self._warned = False
        self.lock: Any = None
        self._head_is_new, self._mixed = network.head_is_new, False

    @property
    def fresh(self) -> bool:
        """Whether nothing has been trained yet."""
        return self.epoch == self.step == 0

    @property
    def finished(self) -> bool:
        return self.epoch >= self.config.epochs

    def bind_teacher(self, teacher: nn.Module) -> None:
        """Give this trained network to the loss as its teacher, with features of the same kind as those of the student."""
        if isinstance(teacher, FeatureTap):
            teacher.unit = "encoder_features" not in self.criterion.needs
        self.criterion.bind_teacher(teacher.to(self.fabric.device))

    # --- the loop ---------------------------------------------------------------------------------------------------

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
            self._report(note=sentence(self.config.average, self._steps_until[-1]))
        for note in self._notes:
            self._report(note=note)
        if self.batches.views > 1 and not self.batches.augmented:
            self._report(note=f"without augmentation all views that {name} compares are equal; see data.augment")

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

    def _new_average(self) -> WeightAverage | None:
        if self.config.average.name == "none":
            return None
        return WeightAverage(self.config.average, {"model": self.model, "criterion": self.criterion})

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
        for position, piece in enumerate(pieces):
            with self.fabric.no_backward_sync(self.model, enabled=position < len(pieces) - 1):
                self.criterion.observe(piece.x if len(piece.y) else piece.x[:0])
                logits, features = self._network(piece.x)
                if not len(piece.y):  # this process has no sample of the last batch of the epoch
                    logits, features = logits[:0], features[:0]
                loss = self.criterion(logits, piece.y, features=features, index=piece.index, epoch=self.epoch)
                # Processes' gradients are averaged, so each counts by its share of the samples times their number.
                share = len(piece.y) * self.fabric.world_size / batch.total
                self._backward(loss if share == 1 else loss * share)
            if measured:
                scores = self.criterion.scores(logits.detach(), features.detach())
                self.meter.add(scores, features.detach().flatten(1), piece.y, {"loss": loss, **self.criterion.last})

    def _rate(self, position: float) -> float:
        return self.config.optim.lr * rate_factor(self._schedule, position, self.config.epochs)

    def _training_pass(self) -> Iterator[LossBatch]:
        """The training set in evaluation mode, for losses that need it before an epoch."""
        logits, features = forward_all(self.fabric, self.model, self.batches.split, self.normalise)
        index = torch.arange(len(logits), device=logits.device)
        for rows in torch.split(index, self.config.batch):
            yield LossBatch(logits[rows], self.batches.split.y[rows], features[rows], rows)

    # --- results ----------------------------------------------------------------------------------------------------

    def predict(self, split: Split) -> tuple[Tensor, Tensor]:
        """Scores classes are ranked by, and features; those of several networks side by side."""
        views = self.config.predict.augment
        finish = self._scored if views else None
        there = split.to(self.fabric.device)
        found = forward_all(self.fabric, self.model, there, self.normalise, views=views, finish=finish)
        return found if views else self._scored(*found)

    def _scored(self, logits: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and features as the head sees them."""
        return scores_and_features(self.criterion, self.head, logits, features)

    def last_layer(self) -> tuple[Array | None, Array | None]:
        """Weight and bias of the layer behind the scores, where there is one; see the function of this name."""
        weight, bias = last_layer(self.model, self.head, self.experts, self.criterion.cosine_scale)
        return None if weight is None else _array(weight), None if bias is None else _array(bias)

    def weights(self) -> dict[str, Tensor]:
        """What the file of the trained model holds; every process must call this."""
        return {name: whole(tensor).contiguous() for name, tensor in self.model.state_dict().items()}

    def predictions(self, split: Split) -> SplitOutputs:
        """Scores, features and the last layer, as an audit reads them."""
        scores, features = self.predict(split)
        weight, bias = self.last_layer()
        return SplitOutputs(
            y_true=split.y.cpu().numpy(),
            scores=_array(scores),
            features=_array(features),
            weight=weight,
            bias=bias,
            class_names=self.data.class_names,
            train_counts=self.data.class_counts.numpy(),
            ids=split.ids,
        )

    # --- state ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint; a run whose loss is no longer finite keeps its last good one."""
        self._require_finite()
        state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "criterion": self.criterion,
            "scaler": self.fabric.strategy.precision.state_dict(),
            "position": {"epoch": self.epoch, "step": self.step},
            "meter": self.meter.state_dict(),
            "rng": rng_state(self.fabric),
            "split_hash": self.data.split_hash,
            "version": classgap.__version__,
        }
        if self.average is not None:
            state["average"] = self.average.state_dict()
        if isinstance(self.batches.mix, ConfusedMix):
            state["mix"] = self.batches.mix.state_dict()
        save_checkpoint(self.fabric, self.checkpoint, state)

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            if self.fabric.is_global_zero and self.log.exists():
                cut_log(self.log, 0)  # a crash came between the end of the first epoch and its checkpoint
            return
        saved = read_checkpoint(self.checkpoint)
        if saved["split_hash"] != self.data.split_hash:
            raise InputError(
                f"checkpoint {self.checkpoint} was made on other data (split {saved['split_hash']}, now "
                f"{self.data.split_hash}); restore the data file, or start over in another folder"
            )
        modules = {"model": self.model, "optimizer": self.optimizer, "criterion": self.criterion}
        with fitting(self.checkpoint):
            check_origin(self.checkpoint, saved["optimizer"], self.fabric)
            self.fabric.load(self.checkpoint, modules, weights_only=True)
            check_optimizer(self.optimizer)
            self.fabric.strategy.precision.load_state_dict(saved["scaler"])
            self.epoch, self.step = (int(saved["position"][name]) for name in ("epoch", "step"))
            if not (0 <= self.epoch <= self.config.epochs and self.step >= 0):
                raise ValueError(f"its position is step {self.step} of epoch {self.epoch}")
            self.meter.load_state_dict(saved["meter"])
            if self.average is not None:
                self.average.load_state_dict(saved["average"])
            if isinstance(self.batches.mix, ConfusedMix):
                self.batches.mix.load_state_dict(saved["mix"])
            check_rng(saved["rng"])
            same_size = self._check_size(saved["rng"])
        if self.fabric.is_global_zero:
            cut_log(self.log, self.epoch)
        self._saved_rng = saved["rng"] if same_size else None

    def _seed_of(self, rank: int) -> int:
        """Seed of the random numbers that a process draws, e.g. for dropout; they differ between processes."""
        return mixed_seed(self.config.seed, rank, 2)

    def _check_size(self, states: Tensor) -> bool:
        """Whether the checkpoint was made by as many processes; an error if another number would change the result."""
        before, now = len(states), self.fabric.world_size
        if before == now:
            return True
        reason = per_process_part(self.model, self.config.optim.accumulate)
        if reason is None and not rng_unused(self.fabric, states, self._seed_of):
            reason = "every process draws random numbers of its own, e.g. for dropout"
        if reason is not None:
            raise InputError(
                f"checkpoint {self.checkpoint} was made by {before} processes, now there are {now}, which would change the "
                f"result: {reason}; resume with {size_options(before)}"
            )
        return False

    def release(self) -> None:
        """Let other processes train in the folder."""
        if self.lock is not None:
            self.lock.release()

    def _require_finite(self) -> None:
        if not self.meter.finite():
            raise DivergedError(
                f"the loss is not finite in epoch {self.epoch + 1}: lower optim.lr or the weights of the method's terms, or "
                f"set optim.clip; the last good checkpoint is {self.checkpoint}"
            )

    def _report(self, record: dict[str, Any] | None = None, *, note: str = "") -> None:
        if self.watch is not None and self.fabric.is_global_zero:
            done, total = self._steps_until[self.epoch] + self.step, self._steps_until[-1]
            self.watch(TrainProgress(done, total, self.epoch, self.config.epochs, record, note=note))


def _trained_part(config: TrainConfig, wanted: Trains) -> Trains:
    """Which part of the network is trained: what the stage says, unless the backbone is frozen."""
    if not config.model.frozen:
        return wanted
    if wanted == "body":
        raise InputError(
            "model.frozen=true trains the head alone, but this stage trains the rest of the network; leave it out"
        )
    return "head"


def _freeze_rest(model: nn.Module, trains: Trains) -> None:
    """Freeze the parts of a network that are not trained."""
    if trains == "all":
        return
    for part in model.modules():
        if isinstance(part, FeatureTap):
            part.model.requires_grad_(trains == "body")
            part.head.requires_grad_(trains == "head")


def _array(tensor: Tensor) -> Array:
    return whole(tensor.detach()).float().cpu().numpy()
