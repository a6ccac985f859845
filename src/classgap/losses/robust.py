"""Robust optimisation with classes as groups: the worst classes weigh most, by their current loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.batchstats import all_reduce_sum
from classgap.checks import InputError, number, one_of
from classgap.losses.base import ClassLoss, TrainingPass
from classgap.losses.state import settled
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


class ClassRobustLoss(ClassLoss):
    r"""Base of losses :math:`\sum_k v_k \ell_k` over class means :math:`\ell_k` of the cross-entropy in a batch.

    A subclass implements :meth:`mixture`. Class means are those of the batch of all ranks.
    """

    def mixture(self, means: Tensor, present: Tensor) -> Tensor:
        """:math:`(K,)` coefficients for the class means, 0 for classes that are absent; may write state."""
        raise NotImplementedError(f"{type(self).__name__} must implement mixture")

    def compute(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        losses, labels, shares = _losses_by_label(logits, target)
        sums, counts = _class_sums(losses, labels, shares, self.num_classes)
        if self.training:  # only then do all ranks call
            sums, counts = all_reduce_sum(sums, counts)
        present = counts > 0
        counts = torch.where(present, counts, 1)
        mixture = settled(self.mixture(sums / counts, present)).to(losses.dtype)
        coefficients = torch.where(present, mixture, 0)
        # Written as a mean over samples, whose average over ranks is the loss of the whole batch.
        weights = coefficients / counts * (counts * present).sum()
        return (weights[labels] * shares * losses).sum() / max(1, logits.shape[0])

    compute_empty = compute  # a rank without samples still takes part in the collectives


def _losses_by_label(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy for each label a row may have, the labels, and the share of the row each has."""
    if target.dim() == 1:
        losses = F.cross_entropy(logits, target, reduction="none")
        return losses, target, torch.ones_like(losses)
    rows, labels = target.nonzero(as_tuple=True)
    losses = F.cross_entropy(logits[rows], labels, reduction="none")
    return losses, labels, target[rows, labels].to(losses.dtype)


def _class_sums(losses: Tensor, labels: Tensor, shares: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    zeros = losses.new_zeros(num_classes)
    return zeros.index_add(0, labels, losses.detach() * shares), zeros.index_add(0, labels, shares)


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

    Each step raises the weight of the classes that do badly in the batch, and so plays the game of minimising the worst class
    loss. Weights remember all of training.

    When to use: the worst class is what counts, classes are few, and the model cannot fit everything. Pair it with a
    class-balanced sampler.
    Expect: on balanced data a better worst class only while training losses differ, at a cost overall; on long tails
    the same, with more noise from rare classes.
    Pitfalls: once training losses vanish, so does its effect: regularise strongly. A mislabelled or impossible class takes all
    weight. One sample of a rare class can carry most of a batch, so it diverges at learning rates cross-entropy bears: lower
    the rate, or balance the batches. In the published form a class absent from the batch counts as loss 0, so that its weight
    falls and the size of the loss follows the number of classes present, which ruins the tail of long-tailed data; here, by
    default, only present classes are compared with each other.

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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.eta = number("eta", eta, low=0.0)
        self.adjustment = number("adjustment", adjustment, low=0.0)
        if adjustment and class_counts is None:
            raise InputError("adjustment needs class_counts, the number of training samples of each class")
        self.strict = strict
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
        gain = self.eta * means
        if self.adjustment and self.class_counts is not None:
            gain = gain + self.eta * self.adjustment * self.class_counts.rsqrt()
        if not self.strict:
            # The classes present share among themselves what they had together, so being absent costs nothing.
            among = self.log_q.masked_fill(~present, -math.inf)
            gain = gain + among.logsumexp(0) - (among + gain).logsumexp(0)
            gain = torch.where(present, gain, 0)
        self.log_q.copy_((self.log_q + gain).log_softmax(0))


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

    Classes weigh by how far their loss is above the average, within a :math:`\chi^2` ball of radius :math:`\rho`: a milder answer
    than group DRO, which follows the worst class alone. While no weight is 0,
    :math:`L = \bar\ell + \sqrt{2\rho}\,\mathrm{std}(\ell)`.

    What is published: one ball over the sensitive groups *within each label*; its weights in closed form without
    :math:`q \ge 0` (``project=False``); class losses measured on the whole training set after each epoch, and weights that move
    :math:`1 - e/E` of the way (``update="epoch"``); radii of 0.3 to 5 per data set, 0.5 as default of the code. MR² puts the
    class in the place of the group and gives no radius. Weights within each label would then be constant, so there is one ball
    over all classes here, as in the authors' ablation ``fairdro_wo_classwise``. Ours are the default ``update="step"``, the
    projection, and the scaling of the loss where classes are missing from a batch.

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
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts)
        self.rho = number("rho", rho, low=0.0)
        self.project = project
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
        # Classes missing from the batch are made up for by the present ones; dividing by their weights could divide by 0.
        return self.q * (self.num_classes / present.sum().clamp_min(1))

    def _follow(self, means: Tensor, present: Tensor) -> None:
        moved = torch.where(self.seen, torch.lerp(means, self.class_loss, self.decay), means)
        self.class_loss.copy_(torch.where(present, moved, self.class_loss))
        self.seen.logical_or_(present)
        self.q.copy_(self._worst_weights())

    def _worst_weights(self) -> Tensor:
        # A class not seen yet is taken as average: it neither gains nor loses weight.
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
        for logits, target, _, _ in training_pass():
            batch = _class_sums(*_losses_by_label(logits.float(), target), self.num_classes)
            sums, counts = sums + batch[0], counts + batch[1]
        sums, counts = all_reduce_sum(sums, counts)
        self.seen.copy_(counts > 0)
        self.class_loss.copy_(sums / torch.where(self.seen, counts, 1))
        self.q.lerp_(self._worst_weights(), max(0.0, 1 - (epoch - 1) / self.epochs))


def _continued(criterion: FairDROLoss, _: object) -> None:
    """A run that goes on in the middle of an epoch has been measured before."""
    criterion._measured = True
