"""WiSE-FT: the final network is a mean of the weights that training started from and those it ended with.

Reference: Wortsman et al., *Robust fine-tuning of zero-shot models*, CVPR 2022, arXiv:2109.01903, eq. (2).
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save
from torch import nn

from classgap.checks import InputError
from classgap.heads import FeatureTap
from classgap.writing import write

START_FILE = "start.safetensors"


def save_start(fabric: Fabric, model: nn.Module, path: Path, *, without_head: bool) -> None:
    """Write the weights that training starts from; a new head is left out. Every process calls this."""
    left_out = _head_tensors(model) if without_head else set()
    state = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point() and id(tensor) not in left_out
    }
    if fabric.is_global_zero:
        write(path, save(state))
    fabric.barrier()


@torch.no_grad()
def mix_weights(fabric: Fabric, model: nn.Module, path: Path, share: float) -> None:
    """Replace the weights by ``share`` of themselves and the rest of those in the file; running statistics too."""
    if not path.exists():
        raise InputError(
            f"model.wise={share:g} needs {path}, the weights that training started from; restore this file"
        )
    start, state = load_file(path), model.state_dict()
    mixed = {k: torch.lerp(start[k].to(v), v, share) if k in start else v for k, v in state.items()}
    model.load_state_dict(mixed)
    fabric.barrier()


def _head_tensors(model: nn.Module) -> set[int]:
    taps = (module for module in model.modules() if isinstance(module, FeatureTap))
    return {id(tensor) for tap in taps for tensor in tap.head.state_dict(keep_vars=True).values()}
