"""Weights from a file: safetensors, or a checkpoint of PyTorch in the layouts that people publish.

A checkpoint is read with ``weights_only``: no code that is stored in it runs.
"""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from classgap.checks import InputError
from classgap.heads import find_head
from classgap.models.built import quiet

State = dict[str, Tensor]
ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
# Where a checkpoint has the weights of the network: MAE and timm have "model", MoCo and Lightning "state_dict".
_INSIDE = ("model", "state_dict", "model_state_dict", "state_dict_ema", "module")
# What wrappers put before the names of parameters. MoCo trains a query and a key encoder; the query encoder is the network.
_PREFIXES = (
    "",
    "module.encoder_q.",
    "module.base_encoder.",
    "module.",
    "encoder_q.",
    "backbone.",
    "model.",
    "net.",
    "_orig_mod.",
)
_ONLY_PRETRAINING = ("mask_token", "decoder_")  # of MAE: parts that the classifier does not have


@dataclass(frozen=True)
class Loaded:
    """What came of loading a file: whether the head starts at zero, and sentences for the user."""

    head_is_new: bool
    notes: tuple[str, ...]


def weights_file(pretrained: bool | str) -> Path | None:
    """The file that ``pretrained`` names; ``None`` for a tag of published weights."""
    if not isinstance(pretrained, str):
        return None
    path = Path(pretrained).expanduser()
    if path.is_file():
        return path
    if path.suffix in ENDINGS or "/" in pretrained or path.exists():
        raise InputError(
            f"model.pretrained={pretrained}: there is no such file; give a file of weights ({', '.join(ENDINGS)}), or a tag of "
            "published weights"
        )
    return None


def read_weights(path: Path) -> State:
    """The tensors of a network in a file, by name, on the CPU."""
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path} cannot be read as safetensors ({error}); it is damaged or half-written"
            ) from error
    if is_torchscript(path):
        raise InputError(
            f"{path} is a TorchScript program, not a file of weights; such files are read for clip: models only. Otherwise save "
            "its state_dict() as safetensors"
        )
    try:
        # Namespace: settings, which MAE stores beside the weights. Quiet: torch warns about files that it then refuses.
        with torch.serialization.safe_globals([argparse.Namespace]), quiet():
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds Python objects besides tensors, which could run code when they are read, or is damaged. "
            "If you trust it, load it in Python and save its state_dict with safetensors.torch.save_file"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({_first_line(error)}); it is damaged or half-written") from error
    return _tensors(path, found)


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive with a TorchScript program, as the CLIP networks of OpenAI are published."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def load_weights(model: nn.Module, path: Path, *, fresh: tuple[str, ...] = (), unused: tuple[str, ...] = ()) -> Loaded:
    """Put the weights of a file into a network. All must fit, except a head for other classes.

    Args:
        fresh: How names of parameters begin that may be absent from the file and then start at random.
        unused: How names in the file begin that the network does not have.
    """
    own = dict(model.state_dict())
    head = f"{find_head(model)[0]}."
    found, notes = _renamed(read_weights(path), own, head, path)
    found = {k: v for k, v in found.items() if not k.startswith((*_ONLY_PRETRAINING, *unused)) or k in own}
    head_is_new = not _has_head(found, own, head)
    if head_is_new:
        found = {name: tensor for name, tensor in found.items() if not name.startswith(head)}
        size = next(tensor.shape[0] for name, tensor in own.items() if name.startswith(head))
        notes = (*notes, f"{path.name} has no head for {size} classes: the head starts at zero")
    found = _fitted(model, found, own)
    optional = (*fresh, head) if head_is_new else fresh
    require_match(path, found, {k: v for k, v in own.items() if k in found or not k.startswith(optional)})
    model.load_state_dict(found, strict=False)
    return Loaded(head_is_new, notes)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]


def _tensors(path: Path, found: Any) -> State:
    """The mapping of names to tensors inside a checkpoint."""
    for key in _INSIDE:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    state = {k: v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not state:
        keys = ", ".join(map(str, list(found)[:5])) if isinstance(found, Mapping) else type(found).__name__
        raise InputError(f"{path} holds no weights by name (its content: {keys}); save the state_dict() of the network")
    return state


def _renamed(state: State, own: State, head: str, path: Path) -> tuple[State, tuple[str, ...]]:
    """The weights under the names of the network: without the prefix of a wrapper, or in order where all names differ."""
    best, hits = "", 0
    for prefix in _PREFIXES:
        count = sum(name.startswith(prefix) and name[len(prefix) :] in own for name in state)
        if count > hits:
            best, hits = prefix, count
    if hits:
        return {k[len(best) :]: v for k, v in state.items() if k.startswith(best)}, ()
    body = [name for name in own if not name.startswith(head)]
    theirs = list(state)
    # A safetensors file has its tensors in alphabetical order, which says nothing.
    ordered = path.suffix != ".safetensors" and len(theirs) >= len(body)
    same = ordered and all(state[t].shape == own[o].shape for t, o in zip(theirs, body, strict=False))
    if not same:
        return state, ()
    # A head is the last layer in both; one of another size is replaced later.
    names = dict(zip(theirs, [*body, *(name for name in own if name.startswith(head))], strict=False))
    first = next(iter(names.items()))
    note = f"{path.name} has other names of parameters ({first[0]} for {first[1]}, …), but the same shapes in the same order"
    return {names.get(name, name): tensor for name, tensor in state.items()}, (f"{note}: taken in this order",)


def _has_head(found: State, own: State, head: str) -> bool:
    """Whether the file has the head of the network, in its size."""
    wanted = {name: tensor.shape for name, tensor in own.items() if name.startswith(head)}
    return {name: tensor.shape for name, tensor in found.items() if name.startswith(head)} == wanted


def _fitted(model: nn.Module, found: State, own: State) -> State:
    """Position embeddings of a timm ViT for images of another size are interpolated."""
    name = "pos_embed"
    if name not in found or name not in own or found[name].shape == own[name].shape:
        return found
    if found[name].dim() != 3 or own[name].shape[2] != found[name].shape[2] or not hasattr(model, "patch_embed"):
        return found
    from timm.layers import resample_abs_pos_embed

    prefix = int(getattr(model, "num_prefix_tokens", 1))
    embedding: Any = model.patch_embed
    return {**found, name: resample_abs_pos_embed(found[name], list(embedding.grid_size), num_prefix_tokens=prefix)}


def require_match(path: Path, found: State, own: State) -> None:
    """Name the first difference, in the order of the network."""
    for name, tensor in own.items():
        if name not in found:
            near = f"; it has {next(iter(found))}, …" if found else ""
            raise InputError(f"{path} does not fit the network: it lacks {name}{near}. Is it another architecture?")
        if found[name].shape != tensor.shape:
            raise InputError(
                f"{path} does not fit the network: {name} has shape {tuple(found[name].shape)} there and "
                f"{tuple(tensor.shape)} in the network. Is it another architecture?"
            )
    for name in found:
        if name not in own:
            raise InputError(f"{path} does not fit the network, which has no {name}. Is it another architecture?")
