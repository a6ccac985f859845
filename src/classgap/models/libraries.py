"""Image networks of timm and torchvision, with published weights or those of a file."""

from __future__ import annotations

from typing import Any

from torch import nn

from classgap.checks import InputError, did_you_mean
from classgap.data.images import IMAGENET_PIXELS
from classgap.heads import find_head, replace_head
from classgap.models.built import Built, Pixels, Shape, image_shape, published, unknown
from classgap.models.weights import load_weights, weights_file


def timm_model(name: str, num_classes: int, in_shape: Shape, pretrained: bool | str) -> Built:
    """A network of timm; ``pretrained`` is a tag of its weights, ``True`` for the usual one, or a file."""
    return _timm(name, num_classes, image_shape(f"timm:{name}", in_shape), pretrained)


def mae_model(name: str, num_classes: int, in_shape: Shape, pretrained: bool | str) -> Built:
    """A ViT of timm as the authors of MAE fine-tune it: average of the patches, and a normalisation layer before the head."""
    shape = image_shape(f"mae:{name}", in_shape)
    pretrained = "mae" if pretrained is True else pretrained
    return _timm(name, num_classes, shape, pretrained, fresh=("fc_norm.",), unused=("norm.",), global_pool="avg")


def _timm(
    name: str,
    num_classes: int,
    in_shape: tuple[int, int, int],
    pretrained: bool | str,
    *,
    fresh: tuple[str, ...] = (),
    unused: tuple[str, ...] = (),
    **options: Any,
) -> Built:
    import timm

    if not timm.is_model(name):
        raise InputError(unknown(name, timm.list_models(), what="timm model"))
    file = weights_file(pretrained)
    if isinstance(pretrained, str) and file is None:
        name = _tagged(name, pretrained)
    channels, height, width = in_shape
    config = timm.get_pretrained_cfg(name)
    # Only models with a fixed input size take it as an argument.
    if config is not None and config.fixed_input_size:
        options["img_size"] = (height, width)
    download = bool(pretrained) and file is None
    if download and fresh:
        options["pretrained_strict"] = False

    def create() -> nn.Module:
        model: nn.Module = timm.create_model(name, download, num_classes=num_classes, in_chans=channels, **options)
        return model

    model = published(f"the weights of timm:{name}", create) if download else create()
    if file is not None:
        loaded = load_weights(model, file, fresh=fresh, unused=unused)
        return Built(model, loaded.head_is_new, loaded.notes)
    return _published(model, name, num_classes, getattr(config, "num_classes", None) if download else None)


def _tagged(name: str, tag: str) -> str:
    import timm

    base = name.partition(".")[0]
    tags = [found.partition(".")[2] for found in timm.list_pretrained(f"{base}.*")]
    if tag not in tags:
        raise InputError(f"model.pretrained: {did_you_mean(tag, tags, what=f'tag of weights of timm:{base}')}")
    return f"{base}.{tag}"


def _published(model: nn.Module, name: str, num_classes: int, classes: int | None) -> Built:
    if classes is None or classes == num_classes:
        return Built(model, head_is_new=classes is None)
    return Built(model, notes=(f"the weights of {name} are for {classes} classes: the head starts at zero",))


def torchvision_model(name: str, num_classes: int, in_shape: Shape, pretrained: bool | str) -> Built:
    """A network of torchvision; ``pretrained`` is a name of its weights, ``True`` for the usual ones, or a file."""
    from torchvision import models

    channels = image_shape(f"torchvision:{name}", in_shape)[0]
    known = models.list_models(module=models)
    if name not in known:
        raise InputError(unknown(name, known, what="torchvision model"))
    if channels != 3:
        raise InputError(f"torchvision models need 3 colour channels, the data have {channels}; use timm:{name}")
    file = weights_file(pretrained)
    if file is not None or not pretrained:
        model: nn.Module = models.get_model(name, num_classes=num_classes)
        if file is None:
            return Built(model)
        loaded = load_weights(model, file)
        return Built(model, loaded.head_is_new, loaded.notes)
    tag = "DEFAULT" if pretrained is True else pretrained
    tags = list(models.get_model_weights(name).__members__)
    if tag not in tags:
        raise InputError(f"model.pretrained: {did_you_mean(tag, tags, what=f'tag of weights of torchvision:{name}')}")
    model = published(f"the weights of torchvision:{name}", lambda: models.get_model(name, weights=tag))
    head: Any = find_head(model)[1]
    classes, inputs = head.out_features, head.in_features
    if classes != num_classes:
        replace_head(model, nn.Linear(inputs, num_classes))
    return _published(model, name, num_classes, classes)


def timm_pixels(name: str) -> Pixels:
    """Channel statistics that the published weights of a timm network were trained with."""
    import timm

    config = timm.get_pretrained_cfg(name)
    return IMAGENET_PIXELS if config is None else (tuple(config.mean), tuple(config.std))
