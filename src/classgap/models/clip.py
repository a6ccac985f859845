"""Image towers of CLIP as classifiers: unit features, a learned scale, and a head that starts at the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgap.checks import InputError
from classgap.data.synsets import class_words, imagenet_ids, is_synset
from classgap.heads import CosineHead
from classgap.models.built import Built, Pixels, Shape, image_shape, published, quiet, unknown
from classgap.models.weights import State, is_torchscript, read_weights, require_match, weights_file

CLIP_PIXELS: Pixels = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_OPENAI_ONLY = ("input_resolution", "context_length", "vocab_size")  # numbers beside the weights in the files of OpenAI
_CONSTANT = "attn_mask"  # a program may list it among its tensors


class ClipClassifier(nn.Module):
    """The image tower of CLIP with its projection, and a last layer on its features, which are unit vectors.

    Attributes:
        start: Rows :math:`(K, d)` and scale that the head starts from; ``None`` for a random start.
    """

    unit_features = True

    def __init__(self, visual: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.visual = visual
        self.head: nn.Module = nn.Linear(width, num_classes, bias=False)
        self.start: tuple[Tensor, float] | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(F.normalize(self.visual(images), dim=-1))
        return logits

    @torch.no_grad()
    def start_head(self) -> None:
        """Put the rows and the scale of CLIP into the head; a loss with a scale of its own gets the rows alone."""
        if self.start is None:
            return
        head: Any = self.head
        rows, scale = self.start
        head.weight.copy_(rows if isinstance(head, CosineHead) else scale * rows)
        if isinstance(head, CosineHead) and head.logit_scale is not None:
            head.logit_scale.fill_(torch.tensor(scale).log())


def clip_model(
    name: str,
    num_classes: int,
    in_shape: Shape,
    pretrained: bool | str,
    *,
    class_names: Sequence[str] | None = None,
    zero_shot: str = "none",
) -> Built:
    """The image tower of the CLIP network that open_clip calls ``name``, e.g. ``RN50`` or ``ViT-B-32``.

    Args:
        pretrained: A tag of open_clip (``True`` for ``openai``), or a file: that of OpenAI, a ``state_dict`` of it, or one of
            open_clip. Weights of OpenAI need their activation, which ``RN50-quickgelu`` and ``ViT-B-32-quickgelu`` have.
        class_names, zero_shot: What the head starts from; see ``model.zero_shot``.
    """
    channels, height, width = image_shape(f"clip:{name}", in_shape)
    open_clip = _open_clip()
    if name not in open_clip.list_models():
        raise InputError(unknown(name, open_clip.list_models(), what="CLIP network"))
    if channels != 3:
        raise InputError(f"CLIP networks need 3 colour channels, the data have {channels}")
    # Its ResNets take the side of a square only, its transformers also a height and a width.
    options = {"force_image_size": height if height == width else (height, width)}
    file = weights_file(pretrained)
    notes: tuple[str, ...] = ()
    texts = True
    with quiet():  # open_clip warns that weights are random, which is what was asked for
        if file is not None:
            state, openai = _read(file)
            _require_activation(open_clip, name, openai)
            clip = open_clip.create_model(name, **options)
            texts = _load(open_clip, clip, state, file)
        elif pretrained:
            tag = "openai" if pretrained is True else pretrained
            _require_activation(open_clip, name, tag == "openai")
            clip = published(
                f"the weights {tag} of clip:{name}", lambda: open_clip.create_model(name, pretrained=tag, **options)
            )
        else:
            clip = open_clip.create_model(name, **options)
    model = ClipClassifier(clip.visual, _width(clip), num_classes)
    wanted = bool(pretrained) and zero_shot != "none" and class_names is not None
    if wanted and not texts:
        notes = (f"{file} has no text tower: the head starts at random",)
    elif wanted:
        names = spoken(class_names or ())
        rows = text_rows(clip, open_clip.get_tokenizer(name), names, _templates(open_clip, zero_shot))
        model.start = rows, float(clip.logit_scale.detach().exp())
    return Built(model, model.start is None, notes)


@torch.no_grad()
def text_rows(clip: Any, tokenizer: Any, class_names: Sequence[str], templates: Sequence[Any]) -> Tensor:
    """Unit text features :math:`(K, d)` of the class names: the mean over sentences of their unit features, normalised."""
    clip.eval()
    rows = []
    for name in class_names:
        found = clip.encode_text(tokenizer([template(name) for template in templates]), normalize=True)
        rows.append(F.normalize(found.mean(0), dim=0))
    return torch.stack(rows).float()


def spoken(class_names: Sequence[str]) -> list[str]:
    """The class names for sentences: those of ImageNet-1k as CLIP's authors write them, others as they are.

    Words of a few classes are taken as they are, since a kite need not be ImageNet's bird; a WordNet id has one meaning only.
    """
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    ids = imagenet_ids()
    words, _ = class_words(ids)
    numbers = {name: number for number, name in enumerate(ids)}
    if ids and set(class_names) == set(words):
        numbers |= {name: number for number, name in enumerate(words)}
    else:  # crane (n02012849)
        numbers |= {name: number for number, name in enumerate(words) if name.endswith(f"({ids[number]})")}
    coded = [name for name in class_names if is_synset(name) and name not in numbers]
    if coded:
        raise InputError(
            f"class {coded[0]} is a WordNet id, for which CLIP needs words: name the classes by words, or set "
            "model.zero_shot=none to start the head at random"
        )
    return [IMAGENET_CLASSNAMES[numbers[name]] if name in numbers else name.replace("_", " ") for name in class_names]


def _templates(open_clip: Any, zero_shot: str) -> Sequence[Any]:
    return list(open_clip.OPENAI_IMAGENET_TEMPLATES) if zero_shot == "imagenet" else [zero_shot.format]


def _open_clip() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise InputError("clip: models need open_clip; install it: pip install 'classgap[clip]'") from error
    return open_clip


def _read(path: Path) -> tuple[State, bool]:
    """The weights of a file in float32, and whether OpenAI made them."""
    if is_torchscript(path):
        with quiet():  # torch.jit is deprecated, but it is how these files were published
            state: State = dict(torch.jit.load(path, map_location="cpu").state_dict())  # type: ignore[no-untyped-call]
    else:
        state = read_weights(path)
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    quick = any(name in state for name in _OPENAI_ONLY)
    left_out = (*_OPENAI_ONLY, _CONSTANT)
    return {name: tensor.float() for name, tensor in state.items() if name not in left_out}, quick


def _require_activation(open_clip: Any, name: str, openai: bool) -> None:
    """A network with another activation would compute something else from the same weights."""
    if openai and not open_clip.get_model_config(name).get("quick_gelu"):
        raise InputError(
            f"these weights of OpenAI are for a network with QuickGELU, but clip:{name} has GELU; set model=clip:{name}-quickgelu"
        )


def _load(open_clip: Any, clip: Any, state: State, path: Path) -> bool:
    """Put the weights into the network; returns whether they have the text tower too."""
    from open_clip.model import resize_pos_embed

    resize_pos_embed(state, clip)
    own = dict(clip.state_dict())
    texts = any(not name.startswith("visual.") for name in state)
    wanted = own if texts else {name: tensor for name, tensor in own.items() if name.startswith("visual.")}
    wanted = {
        name: tensor for name, tensor in wanted.items() if name in state or not name.endswith("num_batches_tracked")
    }
    require_match(path, state, wanted)
    clip.load_state_dict(state, strict=False)
    return texts


def _width(clip: Any) -> int:
    return int(clip.visual.output_dim)
