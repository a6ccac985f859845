"""From a configuration to the parts of a run. What is built depends on the needs that a method declares, not on its name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classgap import registry
from classgap.checks import InputError
from classgap.data import ConfusedMix, Mix, TrainingData, shuffled
from classgap.heads import FeatureTap, HeadScale, find_head
from classgap.losses import ClassLoss
from classgap.models import Built, Experts, open_model, pixels_of, put_head
from classgap.models.clip import ClipClassifier
from classgap.samplers import EpochSampler
from classgap.training.config import ModelConfig, OptimConfig, PartConfig, TrainConfig
from classgap.training.counts import CountsChoice, choose_counts
from classgap.training.groups import parameter_groups


@dataclass(frozen=True, eq=False)
class Network:
    """A model that returns ``(logits, features)``, and the loss it is built for.

    Attributes:
        head: ``"linear"``, ``"cosine"`` or ``"causal"``, as it was resolved.
        head_scale: What a cosine head multiplies its cosines by; ``None`` for raw cosines, and for other heads.
        experts: Number of networks side by side; 0 for a plain one.
        counts: Whether the loss has the class counts, and why.
        head_is_new: Whether the head is new, not part of the weights that were loaded.
        about_weights: What there is to say about pretrained weights.
    """

    model: nn.Module
    criterion: ClassLoss
    head: str
    head_scale: HeadScale | None
    experts: int
    counts: CountsChoice
    head_is_new: bool = True
    about_weights: tuple[str, ...] = ()

    @property
    def views(self) -> int:
        """Views of each sample that the loss needs."""
        return self.criterion.views

    @property
    def chosen(self) -> dict[str, Any]:
        """What the configuration left open and how it was decided, for ``run.json``."""
        scale = {"head_scale": self.head_scale or "that of the loss"} if self.head == "cosine" else {}
        return {"head": self.head, **scale, "class_counts": self.counts.to_dict()}

    @property
    def notes(self) -> list[str]:
        """The same in sentences, as far as the user should know at the start."""
        return [*self.about_weights, *([self.counts.note] if self.counts.note else [])]


def declared_loss(config: TrainConfig) -> registry.Method:
    """The declaration of the method. The name of a stage, sampler, … is an error that names the right setting."""
    name = config.method.name
    sections: dict[registry.Kind, str] = {
        "stage": "stage",
        "sampler": "sampler",
        "optimizer": "wrapper",
        "mix": "mix",
        "augmentation": "data.augment",
    }
    try:
        return registry.get("loss", name)
    except InputError:  # only now: listing all methods reads what every installed package offers
        for kind, section in sections.items():
            if name in {m.name for m in registry.methods(kind)}:
                raise InputError(
                    f"method={name}: {name} is used together with any method; set {section}={name}"
                ) from None
        raise


def declared_needs(config: TrainConfig) -> frozenset[str]:
    """What the method needs, and what the loss inside it (``method.base``) needs."""
    spec, params = declared_loss(config), config.method.params
    needs: frozenset[str] = spec.needs
    while isinstance(base := params.get("base", spec.defaults.get("base")), str):
        spec, params = registry.get("loss", base), params.get("base_params") or {}
        needs |= spec.needs
    return needs


def build_network(config: TrainConfig, data: TrainingData, *, teacher: nn.Module | None = None) -> Network:
    """Model and loss, each with what the other asks for."""
    built = _plain_model(config, data)
    first = built.model
    width = _width(find_head(first)[1])
    spec = declared_loss(config)
    offered = {}
    if teacher is not None and "teacher_features" in inspect.signature(spec.cls).parameters:
        offered["teacher_features"] = _width(find_head(teacher)[1])
    counts = choose_counts(spec, config.method.params, data)
    criterion = build_criterion(config, data, counts, num_features=width, **offered)
    head = _head(config, criterion, first)
    scale = _head_scale(config, criterion, head)
    experts = criterion.experts if "experts" in criterion.needs else 0
    members = [first, *(_plain_model(config, data).model for _ in range(experts - 1))]
    for member in members:
        put_head(member, head, config.model.head_params, scale=scale)
    taps = [FeatureTap(member, unit="encoder_features" not in criterion.needs) for member in members]
    if "head" in criterion.needs:
        criterion.bind_head(taps[0].head)  # type: ignore[operator]
    new = built.head_is_new or (head != "linear" and not isinstance(first, ClipClassifier))
    notes = (*built.notes, *_about_frozen(config, first))
    return Network(Experts(taps) if experts else taps[0], criterion, head, scale, experts, counts, new, notes)


def _about_frozen(config: TrainConfig, model: nn.Module) -> Iterator[str]:
    if config.model.frozen and not config.model.pretrained and config.model.name != "linear":
        yield "the frozen backbone has random weights; model.pretrained=true or model.pretrained=FILE loads others"
    if config.model.freeze_norms and not any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()
    ):
        yield "model.freeze_norms has no effect: the network has no batch normalisation"


def build_criterion(config: TrainConfig, data: TrainingData, counts: CountsChoice, **offered: Any) -> ClassLoss:
    """The loss a configuration names, for these data; of what is ``offered`` it gets what its constructor takes."""
    spec = declared_loss(config)
    offered |= {"num_classes": data.num_classes, "class_counts": counts.counts, "epochs": config.epochs}
    params = {name: value for name, value in config.method.params.items() if name != "class_counts"}
    if "num_classes" in params:
        raise InputError("method.num_classes cannot be set: it is the number of classes of the data; leave it out")
    if "ignore_index" in params:
        raise InputError("method.ignore_index cannot be set: every sample of a data set has a class; leave it out")
    criterion: ClassLoss = spec.build(**arguments(spec, offered, params))
    if criterion.reduction != "mean":
        raise InputError(f"method.reduction must be mean for training, got {criterion.reduction}; leave it out")
    criterion.ignore_index = None  # a data set has a class for every sample; labels need not be read on an accelerator
    return criterion


def build_order(config: TrainConfig, data: TrainingData) -> EpochSampler:
    """Which samples each epoch visits."""
    if config.sampler.name == "none":
        return shuffled(len(data.train), config.seed)
    spec = registry.get("sampler", config.sampler.name)
    offered = {"labels": data.train.y, "epochs": config.epochs, "seed": config.seed}
    order: EpochSampler = spec.build(**arguments(spec, offered, config.sampler.params))
    if order.block not in (1, config.batch):
        raise InputError(f"sampler {spec.name} makes batches of {order.block} samples; set batch={order.block}")
    return order


def build_mix(config: PartConfig, data: TrainingData) -> Mix | None:
    """How the samples of a batch are mixed, if they are."""
    if config.name == "none":
        return None
    spec = registry.get("mix", config.name)
    follows = "confusion" in inspect.signature(spec.cls).parameters
    if "confusion" in config.params:
        raise InputError("mix.confusion cannot be set: it is measured on the validation set; leave it out")
    if follows and data.val is None:
        raise InputError(
            f"mix={config.name} measures confusions on the validation set; set data.val_fraction above 0, or mix=mixup"
        )

    def mix(inputs: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        mixed: tuple[Tensor, Tensor] = spec.cls(inputs, target, data.num_classes, rng, **config.params)
        return mixed

    # A trial call: wrong parameters, or data of the wrong kind, are errors before training starts.
    trial = {"inputs": torch.zeros(2, *data.in_shape), "target": torch.zeros(2, dtype=torch.long)}
    spec.build(**trial, num_classes=data.num_classes, rng=np.random.default_rng(0), **config.params)
    return ConfusedMix(spec.cls, data.num_classes, config.params) if follows else mix


def build_optimizer(
    config: OptimConfig, wrapper: PartConfig, model: nn.Module, criterion: nn.Module, *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """SGD or AdamW over the model, with its wrapper; see :func:`~classgap.training.groups.parameter_groups`.

    Args:
        fused: Whether one operation updates all parameters, which takes a fifth of the time on a CPU; None for torch's choice.
    """
    groups = parameter_groups(config, model, criterion)
    shared: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": fused}
    if config.name == "adamw":
        base: torch.optim.Optimizer = torch.optim.AdamW(groups, betas=config.betas, **shared)
    else:
        base = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **shared)
    if wrapper.name == "none":
        return base
    wrapped: torch.optim.Optimizer = registry.get("optimizer", wrapper.name).build(base=base, **wrapper.params)
    return wrapped


def for_network(config: ModelConfig, data: TrainingData) -> TrainingData:
    """The data as the network wants them: a pretrained one has channel statistics of its own."""
    pixels = pixels_of(config.name) if config.pretrained and len(data.in_shape) == 3 else None
    if pixels is None or len(pixels[0]) != data.in_shape[0]:
        return data
    return dataclasses.replace(data, mean=pixels[0], std=pixels[1])


def _plain_model(config: TrainConfig, data: TrainingData) -> Built:
    model = config.model
    names = data.class_names
    built = open_model(
        model.name, len(names), data.in_shape, model.pretrained, class_names=names, zero_shot=model.zero_shot
    )
    if config.channels_last and len(data.in_shape) == 3:
        built.model.to(memory_format=torch.channels_last)
    return built


def _width(head: nn.Module) -> int:
    assert isinstance(head.in_features, int)
    return head.in_features


def _head(config: TrainConfig, criterion: ClassLoss, model: nn.Module) -> str:
    needed = "cosine_head" in criterion.needs
    wanted = "cosine" if needed or isinstance(model, ClipClassifier) else "linear"
    if config.model.head in ("linear", "causal") and needed:
        raise InputError(f"method {criterion.name} works on cosines; set model.head=cosine, or leave it at auto")
    return wanted if config.model.head == "auto" else config.model.head


def _head_scale(config: TrainConfig, criterion: ClassLoss, head: str) -> HeadScale | None:
    """The scale of a cosine head. A loss that needs cosines has its own scale; for others it is learned unless it is given."""
    given = config.model.head_scale
    if head != "cosine":
        if given is not None:
            raise InputError(
                f"model.head_scale={given} is the scale of a cosine head, but the head is {head}; set model.head=cosine, or "
                "leave model.head_scale out"
            )
        return None
    if "cosine_head" in criterion.needs:
        if given is not None:
            raise InputError(
                f"model.head_scale={given}: method {criterion.name} multiplies cosines by a scale of its own "
                f"({criterion.cosine_scale:g}), a second one would act on top of it; leave model.head_scale out and set the "
                f"parameter of the method (see classgap methods {criterion.name})"
            )
        return None
    return "learned" if given is None else given


def arguments(spec: registry.Method, offered: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that the constructor takes, and the parameters of the user; ``None`` there means the offered one."""
    taken = inspect.signature(spec.cls).parameters
    given = {name: value for name, value in params.items() if value is not None or name not in offered}
    return {**{name: value for name, value in offered.items() if name in taken}, **given}
