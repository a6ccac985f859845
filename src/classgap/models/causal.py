"""A classifier that removes the common direction of all features at test time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgap.batchstats import all_reduce_sum
from classgap.checks import InputError, number, whole


class CausalNormHead(nn.Module):
    r"""Multi-head normalised classifier whose prediction is the total direct effect.

    .. math:: z_k = \frac{\tau}{H}\sum_h \frac{w_k^h}{\|w_k^h\| + \gamma}\cdot \hat x^h, \qquad
       \hat x^h \to \hat x^h - \alpha\cos(\hat x^h, \hat c^h)\,\hat c^h \ \text{in evaluation mode}

    The features are cut into :math:`H` parts, each normalised. :math:`c`, the direction into which momentum drove the features
    (towards frequent classes), is tracked while training, :math:`c \leftarrow \mu c + \bar x` with the mean feature of the
    batch over all processes, and taken out at test time. With ``classgap train`` it is ``model.head=causal``, and
    ``model.head.alpha=3`` sets a parameter.

    When to use: in place of the last linear layer on long-tailed data; any loss on logits goes with it.
    Pitfalls: :math:`c` must be tracked during the very training that is evaluated, so it cannot be added afterwards; tune
    :math:`\alpha` on validation data (it may be changed after training). On ImageNet-LT and Places-LT the authors' code raises
    :math:`\mu` to :math:`1 - 0.1\min(1, 50\,\text{rate})` as the learning rate falls; here it stays, as in their code for CIFAR.

    Args:
        in_features: Feature dimension, a multiple of ``heads``.
        heads: Number of parts :math:`H`.
        scale: :math:`\tau`.
        gamma: :math:`\gamma`, added to the norm of each class vector.
        alpha: Strength :math:`\alpha` of the correction; 0 predicts with the training logits. The authors' configurations have
            1.0 for CIFAR-10-LT, 1.5 for CIFAR-100-LT and 3.0 for ImageNet-LT and Places-LT.
        momentum: Share :math:`\mu` of the old :math:`c` kept at each step.
    Shape:
        input :math:`(N, d)`, output :math:`(N, K)`, at least float32 also under autocast.
    Reference: Tang et al., *Long-tailed classification by keeping the good and removing the bad momentum causal effect*,
    NeurIPS 2020, arXiv:2009.12991; github.com/KaihuaTang/Long-Tailed-Recognition.pytorch.
    """

    is_head = True  # so that classgap.heads finds it as the last layer

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
        heads = whole("heads", heads, low=1)
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
        """Logits; while training it also updates the common direction."""
        with torch.autocast(features.device.type, enabled=False):
            dtype = torch.promote_types(self.weight.dtype, torch.float32)
            if self.training:
                self._follow(features)
            parts = F.normalize(features.to(dtype).view(len(features), self.heads, -1), dim=2)
            if not self.training:
                common = F.normalize(self.direction.to(dtype).view(self.heads, -1), dim=1)
                cosine = (parts * common).sum(2, keepdim=True)
                parts = parts - self.alpha * cosine * common
            rows = self.weight.to(dtype).view(-1, self.heads, parts.shape[2])
            rows = rows / (rows.norm(dim=2, keepdim=True) + self.gamma)
            return self.scale / self.heads * torch.einsum("nhd,khd->nk", parts, rows)

    @torch.no_grad()
    def _follow(self, features: Tensor) -> None:
        total, rows = all_reduce_sum(features.to(self.direction.dtype).sum(0), self.direction.new_tensor(len(features)))
        self.direction.mul_(self.momentum).add_(total / rows.clamp_min(1))

    def extra_repr(self) -> str:
        """Sizes and strength."""
        return f"in_features={self.in_features}, out_features={self.out_features}, heads={self.heads}, alpha={self.alpha:g}"
