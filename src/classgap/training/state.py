"""The state of a training run: built from a configuration, written to a checkpoint, continued from it, and read as results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.precision import Precision
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from numpy.typing import NDArray
from torch import Tensor, nn

import classgap
from classgap.batchstats.divided import whole
from classgap.checks import InputError
from classgap.data import (
    Batches,
    ConfusedMix,
    Normalise,
    Split,
    TrainingData,
    mixed_seed,
    policies,
    require_images,
)
from classgap.heads import FeatureTap
from classgap.training.averaging import WeightAverage
from classgap.training.build import Network, build_mix, build_network, build_optimizer, build_order
from classgap.training.checkpoint import (
    check_groups,
    check_made_with,
    check_optimizer,
    check_position,
    check_rng,
    check_types,
    fitting,
    read_checkpoint,
    rng_state,
    rng_unused,
    save_checkpoint,
    weights_mark,
)
from classgap.training.config import TrainConfig
from classgap.training.epoch import EpochMeter, cut_log
from classgap.training.outputs import (
    SplitOutputs,
    forward_all,
    last_layer,
    require_finite_scores,
    scores_and_features,
)
from classgap.training.processes import per_process_part, size_options
from classgap.training.progress import DivergedError, Watcher
from classgap.training.setting_limits import unused_settings
from classgap.training.sharding import check_origin, is_sharded, require_shardable, set_up

Array = NDArray[np.float32]
Trains = Literal["all", "body", "head"]


class RunState:
    """A run in progress: everything a checkpoint holds, and what is read from the trained network.

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
        self.before_training: Callable[[Any], None] | None = None
        fabric.seed_everything(config.seed, verbose=False)
        network = build(config, data, teacher=teacher)
        self.head, self.experts = network.head, network.experts
        self.chosen, self._notes = network.chosen, [*data.notes, *network.notes, *unused_settings(config)]
        _freeze_rest(network.model, self.trains)
        if is_sharded(fabric):
            require_shardable(config, network.model, network.criterion)
        make = partial(build_optimizer, config.optim, config.wrapper, network.model, network.criterion)
        if fabric.device.type == "cpu" and not is_sharded(fabric):
            make = partial(make, fused=True)
        self.model, self.optimizer = set_up(fabric, network.model, make)
        learns = any(p.requires_grad for p in network.criterion.parameters())
        self.criterion: Any = (fabric.setup_module if learns else fabric.to_device)(network.criterion)
        # One that this run trains itself is known by its own folder.
        self._given_teacher = None if teacher is None else weights_mark(teacher)
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

    def _new_average(self) -> WeightAverage | None:
        if self.config.average.name == "none":
            return None
        return WeightAverage(self.config.average, {"model": self.model, "criterion": self.criterion})

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
        weight, bias = last_layer(self.model, self.head, self.experts, self.criterion)
        return None if weight is None else _array(weight), None if bias is None else _array(bias)

    def weights(self) -> dict[str, Tensor]:
        """What the file of the trained model holds; every process must call this."""
        return {name: whole(tensor).contiguous() for name, tensor in self.model.state_dict().items()}

    def predictions(self, split: Split) -> SplitOutputs:
        """Scores, features and the last layer, as an audit reads them."""
        scores, features = self.predict(split)
        require_finite_scores(
            scores, f"lower optim.lr or set optim.clip, and train again; {self.folder} has no results"
        )
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

    # --- checkpoint -------------------------------------------------------------------------------------------------

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
            "content": self.data.content,
            "version": classgap.__version__,
        }
        if self._given_teacher is not None:
            state["teacher"] = self._given_teacher
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
        check_made_with(self.checkpoint, saved, self.data, self._given_teacher)
        modules = {"model": self.model, "optimizer": self.optimizer, "criterion": self.criterion}
        with fitting(self.checkpoint):
            check_origin(self.checkpoint, saved["optimizer"], self.fabric)
            if not is_sharded(self.fabric):
                for part in ("model", "criterion"):
                    check_types(part, getattr(self, part).state_dict(), saved[part])
            groups = [dict(group) for group in self.optimizer.param_groups]
            self.fabric.load(self.checkpoint, modules, weights_only=True)
            check_groups(self.optimizer, groups)
            check_optimizer(self.optimizer)
            self.fabric.strategy.precision.load_state_dict(saved["scaler"])
            self.epoch, self.step = check_position(saved["position"], self.config.epochs)
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
