"""FairDRO over classes: the worst class distribution in a ball around the uniform one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.checks import InputError, flag, number, one_of
from classgap.losses.base import TrainingPass
from classgap.losses.class_robust import ClassRobustLoss, class_loss_sums, losses_by_label
from classgap.losses.options import LossOptions
from classgap.registry import Choice, Float, method


def chi_square_weights(losses: Tensor, rho: float, *, project: bool = False) -> Tensor:
    r"""The worst class distribution in a :math:`\chi^2` ball around the uniform one.

    .. math:: q^* = \arg\max_q \sum_k q_k \ell_k \quad\text{s.t.}\quad \sum_k q_k = 1,\ \tfrac K2\|q - \tfrac1K\|^2 \le \rho

    Without the constraint :math:`q \ge 0` the maximum is :math:`\bar\ell + \sqrt{2\rho}\,\mathrm{std}(\ell)`.

    Args:
        rho: Radius :math:`\rho`; 0 gives the uniform distribution.
        project: Also require :math:`q \ge 0`; otherwise a large radius makes weights of good classes negative.
    Shape:
        losses :math:`(K,)`; returns :math:`(K,)`.
    Example:
        >>> chi_square_weights(torch.tensor([0.0, 1.0]), 0.125)
        tensor([0.2500, 0.7500])
        >>> chi_square_weights(torch.tensor([0.0, 1.0, 5.0]), 10.0, project=True)
        tensor([0., 0., 1.])

    Reference: Jung et al., *Re-weighting based group fairness regularization via classwise robust optimization*, ICLR 2023,
    arXiv:2303.00442, eq. (9).
    """
    classes = losses.shape[0]
    if not project:
        centred = losses - losses.mean()
        norm = centred.norm()
        return 1 / classes + math.sqrt(2 * rho / classes) * centred / torch.where(norm > 0, norm, 1)
    # The support consists of the largest losses; for each size m the solution on it is closed, and the largest m whose
    # smallest entry is not negative is the right one. Sums run over losses shifted by the largest, to keep digits.
    ranked, order = losses.sort(descending=True)
    ranked = ranked - ranked[0]
    m = torch.arange(1, classes + 1, device=losses.device, dtype=losses.dtype)
    mean = ranked.cumsum(0) / m
    scatter = (ranked.square().cumsum(0) - m * mean.square()).clamp_min(0)
    radius = ((1 + 2 * rho) / classes - 1 / m).clamp_min(0)  # squared distance left from the centre of that face
    slope = torch.where(scatter > 0, (radius / torch.where(scatter > 0, scatter, 1)).sqrt(), 0)
    feasible = 1 / m + slope * (ranked - mean) >= 0
    at = torch.where(feasible, m, 0).argmax(0, keepdim=True)
    size, centre, slope = (values.gather(0, at) for values in (m, mean, slope))
    weights = 1 / size + slope * (ranked - centre)
    weights = torch.where(m <= size, weights.clamp_min(0), 0)
    return torch.empty_like(weights).scatter(0, order, weights)


@method(
    "fair_dro",
    kind="loss",
    family="robust",
    paper="arXiv:2303.00442",
    space={"rho": Float(0.05, 5.0, default=0.5, log=True), "update": Choice(("step", "epoch"), default="step")},
)
class FairDROLoss(ClassRobustLoss):
    r"""FairDRO over classes: the mean of the class losses plus their spread.

    .. math:: L = \sum_k q_k \ell_k, \qquad q = \arg\max_{q\ge0,\ \sum_k q_k = 1} \sum_k q_k \ell_k
        \quad\text{s.t.}\quad \tfrac K2\|q - \tfrac1K\|^2 \le \rho

    Classes are weighted by how far their loss is above the average, within a :math:`\chi^2` ball of radius :math:`\rho`; group
    DRO, by contrast, follows the worst class alone. While no weight is 0,
    :math:`L = \bar\ell + \sqrt{2\rho}\,\mathrm{std}(\ell)`.

    What is published: one ball over the sensitive groups *within each label*; its weights in closed form without
    :math:`q \ge 0` (``project=False``); class losses measured on the whole training set after each epoch, and weights that move
    :math:`1 - e/E` of the way (``update="epoch"``); radii of 0.3 to 5 per data set, 0.5 as default of the code. MR² puts the
    class in the place of the group and gives no radius. Weights within each label would then be constant, so there is one ball
    over all classes here, as in the authors' ablation ``fairdro_wo_classwise``. Ours are the default ``update="step"``, the
    projection, and the scaling of the loss by :math:`K` over the number of classes in the batch (with ``"step"``, until every
    class was seen, at most to weights with the sum 1).

    When to use: balanced data with uneven class accuracy; on long tails it also evens out classes, since class means count
    equally. Pair it with a class-balanced sampler.
    Expect: on balanced data a milder form of group DRO; on long tails close to weighting classes equally.
    Pitfalls: at :math:`\rho = 0.5` a tenth to a third of the classes, those with the smallest losses, have weight 0 and are not
    trained for the moment. With ``project=False`` a tenth to a fifth have negative weights instead, for any number of classes,
    and training *raises* their loss; only :math:`\rho \le 1/(2(K-1))` excludes that. As with all robust weights, there is no
    effect once all training losses are near 0.

    Args:
        rho: Radius :math:`\rho` of the ball; 0 gives the class-balanced mean.
        project: Keep weights non-negative, so that they are the worst distribution in the ball. ``False`` is the published
            closed form.
        update: ``"step"`` keeps a running loss of each class and recomputes the weights at each step; ``"epoch"``, as published,
            measures class losses on the whole training set before each epoch (the training loop must call
            ``criterion.start_epoch``) and moves the weights :math:`1 - e/E` of the way.
        decay: Share of a class's running loss kept when it appears, for ``"step"``.
        epochs: Length :math:`E` of the run, for ``"epoch"``.
    Reference: Jung et al., ICLR 2023; github.com/sangwon-jung94/FairDRO.
    """

    q: Tensor
    class_loss: Tensor
    seen: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        rho: float = 0.5,
        project: bool = True,
        update: Literal["step", "epoch"] = "step",
        decay: float = 0.9,
        epochs: int = 200,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.rho = number("rho", rho, low=0.0)
        self.project = flag("project", project)
        self.update = one_of("update", update, ("step", "epoch"))
        self.decay = number("decay", decay, low=0.0, high=1.0)
        self.epochs = number("epochs", epochs, low=1)
        self._measured = False
        self.register_load_state_dict_post_hook(_continued)  # type: ignore[no-untyped-call]
        self.register_buffer("q", torch.full((num_classes,), 1 / num_classes))
        self.register_buffer("class_loss", torch.zeros(num_classes))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.bool))

    def mixture(self, means: Tensor, present: Tensor) -> Tensor:
        if self.updating and self.update == "step":
            self._follow(means.to(self.class_loss.dtype), present)
        elif self.updating and not self._measured:
            raise InputError(
                "fair_dro with update='epoch' needs criterion.start_epoch(epoch, training_pass) before each epoch; "
                "or use update='step'"
            )
        # Scaled up for classes missing from the batch; dividing by the sum of the present weights could divide by 0.
        scale = self.num_classes / present.sum().clamp_min(1)
        if self.update == "step":
            # Until every class was seen, the weights lie on those that were, many of them in this batch: at most to a sum of 1.
            limit = 1 / (self.q * present).sum().clamp_min(1e-30)
            scale = torch.where(self.seen.all(), scale, torch.minimum(scale, limit))
        return self.q * scale

    def _follow(self, means: Tensor, present: Tensor) -> None:
        present = present & torch.isfinite(means)
        moved = torch.where(self.seen, torch.lerp(means, self.class_loss, self.decay), means)
        self.class_loss.copy_(torch.where(present, moved, self.class_loss))
        self.seen.logical_or_(present)
        self.q.copy_(self._worst_weights())

    def _worst_weights(self) -> Tensor:
        # A class without a loss yet gets the average loss, so that its weight does not change.
        average = (self.class_loss * self.seen).sum() / self.seen.sum().clamp_min(1)
        losses = torch.where(self.seen, self.class_loss, average)
        return chi_square_weights(losses, self.rho, project=self.project)

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        """Measure class losses on the training set and move the weights; at epoch 0 they stay uniform."""
        if self.update != "epoch":
            return
        self._measured = True
        if epoch == 0:
            return
        sums = counts = torch.zeros_like(self.class_loss)
        for batch in training_pass():
            losses = losses_by_label(batch.logits.float(), batch.target)
            batch_sums, batch_counts = class_loss_sums(*losses, self.num_classes)
            sums, counts = sums + batch_sums, counts + batch_counts
        sums, counts = all_reduce_sum(sums, counts)
        self.seen.copy_((counts > 0) & torch.isfinite(sums))
        self.class_loss.copy_(torch.where(self.seen, sums / torch.where(self.seen, counts, 1), 0))
        self.q.lerp_(self._worst_weights(), max(0.0, 1 - (epoch - 1) / self.epochs))


def _continued(criterion: FairDROLoss, _: object) -> None:
    """A run that resumes in the middle of an epoch has measured the class losses already."""
    criterion._measured = True
