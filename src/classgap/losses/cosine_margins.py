r"""Margins on the angle between features and class weights: CosFace, ArcFace, SphereFace, LDAM.

All expect raw cosines from a cosine head and scale them themselves. Angles are never computed: :math:`\cos(\theta+m)` and
:math:`\cos m\theta` follow from :math:`\cos\theta`, and arccos has infinite slope at :math:`\pm1`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss, Reduction
from classgap.losses.logit_margins import margin_ce, replace_at
from classgap.losses.state import settled
from classgap.registry import Choice, Float, Int, method

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

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        changed = self.target_cosine(of_target(logits, target), target)
        return cosine_margin_ce(logits, target, changed, s=self.s, reduction="none")


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
    r"""CosFace: the cosine of the true class must lead by a fixed amount.

    .. math:: \psi = \cos\theta_y - m

    Features and class weights lie on a sphere, and a constant is taken off the cosine of the true class before the softmax.
    Classes become compact and well separated in angle.

    When to use: features meant for comparison by angle (retrieval, verification), or a margin equal for all classes; on balanced
    data LDAM is this loss. It knows nothing of class counts.
    Expect: on balanced data accuracy near that of cross-entropy, and features that compare well by angle; on long
    tails no help by itself.
    Pitfalls: needs a cosine head, and its loss is not comparable in size to cross-entropy. Gradients are ``s`` times those of a
    linear head: a network without normalisation layers learns badly at ``optim.lr=0.1``, and well with ``optim.clip=1`` or a
    tenth of the rate; so for every loss on cosines. A large ``s`` with a large ``m`` can fail to start.

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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
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

    When to use: as CosFace; its margin is easier to read, in radians. It knows nothing of class counts; DBM does.
    Expect: as CosFace, on balanced data and on long tails.
    Pitfalls: ``m=0.5`` with a large ``s`` is hard to start from scratch on small images. Needs a cosine head; large gradients as
    in CosFace.

    Args:
        m: Added angle in radians.
        s: Scale; face recognition uses 64.
    """

    def __init__(
        self, num_classes: int, *, m: float = 0.5, s: float = 30.0, class_counts: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
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
        plain = (self.lam_start / (1 + 0.12 * settled(self.steps).to(cosine.dtype))).clamp_min(self.lam)
        return (plain * cosine + sphereface_cosine(cosine, self.m)) / (1 + plain)


def ldam_margins(class_counts: Tensor, max_m: float = 0.5) -> Tensor:
    r""":math:`m_k = m_{\max} (n_k/n_{\min})^{-1/4}`: the rarest class gets the largest margin.

    Example:
        >>> ldam_margins(torch.tensor([16.0, 1.0]))
        tensor([0.2500, 0.5000], dtype=torch.float64)

    Reference: Cao et al., *Learning imbalanced datasets with label-distribution-aware margin loss*, NeurIPS 2019,
    arXiv:1906.07413, eq. (13).
    """
    counts = torch.as_tensor(class_counts).double()
    return max_m * (counts / counts.min()).pow(-0.25)


@method(
    "ldam",
    kind="loss",
    family="cosine",
    paper="arXiv:1906.07413",
    needs=("class_counts", "cosine_head"),
    space={
        "max_m": Float(0.1, 0.8, default=0.5),
        "s": Float(8.0, 64.0, default=30.0, log=True),
        "form": Choice(("cosine", "delta"), default="cosine"),
        "coefficient": Float(0.01, 10.0, default=1.0, log=True),
    },
    reduces_to=("cross_entropy", {"max_m": 0.0, "s": 1.0}),
)
class LDAMLoss(CosineLoss):
    r"""LDAM: margins that grow as classes get rarer.

    .. math:: \psi = \cos\theta_y - m_y, \qquad m_k = m_{\max}\,(n_k/n_{\min})^{-1/4}

    The margin of each class minimises a generalisation bound for the balanced error: rare classes, known from few samples, need
    more room. Published, and best, with deferred re-weighting: ``drw`` with ``base="ldam"``.

    When to use: long tails, with ``drw``.
    Expect: on balanced data CosFace with margin ``max_m``, not cross-entropy; on long tails a small gain alone and a clear
    one under ``drw``.
    Pitfalls: without ``drw`` it gains little. Papers that compare margins write it as :math:`\Delta_{yj} = c\,\pi_y^{-1/4}` on
    the logits of a linear head (``form="delta"``), where the margin of a rare class easily dwarfs all logits; lower
    ``coefficient``.

    Args:
        max_m: Margin of the rarest class, in cosine.
        s: Scale.
        form: ``"cosine"`` (published, cosine head) or ``"delta"`` (linear head).
        coefficient: :math:`c` of the ``"delta"`` form.
    """

    class_counts: Tensor  # declared as a need, so it exists
    log_prior: Tensor
    margins: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        max_m: float = 0.5,
        s: float = 30.0,
        form: Literal["cosine", "delta"] = "cosine",
        coefficient: float = 1.0,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        self.form = one_of("form", form, ("cosine", "delta"))
        super().__init__(num_classes, class_counts=class_counts)
        self.s = number("s", s, low=0.0, open_low=True)
        max_m = number("max_m", max_m, low=0.0, high=2.0)
        coefficient = number("coefficient", coefficient, low=0.0)
        margins = ldam_margins(self.class_counts, max_m)
        if form == "delta":
            margins = coefficient * (-self.log_prior.double() / 4).exp()
        self.register_buffer("margins", margins.float(), persistent=False)

    @property
    def needs(self) -> frozenset[str]:
        """Without the cosine head in the ``"delta"`` form."""
        return self.method.needs - {"cosine_head"} if self.form == "delta" else self.method.needs

    @property
    def cosine_scale(self) -> float:
        return 1.0 if self.form == "delta" else self.s

    def target_cosine(self, cosine: Tensor, target: Tensor) -> Tensor:
        return cosine - self.margins.to(cosine.dtype)[target]

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.form == "cosine":
            return super().margin_logits(logits, target)
        return replace_at(logits, target, self.target_cosine(of_target(logits, target), target))

    def per_sample(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        if self.form == "cosine":
            return super().per_sample(logits, target, features, index, epoch)
        # Taking the margin off the target's logit is the same as adding it to all others.
        margins = replace_at(torch.zeros_like(logits), target, -self.margins.to(logits.dtype)[target])
        return margin_ce(logits, target, margins, reduction="none")
