"""Models by name: ``resnet32``, ``mlp-256``, ``linear``, ``timm:…``, ``torchvision:…``, ``hf:…``, ``clip:…``, ``mae:…``."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from torch import nn

from classgap.checks import InputError, did_you_mean, one_of
from classgap.data.images import IMAGENET_PIXELS
from classgap.heads import CosineHead, HeadScale, find_head, replace_head
from classgap.models import cifar
from classgap.models.built import Built, Pixels, Shape, image_shape
from classgap.models.causal import CausalNormHead
from classgap.models.clip import CLIP_PIXELS, ClipClassifier, clip_model
from classgap.models.hugging_face import hf_model, hf_pixels
from classgap.models.libraries import mae_model, timm_model, timm_pixels, torchvision_model
from classgap.models.weights import load_weights, weights_file

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
    "hf:NAME or hf:FOLDER",
    "clip:NAME",
    "mae:NAME",
)
_LIBRARIES: dict[str, Callable[..., Built]] = {
    "timm": timm_model,
    "torchvision": torchvision_model,
    "hf": hf_model,
    "clip": clip_model,
    "mae": mae_model,
}


def build_model(
    name: str,
    num_classes: int,
    in_shape: Shape,
    head: Head = "linear",
    *,
    head_params: Mapping[str, Any] | None = None,
    head_scale: HeadScale | None = None,
    pretrained: bool | str = False,
) -> nn.Module:
    """The classifier called ``name`` for inputs of ``in_shape``, with random weights unless ``pretrained``.

    Args:
        name: ``resnet20|32|44|56``, ``preact20|32``, ``wrn-DEPTH-WIDTH``, ``mlp-WIDTH[-WIDTH…]`` (``mlp`` is
            ``mlp-256``), ``linear``; ``timm:NAME``, ``torchvision:NAME``; ``hf:NAME`` or ``hf:FOLDER``, an image or text
            classifier of transformers; ``clip:NAME``, an image tower of open_clip; ``mae:NAME``, a ViT of timm as the authors
            of MAE fine-tune it.
        in_shape: ``(channels, height, width)`` of images, ``(d,)`` of feature vectors, ``(L,)`` of tokens for ``hf:``.
        head: ``"cosine"`` puts a :class:`~classgap.heads.CosineHead` in place of the last linear layer, ``"causal"`` a
            :class:`~classgap.models.CausalNormHead`.
        head_params: Parameters of a causal head.
        head_scale: Scale of a cosine head, see there; ``None`` for raw cosines.
        pretrained: ``True`` for the usual published weights, a tag of the library for others (both are downloaded, unless
            ``hf:`` names a folder), or the path of a file: safetensors, or a checkpoint of PyTorch, also in the layouts of MoCo
            (``module.encoder_q.``), MAE (``model``) and CLIP (``visual.``). Everything in it must fit, except a head for another
            number of classes, which then starts at zero.
    Example:
        >>> model = build_model("resnet20", 10, (3, 32, 32))
        >>> sum(p.numel() for p in model.parameters())
        269722
    """
    one_of("head", head, get_args(Head))
    model = open_model(name, num_classes, in_shape, pretrained).model
    put_head(model, head, head_params or {}, scale=head_scale)
    return model


def open_model(
    name: str,
    num_classes: int,
    in_shape: Shape,
    pretrained: bool | str = False,
    *,
    class_names: Sequence[str] | None = None,
    zero_shot: str = "none",
) -> Built:
    """The network of :func:`build_model` with its own head, and what there is to say about its weights.

    A new head on pretrained weights starts at zero. The random heads of some libraries are large (weights up to 0.32 in timm's
    EfficientNets, 0.03 in ``nn.Linear``), and fine-tuning then starts with a large loss.

    Args:
        class_names, zero_shot: What the head of a CLIP network starts from.
    """
    built = _open(name, num_classes, in_shape, pretrained, class_names, zero_shot)
    if pretrained and built.head_is_new and not isinstance(built.model, ClipClassifier):
        for parameter in find_head(built.model)[1].parameters():
            nn.init.zeros_(parameter)
    return built


def _open(
    name: str,
    num_classes: int,
    in_shape: Shape,
    pretrained: bool | str,
    class_names: Sequence[str] | None,
    zero_shot: str,
) -> Built:
    library, _, foreign = name.partition(":")
    if foreign:
        one_of("model library", library, _LIBRARIES)
        make = _LIBRARIES[library]
        if library == "clip":
            make = partial(make, class_names=class_names, zero_shot=zero_shot)
        return make(foreign, num_classes, in_shape, pretrained)
    model = _own(name, num_classes, in_shape)
    if not pretrained:
        return Built(model)
    file = weights_file(pretrained)
    if file is None:
        raise InputError(
            f"model {name!r} has no published weights; give a file of weights, or use a timm:, torchvision:, hf: or clip: model"
        )
    loaded = load_weights(model, file)
    return Built(model, loaded.head_is_new, loaded.notes)


def pixels_of(name: str) -> Pixels | None:
    """Channel statistics, on the scale [0, 1], that the pretrained networks of a library want; ``None`` for our own networks."""
    library, _, foreign = name.partition(":")
    if library == "hf":
        return hf_pixels(foreign)
    if library == "timm":
        return timm_pixels(foreign)
    return {"torchvision": IMAGENET_PIXELS, "mae": IMAGENET_PIXELS, "clip": CLIP_PIXELS}.get(library)


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
    if head != "linear":
        old: Any = find_head(model)[1]
        inputs, outputs = old.in_features, old.out_features
        causal = head == "causal"
        replace_head(
            model, CausalNormHead(inputs, outputs, **params) if causal else CosineHead(inputs, outputs, scale=scale)
        )
    if isinstance(model, ClipClassifier):
        model.start_head()


def _own(name: str, num_classes: int, in_shape: Shape) -> nn.Module:
    family, sizes = _parse(name)
    if family in ("mlp", "linear"):
        inputs = 1
        for side in in_shape:
            inputs *= side
        return mlp((inputs, *sizes), num_classes)
    channels = image_shape(name, in_shape)[0]
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
