"""LDAM: margins on cosines that grow as classes get rarer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor

from classgap.checks import number, one_of
from classgap.losses.batch import LossBatch
from classgap.losses.cosine_margin import CosineLoss, of_target
from classgap.losses.logit_margin import margin_ce, replace_at
from classgap.losses.options import LossOptions
from classgap.registry import Choice, Float, method


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

    The margin of each class minimises a generalisation bound for the balanced error: rare classes, of which few samples are
    known, need a larger margin. Published, and best, with deferred re-weighting: ``drw`` with ``base="ldam"``.

    When to use: long tails, with ``drw``.
    Expect: on balanced data CosFace with margin ``max_m``, not cross-entropy; on long tails a small gain alone and a clear
    one under ``drw``.
    Pitfalls: without ``drw`` it gains little. Papers that compare margins write it as :math:`\Delta_{yj} = c\,\pi_y^{-1/4}` on
    the logits of a linear head (``form="delta"``), where the margin of a rare class is easily larger than all logits; lower
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
        **options: Unpack[LossOptions],
    ) -> None:
        self.form = one_of("form", form, ("cosine", "delta"))
        super().__init__(num_classes, class_counts=class_counts, **options)
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

    def per_sample(self, batch: LossBatch) -> Tensor:
        if self.form == "cosine":
            return super().per_sample(batch)
        logits, target = batch.logits, batch.target
        # Taking the margin off the target's logit is the same as adding it to all others.
        margins = replace_at(torch.zeros_like(logits), target, -self.margins.to(logits.dtype)[target])
        return margin_ce(logits, target, margins, reduction="none")
