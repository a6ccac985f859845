"""A classifier that removes, at test time, what the features of all samples have in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgap._checks import InputError, number


class CausalNormHead(nn.Module):
    r"""Multi-head normalised classifier with the total direct effect as its prediction.

    .. math:: z_k = \frac{\tau}{H}\sum_h \frac{w_k^h}{\|w_k^h\| + \gamma}\cdot \hat x^h, \qquad
       \hat x^h \to \hat x^h - \alpha\cos(\hat x^h, \hat c^h)\,\hat c^h \ \text{in evaluation mode}

    The features are cut into :math:`H` parts, each normalised. :math:`c`, the direction into which momentum drove the features
    (towards frequent classes), is tracked while training and taken out at test time.

    When to use: in place of the last linear layer on long-tailed data; any loss on logits goes with it.
    Pitfalls: :math:`c` must be tracked during the very training that is evaluated, so it cannot be added afterwards; tune
    :math:`\alpha` on validation data (it may be changed after training).

    Args:
        in_features: Feature dimension, a multiple of ``heads``.
        heads: :math:`H`.
        scale: :math:`\tau`.
        gamma: :math:`\gamma`, added to the norm of each class vector.
        alpha: :math:`\alpha`; 0 predicts with the training logits. About 1.5 for CIFAR, 3 for ImageNet-LT.
        momentum: Share of the old :math:`c` kept at each step.
    Shape:
        input :math:`(N, d)`, output :math:`(N, K)`.
    Reference: Tang et al., *Long-tailed classification by keeping the good and removing the bad momentum causal effect*,
    NeurIPS 2020, arXiv:2009.12991.
    """

    direction: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 2,
        scale: float = 16.0,
        gamma: float = 1 / 32,
        alpha: float = 1.5,
        momentum: float = 0.9,
    ) -> None:
        super().__init__()
        if in_features % heads:
            raise InputError(f"in_features must be a multiple of heads={heads}, got {in_features}; choose other heads")
        self.in_features, self.out_features, self.heads = in_features, out_features, heads
        self.scale = number("scale", scale, low=0.0, open_low=True)
        self.gamma, self.alpha = number("gamma", gamma, low=0.0), number("alpha", alpha, low=0.0)
        self.momentum = number("momentum", momentum, low=0.0, high=1.0)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)
        self.register_buffer("direction", torch.zeros(in_features))

    def forward(self, features: Tensor) -> Tensor:
        """Logits; while training also follows the mean feature."""
        if self.training:
            with torch.no_grad():
                self.direction.mul_(self.momentum).add_(features.detach().float().mean(0))
        parts = F.normalize(features.view(-1, self.heads, features.shape[1] // self.heads), dim=2)
        if not self.training:
            common = F.normalize(self.direction.view(self.heads, -1), dim=1).to(parts.dtype)
            cosine = (parts * common).sum(2, keepdim=True)
            parts = parts - self.alpha * cosine * common
        rows = self.weight.view(-1, self.heads, parts.shape[2])
        rows = rows / (rows.norm(dim=2, keepdim=True) + self.gamma)
        return self.scale / self.heads * torch.einsum("nhd,khd->nk", parts, rows)

    def extra_repr(self) -> str:
        """Sizes and strength."""
        return f"in_features={self.in_features}, out_features={self.out_features}, heads={self.heads}, alpha={self.alpha:g}"
