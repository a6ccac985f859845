"""Image and text classifiers of Hugging Face transformers, by name or from a folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classgap.checks import InputError, reading
from classgap.data.images import IMAGENET_PIXELS
from classgap.heads import find_head
from classgap.models.built import Built, Pixels, Shape, published
from classgap.models.weights import load_weights, weights_file

_POOLING = Path("1_Pooling") / "config.json"  # where sentence encoders say how tokens become a sentence


class TextClassifier(nn.Module):
    """A text network whose input is one tensor of token numbers (N, L), padded at the end."""

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, tokens: Tensor) -> Any:
        """What the network returns for these texts; columns that hold nothing but padding are left out."""
        mask = tokens != self.padding
        if not torch.compiler.is_exporting():
            longest = max(1, int(mask.sum(1).max()))
            tokens, mask = tokens[:, :longest], mask[:, :longest]
        return self.network(input_ids=tokens, attention_mask=mask.long())


class SentenceClassifier(nn.Module):
    """A sentence encoder, pooled as its folder says, and a linear layer."""

    def __init__(self, encoder: Any, num_classes: int, *, mean: bool) -> None:
        super().__init__()
        self.encoder, self.mean = encoder, mean
        self.head = nn.Linear(encoder.config.hidden_size, num_classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.mean:
            mask = attention_mask.unsqueeze(-1).to(states.dtype)
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        else:
            pooled = states[:, 0]
        logits: Tensor = self.head(pooled)
        return logits


def hf_model(name: str, num_classes: int, in_shape: Shape, pretrained: bool | str) -> Built:
    """The classifier of the folder or Hub repository ``name``: of images where samples have three dimensions, of texts for one.

    A folder of a sentence encoder (with ``1_Pooling``) becomes that encoder and a linear layer.

    Args:
        pretrained: ``True`` for the weights of the folder or repository; a tag is a revision of the repository; or a file.
    """
    transformers = _transformers()
    config = _config(name)
    file = weights_file(pretrained)
    download = bool(pretrained) and file is None
    options = {"revision": pretrained} if isinstance(pretrained, str) and download else {}
    if len(in_shape) == 1 and (pooling := _pooling(name)) is not None:
        found = _sentence(transformers.AutoModel, name, config, download, num_classes, pooling)
    else:
        kind = "AutoModelForSequenceClassification" if len(in_shape) == 1 else "AutoModelForImageClassification"
        found = _classifier(getattr(transformers, kind), name, config, download, num_classes, options)
    if len(in_shape) == 1:
        padding = config.pad_token_id
        if padding is None:
            raise InputError(f"model hf:{name} has no padding token (pad_token_id in its config.json)")
        found = Built(TextClassifier(found.model, int(padding)), found.head_is_new, found.notes)
    if file is not None:
        loaded = load_weights(found.model, file)
        return Built(found.model, loaded.head_is_new, loaded.notes)
    return found


def _classifier(auto: Any, name: str, config: Any, download: bool, num_classes: int, options: dict[str, Any]) -> Built:
    published_classes = int(config.num_labels)
    config.num_labels = num_classes
    if not download:
        with _of_this_kind(name, auto):
            return Built(auto.from_config(config))

    def load() -> Any:
        fit = {"ignore_mismatched_sizes": True, "output_loading_info": True, "dtype": torch.float32}
        with _of_this_kind(name, auto):
            return auto.from_pretrained(name, config=config, **fit, **options)

    with _quiet():  # no table of the weights that do not fit; said in one sentence below
        model, info = published(f"the weights of hf:{name}", load)
    random = sorted(
        {*info["missing_keys"], *(key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"])}
    )
    if not random:
        return Built(model, head_is_new=False)
    head = find_head(model)[0]
    others = [key for key in random if not key.startswith(head)]
    theirs = f"one for {published_classes}" if info["mismatched_keys"] else "none"
    note = f"the weights of {name} have no head for {num_classes} classes (they have {theirs}): it starts at zero"
    return Built(model, notes=(note + (f", and so do {', '.join(others[:3])}" if others else ""),))


@contextlib.contextmanager
def _of_this_kind(name: str, auto: Any) -> Iterator[None]:
    """Within this block a network of another kind, such as one of texts for images, is a sentence."""
    try:
        yield
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        kind = "images" if "Image" in auto.__name__ else "texts"
        raise InputError(f"the data are {kind}, but model hf:{name} has no classifier of {kind}; choose one") from error


def _sentence(auto: Any, name: str, config: Any, download: bool, num_classes: int, pooling: dict[str, Any]) -> Built:
    mean = bool(pooling.get("pooling_mode_mean_tokens"))
    if not mean and not pooling.get("pooling_mode_cls_token"):
        raise InputError(f"model hf:{name}: {_POOLING} asks for neither the mean of the tokens nor the first token")
    options = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta") else {}
    if download:
        with _quiet():
            encoder = published(
                f"the weights of hf:{name}", lambda: auto.from_pretrained(name, dtype=torch.float32, **options)
            )
    else:
        encoder = auto.from_config(config, **options)
    return Built(SentenceClassifier(encoder, num_classes, mean=mean))


@dataclass(frozen=True)
class TextEncoder:
    """From texts to token numbers (N, ``length``) by the tokenizer of a network; texts are cut or padded at the end.

    The tokenizer is loaded when the first text comes, in each process that encodes texts.
    """

    name: str
    length: int

    def __call__(self, texts: list[str]) -> Tensor:
        """Token numbers."""
        tokens: Tensor = _tokenizer(self.name)(
            texts, padding="max_length", truncation=True, max_length=self.length, return_tensors="pt"
        )["input_ids"]
        return tokens


def text_encoder(name: str, length: int) -> TextEncoder | None:
    """The tokenizer of the network ``name``, with at most ``length`` tokens; ``None`` if it is no network for texts."""
    library, _, foreign = name.partition(":")
    return TextEncoder(foreign, length) if library == "hf" else None


@lru_cache(maxsize=4)
def _tokenizer(name: str) -> Any:
    transformers = _transformers()
    tokenizer = published(f"the tokenizer of hf:{name}", lambda: transformers.AutoTokenizer.from_pretrained(name))
    if tokenizer.pad_token_id is None:
        raise InputError(f"the tokenizer of hf:{name} has no padding token; add one to its tokenizer_config.json")
    tokenizer.padding_side = "right"
    return tokenizer


def save_description(name: str, folder: Path) -> None:
    """Write what is needed to build the network again, without its weights: configuration, tokenizer, pre-processing."""
    transformers = _transformers()
    folder.mkdir(parents=True, exist_ok=True)
    _config(name).save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("AutoTokenizer", "AutoImageProcessor"):
            try:
                getattr(transformers, kind).from_pretrained(name).save_pretrained(folder)
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
            ):  # an image network has no tokenizer, a text network no processor
                continue
    if (pooling := Path(name) / _POOLING).is_file():
        (folder / _POOLING).parent.mkdir(exist_ok=True)
        shutil.copy(pooling, folder / _POOLING)


def hf_pixels(name: str) -> Pixels:
    """Channel statistics that the images of the network are standardised with."""
    transformers = _transformers()
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        return IMAGENET_PIXELS
    return tuple(processor.image_mean), tuple(processor.image_std)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and the progress bars of transformers."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _config(name: str) -> Any:
    transformers = _transformers()
    place = Path(name).expanduser()
    if place.is_dir() and not (place / "config.json").is_file():
        raise InputError(f"model hf:{name}: the folder has no config.json, so it is no model of transformers")
    return published(f"the configuration of hf:{name}", lambda: transformers.AutoConfig.from_pretrained(name))


def _pooling(name: str) -> dict[str, Any] | None:
    path = Path(name).expanduser() / _POOLING
    if not path.is_file():
        return None
    with reading(path, "the description of a pooling layer"):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError("hf: models need transformers; install it: pip install 'classgap[transformers]'") from error
    return transformers
