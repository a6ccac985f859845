"""Models by name: ``resnet32``, ``preact20``, ``wrn-28-10``, ``mlp-256``, ``linear``, ``timm:…``, ``torchvision:…``."""

from __future__ import annotations

import difflib
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from torch import nn

from classgap.checks import InputError, did_you_mean, one_of
from classgap.heads import CosineHead, HeadScale, find_head, replace_head
from classgap.models import cifar
from classgap.models.causal import CausalNormHead

Shape = tuple[int, ...]
Head = Literal["linear", "cosine", "causal"]

KNOWN = (
    *(f"resnet{depth}" for depth in (20, 32, 44, 56)),
    *(f"preact{depth}" for depth in (20, 32)),
    "wrn-28-10",
    "wrn-22-10",
    "mlp",
    "linear",
    "timm:NAME",
    "torchvision:NAME",
)


def build_model(
    name: str,
    num_classes: int,
    in_shape: Shape,
    head: Head = "linear",
    *,
    head_params: Mapping[str, Any] | None = None,
    head_scale: HeadScale | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """The classifier called ``name`` for inputs of ``in_shape``, with random weights unless ``pretrained``.

    Args:
        name: ``resnet20|32|44|56``, ``preact20|32``, ``wrn-DEPTH-WIDTH``, ``mlp-WIDTH[-WIDTH…]`` (``mlp`` is
            ``mlp-256``), ``linear``, or ``timm:NAME`` / ``torchvision:NAME``.
        in_shape: ``(channels, height, width)`` of images or ``(d,)`` of feature vectors.
        head: ``"cosine"`` puts a :class:`~classgap.heads.CosineHead` in place of the last linear layer, ``"causal"`` a
            :class:`~classgap.models.CausalNormHead`.
        head_params: Parameters of a causal head.
        head_scale: Scale of a cosine head, see there; ``None`` for raw cosines.
        pretrained: Published weights, for ``timm:`` and ``torchvision:`` models only (downloads them).
    Example:
        >>> model = build_model("resnet20", 10, (3, 32, 32))
        >>> sum(p.numel() for p in model.parameters())
        269722
    """
    one_of("head", head, get_args(Head))
    library, _, foreign = name.partition(":")
    if foreign:
        one_of("model library", library, _LIBRARIES)
        model = _LIBRARIES[library](foreign, num_classes, _image_shape(name, in_shape), pretrained)
    elif pretrained:
        raise InputError(f"model {name!r} has no published weights; pretrained needs a timm: or torchvision: model")
    else:
        model = _own(name, num_classes, in_shape)
    put_head(model, head, head_params or {}, scale=head_scale)
    return model


def put_head(model: nn.Module, head: str, params: Mapping[str, Any], *, scale: HeadScale | None = None) -> None:
    """Put a new head of this kind where the model's last linear layer is; ``"linear"`` leaves that layer as it is.

    Args:
        params: Parameters of a causal head; the other heads have none.
        scale: Scale of a cosine head.
    """
    one_of("head", head, get_args(Head))
    signature = inspect.signature(CausalNormHead).parameters if head == "causal" else {}
    known = [name for name, p in signature.items() if p.kind is p.KEYWORD_ONLY]
    for name in params:
        if not known:
            raise InputError(
                f"a {head} head has no parameter {name!r}, it has none at all; leave out model.head.{name}"
            )
        if name not in known:
            raise InputError(did_you_mean(name, known, what=f"parameter of a {head} head"))
    if scale is not None and head != "cosine":
        raise InputError(f"head_scale={scale!r} is the scale of a cosine head; pass head='cosine', or no head_scale")
    if head == "linear":
        return
    old: Any = find_head(model)[1]
    inputs, outputs = old.in_features, old.out_features
    new = CausalNormHead(inputs, outputs, **params) if head == "causal" else CosineHead(inputs, outputs, scale=scale)
    replace_head(model, new)


def _own(name: str, num_classes: int, in_shape: Shape) -> nn.Module:
    family, sizes = _parse(name)
    if family in ("mlp", "linear"):
        inputs = 1
        for side in in_shape:
            inputs *= side
        return mlp((inputs, *sizes), num_classes)
    channels = _image_shape(name, in_shape)[0]
    if family == "wrn":
        return cifar.wide_resnet(sizes[0], sizes[1], num_classes, channels)
    build = cifar.resnet if family == "resnet" else cifar.preact
    return build(sizes[0], num_classes, channels)


def _parse(name: str) -> tuple[str, tuple[int, ...]]:
    """Family and sizes of one of our own models: ``"wrn-28-10"`` → ``("wrn", (28, 10))``."""
    if name in KNOWN and name.startswith(("resnet", "preact")):
        return name[:6], (int(name[6:]),)
    if name == "linear":
        return name, ()
    if re.fullmatch(r"mlp(-[1-9]\d*)*", name):
        return "mlp", tuple(int(size) for size in name.split("-")[1:]) or (256,)
    if match := re.fullmatch(r"wrn-(\d+)-([1-9]\d*)", name):
        depth = int(match[1])
        if depth < 10 or (depth - 4) % 6:
            raise InputError(
                f"model {name!r}: the depth of a Wide ResNet must be 6n + 4 (10, 16, 22, 28, 40), got {depth}"
            )
        return "wrn", (depth, int(match[2]))
    raise InputError(did_you_mean(name, KNOWN, what="model"))


def mlp(sizes: Shape, num_classes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between; a single size gives a linear classifier."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], num_classes))


def _image_shape(name: str, in_shape: Shape) -> tuple[int, int, int]:
    if len(in_shape) != 3:
        raise InputError(
            f"model {name!r} needs images (channels, height, width), but the data are vectors of shape {in_shape}; "
            "use mlp or linear"
        )
    return in_shape


def _unknown(name: str, known: list[str], *, what: str) -> str:
    """As ``did_you_mean``, for libraries with a thousand names: lists only the near ones."""
    return did_you_mean(name, difflib.get_close_matches(name, known, n=5, cutoff=0.3), what=what)


def _timm(name: str, num_classes: int, in_shape: tuple[int, int, int], pretrained: bool) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise InputError(_unknown(name, timm.list_models(), what="timm model"))
    channels, height, width = in_shape
    published = timm.get_pretrained_cfg(name)
    # Only models with a fixed input size take it as an argument.
    fixed = published is not None and published.fixed_input_size
    size: dict[str, Any] = {"img_size": (height, width)} if fixed else {}
    model: nn.Module = timm.create_model(name, pretrained, num_classes=num_classes, in_chans=channels, **size)
    return model


def _torchvision(name: str, num_classes: int, in_shape: tuple[int, int, int], pretrained: bool) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise InputError(_unknown(name, known, what="torchvision model"))
    if in_shape[0] != 3:
        raise InputError(f"torchvision models need 3 colour channels, the data have {in_shape[0]}; use timm:{name}")
    if not pretrained:
        return models.get_model(name, num_classes=num_classes)  # type: ignore[no-any-return]
    model: nn.Module = models.get_model(name, weights="DEFAULT")
    inputs = find_head(model)[1].in_features
    assert isinstance(inputs, int)
    replace_head(model, nn.Linear(inputs, num_classes))
    return model


_LIBRARIES: dict[str, Callable[[str, int, tuple[int, int, int], bool], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}
