"""Several networks side by side, for losses that train experts together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from classgap.checks import InputError


class Experts(nn.Module):
    """Networks that see the same input; their outputs are stacked along a new second dimension.

    Members that return ``(logits, features)``, such as :class:`~classgap.heads.FeatureTap`, make this module return both.
    Build each member anew: experts that share weights, or start with equal weights, learn the same.

    Args:
        members: At least one network, all with outputs of the same shape.
    Shape:
        logits :math:`(N, M, K)`; with tapped members also features :math:`(N, M, d)`.
    Example:
        >>> experts = Experts(nn.Linear(4, 3) for _ in range(2))
        >>> experts(torch.zeros(5, 4)).shape
        torch.Size([5, 2, 3])
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not len(self.members):
            raise InputError("members must hold at least one network, got none")
        if len({id(member) for member in self.members}) < len(self.members):
            raise InputError("members must be different networks, got the same module twice; build each one anew")

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]:
        """Stacked outputs of all members."""
        outputs = [member(*args, **kwargs) for member in self.members]
        if isinstance(outputs[0], tuple):
            return tuple(torch.stack(parts, 1) for parts in zip(*outputs, strict=True))
        return torch.stack(outputs, 1)
