"""Group DRO with classes as groups: the weight of a class grows exponentially with its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from classgap.checks import InputError, flag, number
from classgap.losses.class_robust import ClassRobustLoss
from classgap.losses.options import LossOptions
from classgap.registry import Float, method


@method(
    "group_dro",
    kind="loss",
    family="robust",
    paper="arXiv:1911.08731",
    space={"eta": Float(1e-3, 1.0, default=0.01, log=True)},
)
class GroupDROLoss(ClassRobustLoss):
    r"""Group DRO with classes as groups: weights of classes grow exponentially with their loss.

    .. math:: q_k \leftarrow q_k e^{\eta\ell_k} \big/ \textstyle\sum_j q_j e^{\eta\ell_j}, \qquad L = \sum_k q_k \ell_k

    Each step raises the weights of the classes with a large loss in the batch; this minimises the largest class loss. The weights
    depend on all steps so far.

    When to use: the worst class is what counts, classes are few, and the model cannot fit everything. Pair it with a
    class-balanced sampler.
    Expect: on balanced data a better worst class only while training losses differ, at a cost overall; on long tails
    the same, with more noise from rare classes.
    Pitfalls: once training losses vanish, so does its effect: regularise strongly. A class with wrong labels, or one that
    cannot be learned, gets all the weight. One sample of a rare class can carry most of a batch, so training diverges at
    learning rates that work with cross-entropy: lower the rate, or balance the batches. In the published form a class absent
    from the batch counts as loss 0, so that its weight falls and the size of the loss follows the number of classes present,
    which ruins the tail of long-tailed data; here, by default, only present classes are compared with each other.

    Args:
        eta: Step size of the weights; 0.01 is the default of the authors' code.
        adjustment: :math:`C` of the published generalisation adjustment: weights follow :math:`\ell_k + C/\sqrt{n_k}`, which
            raises rare classes; needs ``class_counts``.
        strict: Treat absent classes as published.
    Reference: Sagawa et al., *Distributionally robust neural networks for group shifts*, ICLR 2020;
    github.com/kohpangwei/group_DRO.
    """

    log_q: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        eta: float = 0.01,
        adjustment: float = 0.0,
        strict: bool = False,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.eta = number("eta", eta, low=0.0)
        self.adjustment = number("adjustment", adjustment, low=0.0)
        if adjustment and class_counts is None:
            raise InputError("adjustment needs class_counts, the number of training samples of each class")
        self.strict = flag("strict", strict)
        self.register_buffer("log_q", torch.full((num_classes,), -math.log(num_classes)))

    @property
    def q(self) -> Tensor:
        """:math:`(K,)` current class weights, with sum 1."""
        return self.log_q.exp()

    def mixture(self, means: Tensor, present: Tensor) -> Tensor:
        if self.updating:
            self._raise_weights(means.to(self.log_q.dtype), present)
        if self.strict:
            return self.q
        # A softmax over the classes present: their weights, divided by the sum.
        return self.log_q.masked_fill(~present, -math.inf).softmax(0)

    def _raise_weights(self, means: Tensor, present: Tensor) -> None:
        present = present & torch.isfinite(means)
        gain = self.eta * torch.where(present, means, 0)
        if self.adjustment and self.class_counts is not None:
            gain = gain + self.eta * self.adjustment * self.class_counts.rsqrt()
        if not self.strict:
            # The classes present share among themselves what they had together, so being absent costs nothing.
            among = self.log_q.masked_fill(~present, -math.inf)
            gain = gain + among.logsumexp(0) - (among + gain).logsumexp(0)
            gain = torch.where(present, gain, 0)
        raised = (self.log_q + gain).log_softmax(0)
        self.log_q.copy_(torch.where(torch.isfinite(raised).all(), raised, self.log_q))  # a huge eta may overflow
