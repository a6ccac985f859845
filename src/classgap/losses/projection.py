"""Small networks that map features into the space in which a contrastive loss compares them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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
        if len(rows) == 1 or not self.training:  # a single row has no variance
            hidden = F.batch_norm(hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        elif updating:
            hidden = norm(hidden)
        else:  # with copies: activation checkpointing wants the same number of saved tensors in both passes
            assert norm.running_mean is not None
            assert norm.running_var is not None
            unused = norm.running_mean.clone(), norm.running_var.clone()
            hidden = F.batch_norm(hidden, *unused, norm.weight, norm.bias, training=True, eps=norm.eps)
        return F.normalize(self.last(F.relu(hidden)), dim=1)
