"""Learning from failure: a biased network finds the samples that the final network should weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from classgap.batchstats import gather_rows
from classgap.checks import InputError, number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.options import LossOptions
from classgap.losses.tensor_checks import check_state_size
from classgap.registry import Float, method


def generalized_cross_entropy_weight(logits: Tensor, target: Tensor, q: float) -> Tensor:
    r""":math:`q\,p_y^q`, the weight that turns the gradient of cross-entropy into that of generalised cross-entropy (times q)."""
    p = F.log_softmax(logits.detach(), 1).gather(1, target[:, None]).squeeze(1).exp()
    return q * p**q


@method(
    "lff",
    kind="loss",
    family="experts",
    paper="arXiv:2007.02561",
    needs=("index", "class_counts", "experts"),
    space={"q": Float(0.1, 0.9, default=0.7), "decay": Float(0.3, 0.95, default=0.7)},
)
class LearningFromFailureLoss(ClassLoss):
    r"""Learning from failure: a network that learns easy samples first determines the sample weights of a second one.

    The first expert is trained with generalised cross-entropy, which gives more weight to samples it already classifies
    correctly. The second is trained with weights :math:`W_i = \tilde\ell^b_i / (\tilde\ell^b_i + \tilde\ell^d_i)`, from
    running losses of both experts on each sample divided by the largest of the class. Classes are ranked by the second.

    When to use: a shortcut in the data separates easy from hard samples of the same class, and it is not annotated.
    Expect: on balanced data nothing unless a shortcut makes some samples of a class easy; on long tails rare classes
    gain weight as hard samples do, less reliably than by their counts.
    Pitfalls: two networks; weights average about one half, which halves the effective learning rate; needs a stable sample
    index and two numbers of state for each training sample; samples with wrong labels look like hard samples.

    Args:
        q: Exponent of the generalised cross-entropy.
        decay: Share of the old loss kept when a sample comes again.
        class_counts: Training counts; their sum is the number of samples indexed.
    Shape:
        logits :math:`(N, 2, K)`: first the biased, then the final expert.
    Reference: Nam et al., *Learning from failure*, NeurIPS 2020.
    """

    stop_gradient = True

    sample_loss: Tensor
    sample_label: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        q: float = 0.7,
        decay: float = 0.7,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, class_counts=class_counts, **options)
        self.q = number("q", q, low=0.0, high=1.0, open_low=True)
        self.decay = number("decay", decay, low=0.0, high=1.0)
        self.experts = 2
        assert self.class_counts is not None
        self.num_samples = round(float(self.class_counts.sum(dtype=torch.float64)))
        check_state_size(4 * self.num_samples, f"two losses and the label of {self.num_samples} samples", self.name)
        self.register_buffer("sample_loss", torch.zeros(2, self.num_samples))
        # Classes 0 … K−1; K for samples not met yet.
        self.register_buffer("sample_label", torch.full((self.num_samples,), num_classes))

    def compute(self, batch: LossBatch) -> Tensor:
        logits, labels, index = batch.logits, batch.labels, batch.index
        assert index is not None  # declared in needs
        self._check_index(index)
        target = batch.target if batch.target.dim() == 1 else batch.target.to(logits.dtype)
        losses = torch.stack([F.cross_entropy(logits[:, m], target, reduction="none") for m in range(2)])
        if self.updating:
            self._store_losses(losses.detach(), labels, index)
        weight = self._difficulty(labels, index).to(losses.dtype)
        biased = generalized_cross_entropy_weight(logits[:, 0], labels, self.q) * losses[0]
        total = biased + weight * losses[1]
        self.last = {"biased": losses[0].detach().mean(), "weight": weight.mean()}
        return total.sum() / max(1, len(labels))

    compute_empty = compute

    @torch.no_grad()
    def _store_losses(self, losses: Tensor, labels: Tensor, index: Tensor) -> None:
        values, labels, index = gather_rows(losses.T).T, gather_rows(labels), gather_rows(index)
        values = values.to(self.sample_loss.dtype)
        old = self.sample_loss[:, index]
        before = self.sample_label[index]
        finite = torch.isfinite(values).all(0)
        new = torch.where(before < self.num_classes, torch.lerp(values, old, self.decay), values)
        self.sample_loss[:, index] = torch.where(finite, new, old)
        self.sample_label[index] = torch.where(finite, labels, before)

    def _difficulty(self, labels: Tensor, index: Tensor) -> Tensor:
        r""":math:`W_i`; one half for a sample without history."""
        slots = self.sample_label.expand(2, -1)
        largest = self.sample_loss.new_zeros(2, self.num_classes + 1)
        largest = largest.scatter_reduce(1, slots, self.sample_loss, "amax")
        relative = self.sample_loss[:, index] / largest[:, labels].clamp_min(1e-12)
        weight = relative[0] / (relative.sum(0) + 1e-8)
        return torch.where(self.sample_label[index] < self.num_classes, weight, 0.5)

    def _check_index(self, index: Tensor) -> None:
        if torch.compiler.is_compiling() or index.device.type != "cpu" or not len(index):
            return
        low, high = (int(v) for v in index.aminmax())
        if low < 0 or high >= self.num_samples:
            raise InputError(
                f"index must hold positions in the training set, in [0, {self.num_samples}) by class_counts, "
                f"got values from {low} to {high}"
            )

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """The logits of the second expert."""
        return logits[:, 1]
