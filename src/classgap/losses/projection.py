"""Small networks that map features into the space in which a contrastive loss compares them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from classgap.losses.state import write_state


def mlp_projection(num_features: int, width: int) -> nn.Sequential:
    """Two layers that map features into the space where they are compared."""
    return nn.Sequential(nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, width))


class BatchNormProjection(nn.Module):
    """Linear, BatchNorm, ReLU, linear, normalised to unit length: maps features, or class weights, into the compared space."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, out)

    def forward(self, rows: Tensor, *, updating: bool) -> Tensor:
        """Unit vectors in the precision of the projection; running statistics are written only if ``updating``."""
        hidden, norm = self.first(rows.to(self.first.weight.dtype)), self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        running = norm.running_mean, norm.running_var
        if len(rows) > 1 and self.training:  # a single row has no variance
            running = (
                running[0].clone(),
                running[1].clone(),
            )  # also in a repeated pass, as activation checkpointing wants
            hidden = F.batch_norm(hidden, *running, norm.weight, norm.bias, True, norm.momentum, norm.eps)
            if updating:
                write_state(norm.running_mean, running[0])
                write_state(norm.running_var, running[1])
                norm.num_batches_tracked.add_(1)
        else:
            hidden = F.batch_norm(hidden, *running, norm.weight, norm.bias, eps=norm.eps)
        return F.normalize(self.last(F.relu(hidden)), dim=1)
