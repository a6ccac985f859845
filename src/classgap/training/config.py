"""What a run is: frozen dataclasses with strict overrides and a JSON round trip. Loads no torch, so mistakes show at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from classgap.checks import InputError, did_you_mean, one_of, plain_value, reading, shown
from classgap.training.average_config import AverageConfig
from classgap.training.setting_limits import check_limits
from classgap.training.setting_types import hints, typed

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"]


@dataclass(frozen=True)
class DataConfig:
    """Which samples; see :func:`classgap.data.load_data`."""

    name: str = "digits"
    per_class: int | None = None
    profile: Literal["balanced", "exponential", "step"] = "balanced"
    imbalance: float = 1.0
    val_fraction: float = 0.1
    augment: tuple[str, ...] | None = None
    view_augment: tuple[str, ...] | None = None
    seed: int = 0
    size: int | None = None
    resize: int | None = None
    root: str | None = None
    test_fraction: float = 0.2
    skip_corrupt: bool = False
    crop_scale: float = 0.08
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    partial: bool = False
    spare: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """Which network; see :func:`classgap.models.build_model`.

    ``model.head.alpha=3`` sets a parameter of the head, as of :class:`classgap.models.CausalNormHead`.

    Attributes:
        head: ``auto`` is the head the method works on: cosine for those that need cosines (``classgap methods``), else linear.
        head_scale: What a cosine head multiplies its cosines by: ``learned`` (CLIP's ``logit_scale``, starts at 1 / 0.07, at most
            100, not decayed) or a number. Without it, learned; methods that work on cosines have a scale of their own
            and get raw cosines.
        pretrained: ``true`` for the usual published weights of the network, a tag of its library for others, or the path of a
            file of weights; see :func:`classgap.models.build_model`.
        zero_shot: The head of a CLIP network starts at the text features of the class names: ``imagenet`` for the 80 sentences of
            the authors, or one sentence with ``{}`` in the place of the name. ``none`` starts at random.
        frozen: Train the head alone; the backbone keeps its weights and the statistics of its normalisation layers.
        freeze_norms: Batch normalisation uses the running statistics it starts with, in training too, and keeps them: for
            fine-tuning with few steps or small batches.
        wise: Share of the trained weights in the final network, the rest are those it started from (WiSE-FT); 1 for the trained
            network. A head that started at random is taken as trained.
        tokens: Longest text, in tokens of the network; longer ones are cut.
    """

    name: str = "mlp"
    head: Literal["auto", "linear", "cosine", "causal"] = "auto"
    head_params: Mapping[str, Any] = field(default_factory=dict)
    head_scale: float | Literal["learned"] | None = None
    pretrained: bool | str = False
    zero_shot: str = "a photo of a {}."
    frozen: bool = False
    freeze_norms: bool = False
    wise: float = 1.0
    tokens: int = 128


@dataclass(frozen=True)
class MethodConfig:
    """Which loss, by its registered name, and its parameters where they differ from the defaults.

    The parameter ``class_counts`` says whether a loss gets the number of training samples of each class: ``train``, ``none``, or
    a list of numbers. Without it a loss that needs them gets them, and a loss with a form for long tails (``mr2``) gets them
    where the largest class has more than twice the samples of the smallest.
    """

    name: str = "cross_entropy"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartConfig:
    """A part that a run may have, by its registered name, and its parameters where they differ from the defaults."""

    name: str = "none"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimConfig:
    """Optimiser.

    Attributes:
        momentum, nesterov: Of SGD.
        betas: Of AdamW.
        decay_norms: ``false`` takes weight decay off normalisation layers, biases and all other vectors, and off what the network
            itself lists (``no_weight_decay`` of timm: position embeddings, class tokens).
        layer_decay: Factor of the learning rate from each layer to the one before it; the head has the full rate.
        clip: Bound of the gradient norm, 0 for none.
        accumulate: Pieces that a batch is cut into.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    weight_decay: float = 5e-4
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    decay_norms: bool = True
    layer_decay: float = 1.0
    clip: float = 0.0
    accumulate: int = 1


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over time, after a warm-up of linear growth from ``warmup_start`` times the full rate.

    The warm-up is ``warmup`` epochs or ``warmup_steps`` optimiser steps long.

    ``cosine`` falls to ``floor`` times the full rate, ``step`` multiplies by ``gamma`` at every milestone epoch.
    """

    name: Literal["cosine", "step", "constant"] = "cosine"
    warmup: float = 0.0
    warmup_steps: int = 0
    warmup_start: float = 0.0
    floor: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1


@dataclass(frozen=True)
class PredictConfig:
    """How the finished network predicts.

    Attributes:
        augment: Test-time augmentation of images: ``flip`` (also mirrored) and ``crop`` (also shifted); scores and features are
            means over the views. The plain run is in the folder ``stage1``, with its own predictions.
    """

    augment: tuple[str, ...] = ()

    def check(self, setting: str) -> None:
        """Raise where a view is unknown, or comes twice."""
        for name in self.augment:
            one_of(setting, name, ("flip", "crop"))
        if len(set(self.augment)) < len(self.augment):
            raise InputError(f"{setting} must name each kind of view once, got {','.join(self.augment)}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        batch: Samples per optimiser step, over all devices.
        channels_last: Memory layout of images; faster for convolutions on most hardware.
        checkpoint_steps: Save in mid-epoch every so many steps, besides at the end of each epoch; 0 for only there.
        sampler: Which samples an epoch visits; by default every sample once.
        wrapper: Wrapper of the optimiser, e.g. ``sam``.
        average: Average of the weights that the results are made with, ``ema`` or ``swa``.
        predict: Test-time augmentation of the predictions.
        stage: Stages before or after the main training, e.g. ``jtt`` or ``crt``.
        teacher: Folder of a finished run, for methods that learn from one; without it a teacher is trained first.
    Example:
        >>> config = TrainConfig().override(["method=mr2", "method.lam=0.1", "data.per_class=20", "epochs=3"])
        >>> config.method, config.data.per_class, config.epochs
        (MethodConfig(name='mr2', params={'lam': 0.1}), 20, 3)
        >>> TrainConfig.from_dict(config.to_dict()) == config
        True
    """

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    sampler: PartConfig = PartConfig()
    mix: PartConfig = PartConfig()
    wrapper: PartConfig = PartConfig()
    average: AverageConfig = field(default_factory=AverageConfig)
    predict: PredictConfig = PredictConfig()
    stage: PartConfig = PartConfig()
    teacher: str | None = None
    epochs: int = 30
    batch: int = 128
    precision: Precision = "32-true"
    channels_last: bool = True
    checkpoint_steps: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for setting, plain in typed(self).items():
            object.__setattr__(self, setting, plain)
        check_limits(self)

    def override(self, assignments: Sequence[str]) -> TrainConfig:
        """A copy with ``key=value`` texts applied, e.g. ``optim.lr=0.05``.

        ``method=mr2`` is short for ``method.name=mr2`` (so for every section), and ``method.lam=0.1`` sets a parameter of
        the method. Another name drops the parameters that were set for the one before; it need not stand before its own.
        """
        if isinstance(assignments, (str, Mapping)) or not all(isinstance(text, str) for text in assignments):
            raise InputError(f"settings must be a list of texts such as ['optim.lr=0.05'], got {shown(assignments)}")
        tree = _tree(self)
        for key, text in _names_first([_split(assignment) for assignment in assignments]):
            _assign(tree, key, text)
        return TrainConfig.from_dict(tree)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; parts that the run does not have are left out."""
        tree, usual = _tree(self), _tree(TrainConfig())
        for section, names in _IF_CHANGED.items():
            for name in names:
                if tree[section][name] == usual[section][name]:
                    del tree[section][name]
        unset = {name for name, value in usual.items() if name in _PARTS and tree[name] == value}
        return {name: value for name, value in tree.items() if name not in unset}

    @staticmethod
    def from_dict(tree: Mapping[str, Any]) -> TrainConfig:
        """The inverse of :meth:`to_dict`; unknown keys are errors."""
        config: TrainConfig = _build(TrainConfig, tree, "")
        return config

    def differences(self, other: TrainConfig) -> list[str]:
        """``key: mine → theirs`` for every setting that differs."""
        mine, theirs = _flat(self.to_dict()), _flat(other.to_dict())
        return [f"{k}: {mine.get(k)} → {theirs.get(k)}" for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)]

    @property
    def parts(self) -> list[str]:
        """Names of the parts that the run has besides data, network and method."""
        chosen = (self.stage, self.wrapper, self.average, self.sampler, self.mix)
        views = [f"tta_{'_'.join(self.predict.augment)}"] if self.predict.augment else []
        return [*(part.name for part in chosen if part.name != "none"), *views]

    @property
    def slug(self) -> str:
        """A folder name that says what the run is and differs when any setting does."""
        digest = hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:6]
        data = self.data.name.rstrip("/").rpartition("/")[2].removesuffix(".npz")
        name = "-".join([data, self.model.name, self.method.name, *self.parts, f"seed{self.seed}", digest])
        return re.sub(r"[^\w.,=+-]", "_", name)


def read_run(folder: Path) -> TrainConfig | None:
    """The configuration of the run in ``folder``, if there is one."""
    path = folder / "run.json"
    if not path.exists():
        return None
    with reading(path, "the description of a run"):
        return TrainConfig.from_dict(json.loads(path.read_text(encoding="utf-8"))["config"])


# Written only where they differ from the defaults, so that a setting of a later version does not rename the runs of earlier ones.
_IF_CHANGED = {
    "data": (
        "size",
        "resize",
        "root",
        "test_fraction",
        "skip_corrupt",
        "crop_scale",
        "interpolation",
        "partial",
        "view_augment",
        "spare",
    ),
    "model": ("head_params", "head_scale", "zero_shot", "frozen", "freeze_norms", "wise", "tokens"),
    "optim": ("betas", "decay_norms", "layer_decay"),
    "schedule": ("warmup_steps",),
}
_PARTS = ("sampler", "mix", "wrapper", "average", "predict", "stage", "teacher")


def _tree(config: TrainConfig) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return tree


def _build(cls: Any, tree: Any, prefix: str) -> Any:
    inner = hints(cls)
    if not isinstance(tree, Mapping):
        what = prefix.rstrip(".") or "the configuration"
        example = {next(iter(inner)): tree} if isinstance(tree, str) else {next(iter(inner)): "…"}
        raise InputError(f"{what} must be a dictionary of settings such as {example}, got {shown(tree)}")
    for key in tree:
        if key not in inner:
            raise InputError(did_you_mean(f"{prefix}{key}", [prefix + name for name in inner], what="setting"))
    sections = {key: _build(inner[key], tree[key], f"{prefix}{key}.") for key in tree if is_dataclass(inner[key])}
    return cls(**{**tree, **sections})


def _split(assignment: str) -> tuple[str, str]:
    key, equals, text = assignment.partition("=")
    if not equals:
        raise InputError(f"--set wants key=value, got {assignment!r}; e.g. --set optim.lr=0.05")
    if not text.strip():
        raise InputError(f"--set {key}= has no value; is a variable not set? Write {key}=none for nothing")
    return key.strip(), text.strip()


def _names_first(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first name of each section before everything else, so that a name does not drop the parameters given with it."""
    first: dict[str, int] = {}
    for place, (key, _) in enumerate(pairs):
        if "." not in key or key.endswith(".name") or key == "model.head":
            first.setdefault(key.removesuffix(".name"), place)
    places = {**dict.fromkeys(first.values()), **dict.fromkeys(range(len(pairs)))}
    return [pairs[place] for place in places]


def _assign(tree: dict[str, Any], key: str, text: str) -> None:
    sections = hints(TrainConfig)
    section, dot, rest = key.partition(".")
    if section not in sections:
        raise InputError(did_you_mean(key, _settings(), what="setting"))
    cls = sections[section]
    if not is_dataclass(cls):
        if dot:
            raise InputError(f"{section} has no parts: write {section}={text}")
        tree[section] = _parse(section, cls, text)
        return
    rest = rest or "name"
    inner = hints(cls)  # type: ignore[arg-type]
    if "params" in inner and rest != "name":
        tree[section]["params"][rest.removeprefix("params.")] = plain_value(text)
    elif f"{rest.partition('.')[0]}_params" in inner and "." in rest:
        part, _, parameter = rest.partition(".")
        tree[section][f"{part}_params"][parameter] = plain_value(text)
    elif rest not in inner or rest.endswith("_params"):
        raise InputError(did_you_mean(key, _settings(), what="setting"))
    else:
        if "params" in inner and text != tree[section]["name"]:
            tree[section]["params"] = {}  # parameters of another method mean nothing here
        if f"{rest}_params" in inner and text != tree[section][rest]:
            tree[section][f"{rest}_params"] = {}  # nor do those of another head
        if section == "average" and rest == "name" and text != tree[section]["name"]:
            tree[section] = dataclasses.asdict(AverageConfig())  # nor do settings of another average
        tree[section][rest] = _parse(f"{section}.{rest}", inner[rest], text)


def _settings() -> list[str]:
    known = [name for name in _flat(_tree(TrainConfig())) if not name.endswith("params")]
    return [*known, *(name for name, hint in hints(TrainConfig).items() if is_dataclass(hint))]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _parse(key: str, hint: Any, text: str) -> Any:
    """``text`` as the type of the setting."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text.lower() in ("none", "null", "default"):
            # "none" means no augmentation at all, "default" the usual one of the source.
            return () if key in ("data.augment", "data.view_augment") and text.lower() == "none" else None
        if args == (bool, str):
            return text if text.lower() not in ("true", "false") else text.lower() == "true"
        words = [word for arg in args for word in typing.get_args(arg) if typing.get_origin(arg) is Literal]
        if not words:
            return _parse(key, args[0], text)
        try:
            return text if text in words else _parse(key, args[0], text)
        except InputError as error:
            raise InputError(f"{key} must be {', '.join(words)} or a number, got {text!r}") from error
    if origin is Literal:
        return one_of(key, text, args)
    if origin is tuple:
        parts = [part.strip() for part in text.strip("()[]").split(",") if part.strip()]
        return () if parts == ["none"] else tuple(_parse(key, args[0], part) for part in parts)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{key} must be true or false, got {text!r}")
        return text.lower() == "true"
    try:
        return hint(text)
    except ValueError as error:
        wanted = "a whole number" if hint is int else "a number"
        raise InputError(f"{key} must be {wanted}, got {shown(text)}") from error
