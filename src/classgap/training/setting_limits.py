"""Which values the settings of a run may have, and which settings a run would ignore. Loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classgap.checks import LARGEST_SEED, InputError, fraction, number, whole

if TYPE_CHECKING:
    from classgap.training.config import TrainConfig


def check_limits(config: TrainConfig) -> None:
    """Raise at the first value that no run could work with."""
    _check_numbers(config)
    _check_schedule(config)
    _check_parts(config)
    data, model, optim = config.data, config.model, config.optim
    for name in ("size", "resize"):
        if (pixels := getattr(data, name)) is not None:
            whole(f"data.{name}", pixels, low=1)
    if model.head_scale is not None and model.head_scale != "learned":
        number("model.head_scale (if it is not learned)", model.head_scale, low=0, open_low=True)
    if model.zero_shot not in ("none", "imagenet") and "{}" not in model.zero_shot:
        raise InputError(
            f"model.zero_shot must be none, imagenet or a sentence with {{}} for the class name, got {model.zero_shot!r}"
        )
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        raise InputError(f"optim.betas must be two numbers in [0, 1), e.g. 0.9,0.999, got {optim.betas}")
    if optim.nesterov and not optim.momentum:
        raise InputError("optim.nesterov=true needs optim.momentum above 0")


def unused_settings(config: TrainConfig) -> tuple[str, ...]:
    """A sentence for every setting that was changed and that this run does not use."""
    usual = type(config)()
    optim, schedule, augment = config.optim.name, config.schedule.name, config.data.augment or ()
    crops = "resized_crop" in (*augment, *(config.data.view_augment or ()))
    warms_up = config.schedule.warmup or config.schedule.warmup_steps
    used = (
        ("optim", "betas", optim == "adamw", "it belongs to optim=adamw"),
        ("optim", "momentum", optim == "sgd", "it belongs to optim=sgd"),
        ("optim", "nesterov", optim == "sgd", "it belongs to optim=sgd"),
        ("schedule", "milestones", schedule == "step", "it belongs to schedule=step"),
        ("schedule", "gamma", schedule == "step", "it belongs to schedule=step"),
        ("schedule", "floor", schedule == "cosine", "it belongs to schedule=cosine"),
        ("schedule", "warmup_start", warms_up, "there is no warm-up (schedule.warmup or schedule.warmup_steps)"),
        ("data", "crop_scale", crops, "it belongs to data.augment=resized_crop"),
    )
    changed = [
        f"{section}.{name} has no effect: {why}"
        for section, name, is_used, why in used
        if not is_used and getattr(getattr(config, section), name) != getattr(getattr(usual, section), name)
    ]
    if config.model.wise < 1 and not config.model.pretrained:
        changed.append(
            f"model.wise={config.model.wise:g} mixes the trained weights with random ones: no weights were loaded"
        )
    return tuple(changed)


def _check_numbers(config: TrainConfig) -> None:
    limits: tuple[tuple[str, float, float], ...] = (
        ("epochs", config.epochs, 1),
        ("batch", config.batch, 2),
        ("checkpoint_steps", config.checkpoint_steps, 0),
        ("optim.accumulate", config.optim.accumulate, 1),
        ("optim.weight_decay", config.optim.weight_decay, 0),
        ("optim.momentum", config.optim.momentum, 0),
        ("optim.clip", config.optim.clip, 0),
        ("schedule.warmup", config.schedule.warmup, 0),
        ("schedule.warmup_steps", config.schedule.warmup_steps, 0),
        ("model.tokens", config.model.tokens, 1),
        ("schedule.floor", config.schedule.floor, 0),
        ("schedule.gamma", config.schedule.gamma, 0),
    )
    for name, value, low in limits:
        number(name, value, low=low)
    whole("seed", config.seed, low=0, high=LARGEST_SEED)
    whole("data.spare", config.data.spare, low=0)
    whole("data.seed", config.data.seed, low=0, high=LARGEST_SEED)
    number("optim.lr", config.optim.lr, low=0, open_low=True)
    number("optim.layer_decay", config.optim.layer_decay, low=0, high=1, open_low=True)
    number("model.wise", config.model.wise, low=0, high=1)
    number("data.val_fraction", config.data.val_fraction, low=0, high=0.9)
    number("data.imbalance", config.data.imbalance, low=1)
    fraction("data.test_fraction", config.data.test_fraction)
    number("data.crop_scale", config.data.crop_scale, low=0, high=1, open_low=True)


def _check_schedule(config: TrainConfig) -> None:
    schedule = config.schedule
    if schedule.name == "step" and not schedule.milestones:
        raise InputError("schedule.name=step needs schedule.milestones, the epochs to cut at, e.g. 60,80")
    if list(schedule.milestones) != sorted(set(schedule.milestones)):
        raise InputError(f"schedule.milestones must be ascending epochs, got {','.join(map(str, schedule.milestones))}")
    if schedule.warmup >= config.epochs:
        raise InputError(f"schedule.warmup={schedule.warmup:g} must be less than epochs={config.epochs}")
    if schedule.warmup and schedule.warmup_steps:
        raise InputError("schedule.warmup (epochs) and schedule.warmup_steps exclude each other; set one of them")


def _check_parts(config: TrainConfig) -> None:
    config.average.check()
    config.predict.check("predict.augment")
    for name in ("sampler", "mix", "wrapper", "stage"):
        part = getattr(config, name)
        if part.name == "none" and part.params:
            first = next(iter(part.params))
            raise InputError(
                f"{name}.{first} is set, but the run has no {name}; name one (--set {name}=…, see classgap methods) or leave "
                f"{name}.{first} out"
            )
