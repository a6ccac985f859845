"""DBM: angular margins by class frequency and by how hard a sample is.

Reference: Son et al., *Difficulty-aware balancing margin loss for long-tailed recognition*, AAAI 2025, arXiv:2412.15477.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from classgap.checks import InputError, flag, number, one_of
from classgap.losses.batch import LossBatch
from classgap.losses.class_weights import ClassWeightedLoss, WeightNorm
from classgap.losses.cosine_margin import add_angle, cosine_margin_ce, of_target
from classgap.losses.logit_margin import replace_at
from classgap.losses.options import LossOptions
from classgap.registry import Choice, Float, method

Variant = Literal["ce", "cb", "bs"]
Instance = Literal["hard", "all", "none"]
Reference = Literal["min", "last"]


def dbm_margins(class_counts: Tensor, k_m: float = 0.1, tau: float = 1.0, ref: Reference = "min") -> Tensor:
    r"""Class-wise margins :math:`m_C = K_m (n_k/n_{\min})^{-\tau}` in radians.

    Args:
        ref: The class whose margin is :math:`K_m`: the rarest, as in the paper, or the last, as in the authors' code.
    Example:
        >>> dbm_margins(torch.tensor([100.0, 50.0, 10.0]))
        tensor([0.0100, 0.0200, 0.1000], dtype=torch.float64)

    Reference: eq. (6).
    """
    counts = torch.as_tensor(class_counts).double()
    return k_m * (counts / (counts.min() if ref == "min" else counts[-1])).pow(-tau)


def dbm_cosine(
    cosines: Tensor,
    target: Tensor,
    class_margin: Tensor,
    *,
    instance: Instance = "hard",
    monotone: bool = True,
    detach_difficulty: bool = False,
) -> Tensor:
    r"""The target's cosine under the difficulty-aware margin.

    .. math:: \psi = \cos\big(\theta_y + m_C + [\arg\min_j\theta_j \ne y]\, m_C\, d_I\big), \qquad d_I = \tfrac12(1-\cos\theta_y)

    Args:
        class_margin: :math:`m_C` of each class, shape :math:`(K,)`.
        instance: Samples with the instance margin :math:`m_C d_I`: misclassified ones (``"hard"``), ``"all"`` or ``"none"``.
        monotone: Continue with :math:`-2-\cos(\cdot)` where the angle exceeds :math:`\pi`, so that a worse sample never has a
            smaller loss; ``False`` as in the authors' code.
        detach_difficulty: Treat :math:`d_I` as a constant.
    Shape:
        cosines :math:`(N, K)`, target :math:`(N,)`; returns :math:`(N,)`.
    Example:
        >>> dbm_cosine(torch.tensor([[0.0, 0.5]]), torch.tensor([0]), torch.tensor([0.2, 0.1])).arccos() - math.pi / 2
        tensor([0.3000])

    Reference: eq. (7)–(9).
    """
    cosine = of_target(cosines, target)
    margin = class_margin.to(cosine.dtype)[target]
    if instance != "none":
        difficulty = (1 - (cosine.detach() if detach_difficulty else cosine)) / 2
        if instance == "hard":
            difficulty = difficulty * (cosines.argmax(1) != target)
        margin = margin * (1 + difficulty)
    changed = add_angle(cosine, margin)
    if not monotone:
        return changed
    return torch.where(cosine < -margin.cos(), -2 - changed, changed)


@method(
    "dbm",
    kind="loss",
    family="cosine",
    paper="arXiv:2412.15477",
    needs=("class_counts", "cosine_head"),
    space={
        "k_m": Float(0.05, 0.4, default=0.1),
        "variant": Choice(get_args(Variant), default="ce"),
        "tau": Float(0.25, 1.0, default=1.0),
        "s": Float(8.0, 64.0, default=32.0, log=True),
    },
    reduces_to=("cross_entropy", {"k_m": 0.0, "s": 1.0}),
)
class DBMLoss(ClassWeightedLoss):
    r"""DBM: an angular margin for rare classes, larger still for samples the model gets wrong.

    .. math:: \psi = \cos\big(\theta_y + m_C + [\text{misclassified}]\, m_C\, d_I\big), \qquad
        m_C = K_m (n_y/n_{\min})^{-\tau}, \quad d_I = \tfrac12(1-\cos\theta_y)

    Every class gets a margin, which is larger for rarer classes; a misclassified sample gets an additional margin in proportion
    to its distance from its class. It replaces the classification term of other methods: variants with
    class-balanced weights and with balanced softmax, and ``drw`` with ``base="dbm"``.

    When to use: long tails, as ``variant="bs"`` or under ``drw``.
    Expect: on balanced data all classes get :math:`K_m`, and only the part for hard samples tells it from ArcFace with a small
    margin; on long tails little in its plain form, and as ``variant="bs"`` or under ``drw`` a little more than balanced
    softmax or ``drw`` alone.
    Pitfalls: needs a cosine head, with large gradients as in CosFace. At ``tau=1`` frequent classes get almost no margin. The
    authors' code refers margins to the *last* class (``ref="last"``): on label orders not sorted by frequency the rarest
    classes then get many times :math:`K_m`.

    Args:
        k_m: :math:`K_m`, margin of the rarest class in radians; the paper tunes 0.1 to 0.3.
        tau: How fast margins fall with class frequency.
        s: Scale; 32 for CIFAR, 30 for larger data in the paper.
        variant: ``"ce"``, ``"cb"`` (class-balanced weights) or ``"bs"`` (log-prior added to all scaled cosines).
        instance: Samples with the extra margin: ``"hard"``, ``"all"`` or ``"none"`` (class-wise margin only).
        ref: Class whose margin is ``k_m``: ``"min"`` (rarest) or ``"last"``.
        monotone: Keep the loss rising beyond an angle of :math:`\pi`.
        detach_difficulty: Treat :math:`d_I` as a constant.
        beta: Parameter of the class-balanced weights.
        weight_norm: What the mean of the ``"cb"`` variant divides by: ``"weights"`` (authors' code) or ``"batch"`` (equation).
    """

    class_counts: Tensor  # declared as a need, so it exists
    log_prior: Tensor
    margins: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        k_m: float = 0.1,
        tau: float = 1.0,
        s: float = 32.0,
        variant: Variant = "ce",
        instance: Instance = "hard",
        ref: Reference = "min",
        monotone: bool = True,
        detach_difficulty: bool = False,
        beta: float = 0.9999,
        weight_norm: WeightNorm = "weights",
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, beta=beta, weight_norm=weight_norm, class_counts=class_counts, **options)
        one_of("variant", variant, get_args(Variant))
        one_of("instance", instance, get_args(Instance))
        one_of("ref", ref, get_args(Reference))
        self.s = number("s", s, low=0.0, open_low=True)
        k_m, tau = number("k_m", k_m, low=0.0), number("tau", tau, low=0.0)
        self.variant: Variant = variant
        self.instance: Instance = instance
        self.monotone = flag("monotone", monotone)
        self.detach_difficulty = flag("detach_difficulty", detach_difficulty)
        margins = dbm_margins(self.class_counts, k_m, tau, ref)
        if float(margins.max()) > math.pi / 2:  # twice the margin, for the hardest samples, must stay below π
            raise InputError(
                f"k_m and ref must keep all margins below π/2, got {float(margins.max()):.3g} radians for class "
                f"{int(margins.argmax())}; lower k_m or use ref='min'"
            )
        self.register_buffer("margins", margins.float(), persistent=False)

    @property
    def cosine_scale(self) -> float:
        return self.s

    def class_weights(self, epoch: int | None) -> Tensor | None:
        return self.balanced_weights if self.variant == "cb" else None

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        """Scaled cosines with the margin at the true class, without the log-prior of the ``"bs"`` variant."""
        return self.s * replace_at(logits, target, self._target_cosine(logits, target))

    def unweighted(self, batch: LossBatch) -> Tensor:
        offset = self.log_prior if self.variant == "bs" else None
        changed = self._target_cosine(batch.logits, batch.target)
        return cosine_margin_ce(batch.logits, batch.target, changed, s=self.s, offset=offset, reduction="none")

    def _target_cosine(self, cosines: Tensor, target: Tensor) -> Tensor:
        return dbm_cosine(
            cosines,
            target,
            self.margins,
            instance=self.instance,
            monotone=self.monotone,
            detach_difficulty=self.detach_difficulty,
        )
