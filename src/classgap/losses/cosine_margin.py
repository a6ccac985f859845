r"""Margins on the cosine between a feature and the weight of its class: what CosFace, ArcFace, SphereFace, LDAM and DBM share.

All expect raw cosines from a cosine head and scale them themselves. Angles are never computed: :math:`\cos(\theta+m)` and
:math:`\cos m\theta` follow from :math:`\cos\theta`, and arccos has infinite slope at :math:`\pm1`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.logit_margin import margin_ce, replace_at
from classgap.losses.options import Reduction

_FLAT = 1e-6  # below this sin²θ the sine is continued as a straight line through the origin, which bounds its slope


def cosine_margin_ce(
    cosines: Tensor,
    target: Tensor,
    target_cosine: Tensor,
    *,
    s: float,
    offset: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy on scaled cosines, with another value in the place of the target's.

    .. math:: \ell_i = -\ln\frac{e^{s\psi_i}}{e^{s\psi_i} + \sum_{j\ne y_i} e^{s\cos\theta_{ij}}}

    Args:
        target_cosine: :math:`\psi`, what the cosine of the true class becomes under the margin.
        s: Scale; without one, cosines are too small for the softmax to approach 1.
        offset: Added to all scaled cosines, e.g. :math:`\ln\pi`.
        reduction: ``"mean"`` divides by the batch size.
    Shape:
        cosines :math:`(N, K)`, target and target_cosine :math:`(N,)`, offset :math:`(K,)`; returns a scalar, or :math:`(N,)`.
    Example:
        >>> cosine_margin_ce(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([0.5]), s=2.0)
        tensor(0.3133)
    """
    logits = s * replace_at(cosines, target, target_cosine)
    return margin_ce(logits, target, logits.new_zeros(()) if offset is None else offset, reduction=reduction)


def of_target(cosines: Tensor, target: Tensor) -> Tensor:
    """Each row's cosine with its own class."""
    return cosines.gather(1, target[:, None])[:, 0]


def add_angle(cosine: Tensor, angle: Tensor | float) -> Tensor:
    r""":math:`\cos(\theta + m)` from :math:`\cos\theta`, with a finite slope also at :math:`\theta = 0` and :math:`\pi`.

    Example:
        >>> add_angle(torch.tensor([1.0, 0.0]), math.pi / 3)
        tensor([ 0.5000, -0.8660])
    """
    squared = (1 - cosine.square()).clamp_min(0)
    sine = torch.where(squared < _FLAT, squared / math.sqrt(_FLAT), squared.clamp_min(_FLAT).sqrt())
    if isinstance(angle, Tensor):
        return cosine * angle.cos() - sine * angle.sin()
    return cosine * math.cos(angle) - sine * math.sin(angle)


class CosineLoss(ClassLoss):
    """Base of losses that change the target's cosine: a subclass implements :meth:`target_cosine`."""

    s: float

    @property
    def cosine_scale(self) -> float:
        return self.s

    def target_cosine(self, cosine: Tensor, target: Tensor) -> Tensor:
        """What the cosine of each sample with its own class becomes."""
        raise NotImplementedError(f"{type(self).__name__} must implement target_cosine")

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        """Scaled cosines with the changed one in the target's place."""
        return self.s * replace_at(logits, target, self.target_cosine(of_target(logits, target), target))

    def per_sample(self, batch: LossBatch) -> Tensor:
        cosines, target = batch.logits, batch.target
        changed = self.target_cosine(of_target(cosines, target), target)
        return cosine_margin_ce(cosines, target, changed, s=self.s, reduction="none")
