"""Activation checkpointing runs a forward pass twice: which of the two may write state."""

from __future__ import annotations

import sys
from types import FrameType

import torch


def is_repeated_forward() -> bool:
    """Whether ``torch.utils.checkpoint`` repeats a forward pass whose first run already had gradients enabled.

    With ``use_reentrant=False`` the first run has gradients enabled and writes state; the second one, inside the backward pass,
    must not. With ``use_reentrant=True`` the first run has no gradients and writes nothing; the second one does.
    """
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return frame.f_code.co_name != "backward"  # of CheckpointFunction, the form with use_reentrant=True
        frame = frame.f_back
    return True  # some other tool repeats a forward pass inside the backward pass
