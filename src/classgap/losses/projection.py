"""Small networks that map features into the space in which a contrastive loss compares them."""

from __future__ import annotations

from typing import cast

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
        mean, variance = cast("Tensor", norm.running_mean), cast("Tensor", norm.running_var)
        if len(rows) == 1 or not self.training:  # a single row has no variance
            hidden = F.batch_norm(hidden, mean, variance, norm.weight, norm.bias, eps=norm.eps)
        else:  # with copies: values that are not finite must not be written, nor anything in a repeated pass
            new = mean.clone(), variance.clone()
            hidden = F.batch_norm(hidden, *new, norm.weight, norm.bias, training=True, eps=norm.eps)
            if updating:
                write_state(mean, new[0])
                write_state(variance, new[1])
        return F.normalize(self.last(F.relu(hidden)), dim=1)
