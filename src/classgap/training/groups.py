"""Parameter groups: which weights are decayed, and how the learning rate falls from the head to the first layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from classgap.heads import FeatureTap, learned_scales
from classgap.training.config import OptimConfig


def parameter_groups(config: OptimConfig, model: nn.Module, criterion: nn.Module) -> list[dict[str, Any]]:
    """The trained parameters of a network and its loss, in groups for an optimiser.

    A group has ``weight_decay`` where it is not that of the optimiser, and ``lr_factor`` where its rate is not the full one.
    Parameters of the loss and the learned scale of a cosine head are never decayed.
    """
    scales = {id(p) for p in learned_scales(model)}
    factors = _rate_factors(model, config.layer_decay)
    spared = scales if config.decay_norms else scales | _vectors(model)
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in scales:
            found.setdefault((factors.get(name, 1.0), id(parameter) not in spared), []).append(parameter)
    free = [p for p in (*learned_scales(model), *criterion.parameters()) if p.requires_grad]
    if free:
        found.setdefault((1.0, False), []).extend(free)
    return [
        {
            "params": parameters,
            **({} if decayed else {"weight_decay": 0.0}),
            **({} if factor == 1.0 else {"lr_factor": factor}),
        }
        for (factor, decayed), parameters in sorted(found.items(), key=lambda item: (item[0][0], not item[0][1]))
    ]


def layer_depths(model: nn.Module) -> dict[str, int]:
    """Depth of every parameter of a classifier: 0 for what precedes the first block, the largest for what follows the last.

    Networks of timm say themselves which parameters form a layer. Of others, the blocks are the members of the outermost
    sequences and lists with at least two members, in order of registration; the layer that makes the logits is always last.

    Example:
        >>> body = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> layer_depths(nn.ModuleDict({"stem": nn.Linear(2, 2), "body": body, "head": nn.Linear(2, 2)}))["body.1.bias"]
        2
    """
    matcher: Any = getattr(model, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        return dict(group_parameters(model, matcher(coarse=False), reverse=True))
    blocks = _blocks(model)
    starts = [(f"{name}.", depth + 1) for depth, name in enumerate(blocks)]
    depths: dict[str, int] = {}
    seen = 0
    for name, _ in model.named_parameters():
        inside = next((depth for start, depth in starts if name.startswith(start)), None)
        seen = max(seen, inside or 0)
        depths[name] = inside or (len(blocks) + 1 if seen == len(blocks) else seen)
    return depths


def _blocks(model: nn.Module) -> list[str]:
    """Names of the blocks: members with parts of their own; where no sequence has such members, its single layers."""
    found: list[str] = []
    outer: tuple[str, ...] = ()
    for name, module in model.named_modules():
        inside = bool(outer) and name.startswith(outer)
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and len(module) > 1 and not inside:
            outer = (*outer, f"{name}." if name else "")
            found += [f"{name}.{child}" if name else child for child, _ in module.named_children()]
    found = [name for name in found if any(True for _ in model.get_submodule(name).parameters())]
    return [name for name in found if any(True for _ in model.get_submodule(name).children())] or found


def _rate_factors(model: nn.Module, decay: float) -> Mapping[str, float]:
    """Factor of the learning rate by name of parameter."""
    if decay == 1.0:
        return {}
    factors: dict[str, float] = {}
    for place, tap in model.named_modules():
        if isinstance(tap, FeatureTap):
            depths = layer_depths(tap.model)
            last = max(depths.values())
            prefix = f"{place}.model." if place else "model."
            own = f"{tap.layer}."
            for name, depth in depths.items():
                factors[prefix + name] = 1.0 if name.startswith(own) else decay ** (last - depth)
    return factors


def _vectors(model: nn.Module) -> set[int]:
    """Norms, biases and other vectors, and what a network lists itself."""
    found = {id(p) for p in model.parameters() if p.dim() <= 1}
    for module in model.modules():
        listed = getattr(module, "no_weight_decay", None)
        if callable(listed) and not isinstance(module, FeatureTap):
            found |= {id(module.get_parameter(name)) for name in listed() if name in dict(module.named_parameters())}
    return found
