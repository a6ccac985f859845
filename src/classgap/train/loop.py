"""The one training loop. It knows losses by what they need, never by name."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import classgap
from classgap import registry
from classgap._checks import InputError
from classgap.data import Batch, Batches, Normalise, Split, TrainingData, mixed_seed, policies, shuffled
from classgap.heads import FeatureTap
from classgap.losses import ClassLoss
from classgap.models import build_model
from classgap.train.checkpoint import read_checkpoint, restore_rng, rng_state, save_checkpoint
from classgap.train.config import OptimConfig, TrainConfig
from classgap.train.epoch import EpochMeter, accuracy_by_class, add_groups, append_log, cut_log
from classgap.train.predict import Predictions, forward_all
from classgap.train.schedule import rate_factor

_SUPPLIED = {"features", "index", "epoch", "class_counts", "cosine_head"}


class DivergedError(InputError):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands; ``record`` is the log entry of an epoch that has just ended."""

    step: int
    steps: int
    epoch: int
    epochs: int
    record: dict[str, Any] | None = None


Watcher = Callable[[Progress], None]


def build_criterion(config: TrainConfig, data: TrainingData) -> ClassLoss:
    """The loss a configuration names, built for these data."""
    spec = registry.get("loss", config.method.name)
    if "cosine_head" in spec.needs and config.model.head != "cosine":
        raise InputError(f"method {spec.name} works on cosines; set model.head=cosine")
    if unmet := spec.needs - _SUPPLIED:
        raise InputError(f"method {spec.name} needs {', '.join(sorted(unmet))}, which `classgap train` does not supply")
    counts = {"class_counts": data.class_counts} if "class_counts" in inspect.signature(spec.cls).parameters else {}
    criterion: ClassLoss = spec.build(num_classes=data.num_classes, **counts, **config.method.params)
    return criterion


def build_optimizer(config: OptimConfig, model: nn.Module, criterion: nn.Module) -> torch.optim.Optimizer:
    """SGD or AdamW over the model and whatever the loss learns; the latter is not decayed."""
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
    learned = [p for p in criterion.parameters() if p.requires_grad]
    if learned:
        groups.append({"params": learned, "weight_decay": 0.0})
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, weight_decay=config.weight_decay
    )


class Trainer:
    """A run in progress: everything a checkpoint holds, and the loop over it.

    Args:
        folder: Where checkpoint and log live.
        watch: Called after every step and every epoch, on the first process.
    """

    def __init__(
        self, config: TrainConfig, data: TrainingData, fabric: Fabric, folder: Path, watch: Watcher | None = None
    ) -> None:
        self.config, self.data, self.fabric, self.watch = config, data, fabric, watch
        self.checkpoint, self.log = folder / "checkpoint.pt", folder / "log.jsonl"
        fabric.seed_everything(config.seed, verbose=False)
        channels_last = config.channels_last and len(data.in_shape) == 3
        model = build_model(
            config.model.name, data.num_classes, data.in_shape, config.model.head, pretrained=config.model.pretrained
        )
        tap = FeatureTap(model.to(memory_format=torch.channels_last) if channels_last else model)
        criterion = build_criterion(config, data)
        optimizer = build_optimizer(config.optim, tap, criterion)
        self.model, self.optimizer = fabric.setup(tap, optimizer)
        learns = any(p.requires_grad for p in criterion.parameters())
        self.criterion: Any = fabric.setup_module(criterion) if learns else fabric.to_device(criterion)
        torch.manual_seed(mixed_seed(config.seed, fabric.global_rank, 2))  # dropout differs between processes

        self.normalise = Normalise(data.mean, data.std, channels_last=channels_last)
        self.batches = Batches(
            data.train.to(fabric.device),
            batch=config.batch,
            order=shuffled(len(data.train), config.seed),
            normalise=self.normalise,
            policies=policies(data.augment, data.mean),
            seed=config.seed,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )
        self.steps_per_epoch = self.batches.steps()
        if self.steps_per_epoch == 0:
            raise InputError(f"{len(data.train)} training samples are too few for {fabric.world_size} processes")
        self.epoch, self.step = 0, 0
        self.meter = EpochMeter(data.num_classes, fabric.device)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train from the current position to the end."""
        while self.epoch < self.config.epochs:
            started = time.perf_counter()
            self._train_epoch()
            record = {"epoch": self.epoch, "lr": self._rate(self.epoch), **self.meter.record()}
            if self.data.val is not None:
                scores, _ = self.predict(self.data.val)
                add_groups(record, accuracy_by_class(scores, self.data.val.y.to(scores.device), self.data.num_classes))
            record["seconds"] = time.perf_counter() - started
            if self.fabric.is_global_zero:
                append_log(self.log, record)
            self.epoch, self.step = self.epoch + 1, 0
            self.meter = EpochMeter(self.data.num_classes, self.fabric.device)
            self.save()
            self._tell(record)

    def _train_epoch(self) -> None:
        self.model.train()
        self.criterion.train()
        if self.step == 0:
            self.criterion.start_epoch(self.epoch, self._training_pass)
        for batch in self.batches.epoch(self.epoch, self.step):
            self._update(batch)
            self.step += 1
            cadence = self.config.checkpoint_steps
            if cadence and self.step % cadence == 0 and self.step < self.steps_per_epoch:
                self.save()
            self._tell()
        self._require_finite()

    def _update(self, batch: Batch) -> None:
        """One optimiser step."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.epoch + self.step / self.steps_per_epoch)
        self.optimizer.zero_grad()
        self._gradients(batch)
        if self.config.optim.clip:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.config.optim.clip)
        self.optimizer.step()

    def _gradients(self, batch: Batch) -> None:
        """Gradient of the mean loss over the whole batch, whatever the number of processes and pieces."""
        pieces = list(_pieces(batch, self.config.optim.accumulate))
        for position, piece in enumerate(pieces):
            with self.fabric.no_backward_sync(self.model, enabled=position < len(pieces) - 1):
                self.criterion.observe(piece.x)
                logits, features = self.model(piece.x)
                loss = self.criterion(logits, piece.y, features=features, index=piece.index, epoch=self.epoch)
                # Processes' gradients are averaged, so each counts by its share of the samples times their number.
                self.fabric.backward(loss * (len(piece.y) * self.fabric.world_size / batch.total))
            self.meter.add(logits, features, piece.y, {"loss": loss, **self.criterion.last})

    def _rate(self, position: float) -> float:
        return self.config.optim.lr * rate_factor(self.config.schedule, position, self.config.epochs)

    def _training_pass(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Training set in evaluation mode, for losses that look at all of it before an epoch."""
        logits, features = forward_all(self.fabric, self.model, self.batches.split, self.normalise)
        index = torch.arange(len(logits), device=logits.device)
        for rows in torch.split(index, self.config.batch):
            yield logits[rows], self.batches.split.y[rows], features[rows], rows

    # --- results ----------------------------------------------------------------------------------------------------

    def predict(self, split: Split) -> tuple[Tensor, Tensor]:
        """Scores classes are ranked by, and features."""
        logits, features = forward_all(self.fabric, self.model, split.to(self.fabric.device), self.normalise)
        return self.criterion.scores(logits, features), features

    def predictions(self, split: Split) -> Predictions:
        """The same with everything an audit wants to know."""
        scores, features = self.predict(split)
        head: Any = self.model.head
        bias = getattr(head, "bias", None)
        return Predictions(
            y_true=split.y.cpu().numpy(),
            scores=scores.cpu().numpy(),
            features=features.cpu().numpy(),
            weight=head.weight.detach().float().cpu().numpy(),
            bias=None if bias is None else bias.detach().float().cpu().numpy(),
            class_names=self.data.class_names,
            train_counts=self.data.class_counts.numpy(),
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
        save_checkpoint(self.fabric, self.checkpoint, state)

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return
        saved = read_checkpoint(self.checkpoint)
        if saved["split_hash"] != self.data.split_hash:
            raise InputError(
                f"checkpoint {self.checkpoint} was made on other data (split {saved['split_hash']}, now "
                f"{self.data.split_hash}); restore the data file, or start over in another folder"
            )
        if len(saved["rng"]) != self.fabric.world_size:
            raise InputError(
                f"checkpoint {self.checkpoint} was made by {len(saved['rng'])} processes, now there are "
                f"{self.fabric.world_size}; resume with --devices {len(saved['rng'])}"
            )
        modules = {"model": self.model, "optimizer": self.optimizer, "criterion": self.criterion}
        self.fabric.load(self.checkpoint, modules, weights_only=True)
        self.fabric.strategy.precision.load_state_dict(saved["scaler"])
        self.epoch, self.step = saved["position"]["epoch"], saved["position"]["step"]
        self.meter.load_state_dict(saved["meter"])
        if self.fabric.is_global_zero:
            cut_log(self.log, self.epoch)
        restore_rng(self.fabric, saved["rng"])
        self._tell()

    def _require_finite(self) -> None:
        if not self.meter.finite:
            raise DivergedError(
                f"the loss is not finite in epoch {self.epoch + 1}: lower optim.lr or the weights of the method's terms, or "
                f"set optim.clip; the last good checkpoint is {self.checkpoint}"
            )

    def _tell(self, record: dict[str, Any] | None = None) -> None:
        if self.watch is not None and self.fabric.is_global_zero:
            done = self.epoch * self.steps_per_epoch + self.step
            total = self.config.epochs * self.steps_per_epoch
            self.watch(Progress(done, total, self.epoch, self.config.epochs, record))


def _pieces(batch: Batch, count: int) -> Iterator[Batch]:
    """A batch in ``count`` nearly equal pieces, for gradient accumulation."""
    count = min(count, len(batch.y))
    parts = (t.tensor_split(count) for t in (batch.x, batch.y, batch.index))
    for x, y, index in zip(*parts, strict=True):
        yield Batch(x, y, index, batch.total)
