"""What methods of several stages are made of: lengths and settings of later stages, weights that they start from, checks."""

from __future__ import annotations

import dataclasses

from torch import Tensor
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.training.build import declared_needs
from classgap.training.config import MethodConfig, PartConfig, ScheduleConfig, TrainConfig
from classgap.training.loop import Trainer


def with_epochs(config: TrainConfig, epochs: int) -> TrainConfig:
    """``config`` with another length, its schedule stretched to it."""
    share = epochs / config.epochs
    schedule = dataclasses.replace(
        config.schedule,
        warmup=config.schedule.warmup * share,
        warmup_steps=round(config.schedule.warmup_steps * share),
        milestones=tuple(max(1, round(epoch * share)) for epoch in config.schedule.milestones),
    )
    params = {**config.method.params, **({"epochs": epochs} if "epochs" in config.method.params else {})}
    method = MethodConfig(config.method.name, params)
    return dataclasses.replace(config, epochs=epochs, schedule=schedule, method=method)


def length_of(wanted: float, config: TrainConfig) -> int:
    """Epochs: a share of the run if at most 1, otherwise their number."""
    return max(1, round(wanted * config.epochs if wanted <= 1 else wanted))


def later_stage(config: TrainConfig, epochs: int, lr: float, sampler: str) -> TrainConfig:
    """A later stage: its own length and learning rate, falling along a cosine."""
    return dataclasses.replace(
        with_epochs(config, epochs),
        model=dataclasses.replace(config.model, wise=1.0),  # the weights it starts from are already a mean
        optim=dataclasses.replace(config.optim, lr=lr),
        schedule=ScheduleConfig(),
        sampler=PartConfig(sampler),
    )


def take_weights(trainer: Trainer, before: Trainer, *, head: bool = True) -> None:
    """Start from the network of the stage before, with or without its head."""
    if not trainer.fresh:
        return
    own = f"{before.model.layer}."
    weights = {name: tensor for name, tensor in before.model.state_dict().items() if head or not name.startswith(own)}
    trainer.model.load_state_dict({**trainer.model.state_dict(), **weights})


def log_outputs(trainer: Trainer, scores: Tensor, features: Tensor, y: Tensor, started: float) -> None:
    """End the only epoch of a stage that trains nothing: the log has loss and accuracy of these outputs for training samples."""
    mine = slice(trainer.fabric.global_rank, None, trainer.fabric.world_size)
    scores, y = scores[mine], y[mine]
    trainer.meter.add(scores, features[mine], y, {"loss": F.cross_entropy(scores, y)})
    trainer.end_epoch({"epoch": trainer.epoch, "lr": 0.0, **trainer.meter.record()}, started)


def require_one_network(config: TrainConfig, stage: str) -> None:
    if "experts" in declared_needs(config):
        raise InputError(f"stage {stage} works on one network, but method {config.method.name} trains several")


def require_linear_layer(config: TrainConfig, stage: str) -> None:
    if config.model.head == "causal":
        raise InputError(f"stage {stage} works on a linear layer, but model.head=causal is none; set model.head=auto")
