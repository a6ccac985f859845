"""ArcFace, CosFace and SphereFace: one margin for all classes, on the angle between a feature and its class weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from classgap.checks import InputError, number
from classgap.losses.cosine_margin import CosineLoss, add_angle
from classgap.losses.options import LossOptions
from classgap.losses.state import read_state
from classgap.registry import Float, Int, method


def arcface_cosine(cosine: Tensor, m: float) -> Tensor:
    r""":math:`\cos(\theta+m)`, and :math:`\cos\theta - m\sin m` beyond :math:`\theta + m = \pi`, where it would rise again."""
    return torch.where(cosine > -math.cos(m), add_angle(cosine, m), cosine - m * math.sin(m))


def sphereface_cosine(cosine: Tensor, m: int) -> Tensor:
    r"""The monotone :math:`\psi(\theta) = (-1)^k\cos(m\theta) - 2k` for :math:`\theta\in[k\pi/m, (k+1)\pi/m]`.

    Example:
        >>> sphereface_cosine(torch.tensor([1.0, 0.0, -1.0]), 2)
        tensor([ 1., -1., -3.])
    """
    before, power = torch.ones_like(cosine), cosine  # Chebyshev: cos mθ is a polynomial in cos θ
    for _ in range(m - 1):
        before, power = power, 2 * cosine * power - before
    piece = torch.zeros_like(cosine)
    for k in range(1, m):
        piece = piece + (cosine < math.cos(k * math.pi / m))
    return (1 - 2 * (piece % 2)) * power - 2 * piece


@method(
    "cosface",
    kind="loss",
    family="cosine",
    paper="arXiv:1801.09414",
    needs=("cosine_head",),
    space={"m": Float(0.05, 0.5, default=0.35), "s": Float(8.0, 64.0, default=30.0, log=True)},
    reduces_to=("cross_entropy", {"m": 0.0, "s": 1.0}),
)
class CosFaceLoss(CosineLoss):
    r"""CosFace: the cosine of the true class must be larger than all others by a fixed amount.

    .. math:: \psi = \cos\theta_y - m

    Features and class weights lie on a sphere, and a constant is taken off the cosine of the true class before the softmax.
    Classes become compact and well separated in angle.

    When to use: features meant for comparison by angle (retrieval, verification), or a margin equal for all classes; on balanced
    data LDAM is this loss. It does not use class counts.
    Expect: on balanced data accuracy near that of cross-entropy, and features that compare well by angle; on long
    tails no help by itself.
    Pitfalls: needs a cosine head, and its loss is not comparable in size to cross-entropy. Gradients are ``s`` times those of a
    linear head: a network without normalisation layers learns badly at ``optim.lr=0.1``, and well with ``optim.clip=1`` or a
    tenth of the rate; so for every loss on cosines. With a large ``s`` and a large ``m`` training may not start.

    Args:
        m: Margin in cosine; 0.35 in the paper, 0.4 in later face recognition code.
        s: Scale. 30 suits up to some thousand classes of images; face recognition uses 64.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        m: float = 0.35,
        s: float = 30.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.m = number("m", m, low=0.0, high=2.0)
        self.s = number("s", s, low=0.0, open_low=True)

    def target_cosine(self, cosine: Tensor, target: Tensor) -> Tensor:
        return cosine - self.m


@method(
    "arcface",
    kind="loss",
    family="cosine",
    paper="arXiv:1801.07698",
    needs=("cosine_head",),
    space={"m": Float(0.05, 0.5, default=0.5), "s": Float(8.0, 64.0, default=30.0, log=True)},
    reduces_to=("cross_entropy", {"m": 0.0, "s": 1.0}),
)
class ArcFaceLoss(CosineLoss):
    r"""ArcFace: the angle to the true class must be smaller by a fixed amount.

    .. math:: \psi = \cos(\theta_y + m)

    A constant angle is added between a feature and its class before the softmax, which is the same arc length everywhere on the
    sphere. Beyond :math:`\theta_y + m = \pi`, where the cosine would rise again, the target becomes
    :math:`\cos\theta_y - m\sin m`.

    When to use: as CosFace; its margin is easier to read, in radians. It does not use class counts; DBM does.
    Expect: as CosFace, on balanced data and on long tails.
    Pitfalls: ``m=0.5`` with a large ``s`` is hard to start from scratch on small images. Needs a cosine head; large gradients as
    in CosFace.

    Args:
        m: Added angle in radians.
        s: Scale; face recognition uses 64.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        m: float = 0.5,
        s: float = 30.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.m = number("m", m, low=0.0, high=math.pi / 2)
        self.s = number("s", s, low=0.0, open_low=True)

    def target_cosine(self, cosine: Tensor, target: Tensor) -> Tensor:
        return arcface_cosine(cosine, self.m)


@method(
    "sphereface",
    kind="loss",
    family="cosine",
    paper="arXiv:1704.08063",
    needs=("cosine_head",),
    space={"m": Int(1, 4, default=4), "s": Float(8.0, 64.0, default=30.0, log=True)},
    reduces_to=("cross_entropy", {"m": 1, "s": 1.0}),
)
class SphereFaceLoss(CosineLoss):
    r"""SphereFace: the angle to the true class is multiplied before it is compared.

    .. math:: \psi = \frac{\lambda_t\cos\theta_y + \psi_m(\theta_y)}{1+\lambda_t}, \qquad
        \lambda_t = \max\Big(\lambda, \frac{\lambda_0}{1 + 0.12\,t}\Big)

    A sample must be :math:`m` times closer in angle to its class than to any other; :math:`\psi_m` continues
    :math:`\cos m\theta` monotonically. Since that is too hard at first, it is mixed with the plain cosine, less so with each
    step :math:`t`.

    When to use: for comparison with the later angular margins, which need no annealing.
    Expect: on balanced data little difference to a cosine head without margin, which the mixing keeps it close to; on
    long tails no help by itself.
    Pitfalls: the mixing never ends at the published :math:`\lambda = 5`, where the margin has a sixth of its weight. The
    original keeps feature norms as scale; here both sides are normalised, as in its successors.

    Args:
        m: Whole factor on the angle.
        s: Scale.
        lam: Final weight :math:`\lambda` of the plain cosine; 5 in the authors' model file, as are all constants here.
        lam_start: Weight :math:`\lambda_0` at the first step; ``lam_start=lam`` turns annealing off.
    """

    steps: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        m: int = 4,
        s: float = 30.0,
        lam: float = 5.0,
        lam_start: float = 1000.0,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        if isinstance(m, bool) or not isinstance(m, int) or m < 1:
            raise InputError(f"m must be a whole number of at least 1, got {m!r}; for a real-valued margin use arcface")
        self.m = m
        self.s = number("s", s, low=0.0, open_low=True)
        self.lam = number("lam", lam, low=0.0)
        self.lam_start = number("lam_start", lam_start, low=self.lam)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def update_from_labels(self, target: Tensor) -> None:
        self.steps += 1

    def target_cosine(self, cosine: Tensor, target: Tensor) -> Tensor:
        plain = (self.lam_start / (1 + 0.12 * read_state(self.steps).to(cosine.dtype))).clamp_min(self.lam)
        return (plain * cosine + sphereface_cosine(cosine, self.m)) / (1 + plain)
