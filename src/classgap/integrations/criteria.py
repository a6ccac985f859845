"""What every trainer has to do for a loss: refuse what it cannot supply, read features, save state, share gradients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from classgap import __version__
from classgap.batchstats import is_distributed
from classgap.batchstats.collectives import all_reduce_sum, rank_and_world
from classgap.checks import InputError, reading
from classgap.heads import FeatureTap
from classgap.losses import ClassLoss
from classgap.losses.wrapper import WrapperLoss
from classgap.writing import replacing_entries, write

SUPPLIED = frozenset({"features", "encoder_features", "class_counts", "cosine_head"})
STATE, CONFIG = "classgap_loss.safetensors", "classgap_loss.json"


def check_criterion(criterion: Any, tool: str) -> None:
    """Refuse what is not a loss of classgap, and a loss that needs more than logits, labels and features from its trainer."""
    if not isinstance(criterion, ClassLoss):
        raise InputError(f"criterion must be a loss of classgap.losses, got {type(criterion).__name__}")
    if criterion.reduction != "mean":
        raise InputError(f"criterion must have reduction='mean' for {tool}, got {criterion.reduction!r}")
    missing = sorted(criterion.needs - SUPPLIED)
    parts = [m for m in criterion.modules() if isinstance(m, ClassLoss)]
    for hook in ("start_epoch", "observe"):
        nothing = (getattr(ClassLoss, hook), getattr(WrapperLoss, hook))  # a wrapper only passes the call on
        if any(getattr(type(part), hook) not in nothing for part in parts):
            missing.append({"start_epoch": "a pass over the training set per epoch", "observe": "the inputs"}[hook])
    if missing:
        raise InputError(
            f"{criterion.name} needs {', '.join(missing)}, which {tool} does not supply; use classgap.train or your own loop"
        )


def check_ranking(criterion: ClassLoss, tool: str) -> None:
    """Refuse a loss with a ranking of its own where the tool measures the output of the model, perhaps of an untrained head."""
    if not criterion.ranks_by_output:
        raise InputError(
            f"{criterion.name} ranks classes by criterion.scores(logits, features), not by the output of the model, which {tool} "
            "measures and saves; use classgap.train, Hugging Face's Trainer, Lightning, skorch or your own loop"
        )


def tap(criterion: ClassLoss, model: nn.Module, layer: str | None = None) -> FeatureTap | None:
    """A tap on the head of ``model`` if the loss needs features."""
    if "features" not in criterion.needs:
        return None
    return FeatureTap(model, layer, unit="encoder_features" not in criterion.needs)


def check_smoothing(criterion: ClassLoss, share: float, argument: str) -> None:
    """Smoothing gives probabilities as target, which some losses cannot take, and must be asked for once."""
    if share and criterion.label_smoothing:
        raise InputError(f"the criterion has label_smoothing={criterion.label_smoothing:g} already; set {argument}=0")
    declared = getattr(type(criterion), "method", None)
    if share and declared is not None and not declared.soft_targets:
        raise InputError(f"{criterion.name} needs hard labels, got {argument}={share:g}; set {argument}=0")


def share_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of these parameters over ranks, as DistributedDataParallel does for those of the model."""
    if is_distributed():
        for parameter in parameters:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = all_reduce_sum(grad)[0] / rank_and_world()[1]


def save_criterion(criterion: ClassLoss, folder: str | Path) -> None:
    """Write the state of the loss and its settings beside the weights of the model."""
    state = {key: value.detach().cpu().clone().contiguous() for key, value in criterion.state_dict().items()}
    with replacing_entries(folder, (STATE, CONFIG)) as temporary:
        write(temporary / STATE, save(state))
        write(temporary / CONFIG, json.dumps(settings(criterion), indent=2) + "\n")


def load_criterion(criterion: ClassLoss, folder: str | Path) -> None:
    """Read back what :func:`save_criterion` wrote; another loss, or a folder without one, is an error."""
    source = Path(folder)
    if not (source / STATE).is_file():
        if not criterion.state_dict():
            return
        raise InputError(
            f"{source} has no {STATE}, so the state of {criterion.name} cannot be restored; it was saved without classgap: start "
            "a new run from its weights instead of resuming"
        )
    with reading(source / CONFIG, "the settings of a loss"):
        saved = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        name, count = saved["loss"], saved["num_classes"]
    check_same_loss(criterion, name, count, str(source))
    with reading(source / STATE, "the state of this loss"):
        criterion.load_state_dict(load_file(source / STATE))


def check_same_loss(criterion: ClassLoss, name: str, num_classes: int, source: str) -> None:
    """Refuse the state of another loss, whose buffers may have the same names."""
    if (name, num_classes) != (criterion.name, criterion.num_classes):
        raise InputError(
            f"{source} holds the state of {name} for {num_classes} classes, but the criterion is {criterion.name} for "
            f"{criterion.num_classes}; resume with the loss of that run"
        )


def settings(criterion: ClassLoss) -> dict[str, Any]:
    """The loss in plain data: name, number of classes, and every parameter that is a number, a word or None."""
    declared = getattr(type(criterion), "method", None)
    found = {name: getattr(criterion, name, None) for name in (declared.defaults if declared is not None else ())}
    plain = {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}
    return {
        "classgap_version": __version__,
        "loss": criterion.name,
        "num_classes": criterion.num_classes,
        "parameters": plain,
    }
