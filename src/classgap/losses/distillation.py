"""Distillation: the probabilities of a trained network, or of several, as additional targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor, nn

from classgap.checks import number
from classgap.losses.batch import LossBatch
from classgap.losses.options import LossOptions
from classgap.losses.taught import TaughtLoss
from classgap.registry import Float, method


def soft_target_cross_entropy(scores: Tensor, log_probabilities: Tensor, *, temperature: float) -> Tensor:
    r"""Cross-entropy of tempered scores with the probabilities of a teacher, times :math:`T^2`.

    .. math:: -T^2 \sum_k q_k \log \operatorname{softmax}(z / T)_k

    The gradient of the cross-entropy falls as :math:`1 / T^2`; the factor keeps its weight beside other terms.

    Args:
        log_probabilities: Logarithms of the teacher's probabilities :math:`q` at the same temperature.
    Shape:
        scores and log_probabilities :math:`(N, K)`; returns :math:`(N,)`.
    Example:
        >>> soft_target_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.9, 0.1]]).log(), temperature=2.0)
        tensor([2.7726])
    """
    return -(log_probabilities.exp() * (scores / temperature).log_softmax(1)).sum(1) * temperature**2


@method(
    "distillation",
    kind="loss",
    family="distillation",
    paper="arXiv:1503.02531",
    needs=("teacher",),
    space={"temperature": Float(1.0, 20.0, default=4.0, log=True), "alpha": Float(0.0, 1.0, default=0.9)},
    reduces_to=("cross_entropy", {"alpha": 0.0}),
)
class DistillationLoss(TaughtLoss):
    r"""Knowledge distillation: cross-entropy with the tempered probabilities of a teacher, and with the labels.

    .. math:: L = -\alpha\,T^2 \sum_k q_k \log \operatorname{softmax}(z / T)_k + (1 - \alpha)\,\mathrm{CE}(z, y), \qquad
       q = \operatorname{softmax}(z^{\mathrm{teacher}} / T)

    The teacher is frozen and sees the same augmented inputs as the student. ``classgap train`` trains it first, with the same
    configuration and the loss ``base``, or takes it from ``teacher=FOLDER``, which may be a run of any network or an ensemble.
    With ``stage=ensemble_teacher`` it is an ensemble of runs, whose tempered probabilities are averaged.

    When to use: a better teacher exists (an ensemble, a larger network) and only one network of the present size can be used
    for prediction.
    Expect: on balanced data part of what the teacher is better by, also for hard classes; on long tails what the teacher
    prefers is learned, frequent classes included.
    Pitfalls: every step needs a forward pass of the teacher, and training it first costs as much as it does: compare with
    longer training. With ``alpha`` near 1 and a temperature well above 1 the loss is about :math:`T^2` times as large as
    cross-entropy; its gradient is not. A teacher that has memorised the training samples as they are adds little without
    augmentation. In evaluation mode the loss is that of the labels.

    Args:
        temperature: :math:`T`, of student and teacher alike; at test time it is 1.
        alpha: Weight of the teacher; that of the labels is :math:`1 - \alpha`. 0 gives the base loss.
        base: The loss for the labels.
        base_params: Its parameters.
    Reference: Hinton, Vinyals & Dean, *Distilling the knowledge in a neural network*, 2015, arXiv:1503.02531, sec. 2. The paper
    names no weights but "a considerably lower weight" for the labels; 4 and 0.9 are common in later work.
    """

    learns_from = "scores"

    def __init__(
        self,
        num_classes: int,
        *,
        temperature: float = 4.0,
        alpha: float = 0.9,
        base: str = "cross_entropy",
        base_params: Mapping[str, Any] | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(num_classes, base=base, base_params=base_params, class_counts=class_counts, **options)
        self.temperature = number("temperature", temperature, low=0.0, high=1e9, open_low=True)
        self.alpha = number("alpha", alpha, low=0.0, high=1.0)

    @staticmethod
    def teacher(params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The base: what the student would be trained with if it had no teacher."""
        return params.get("base") or "cross_entropy", dict(params.get("base_params") or {})

    def ask(self, teacher: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
        """Logarithms of the tempered probabilities; several networks have the method ``log_probabilities`` for that."""
        several: Callable[[Tensor, float], Tensor] | None = getattr(teacher, "log_probabilities", None)
        if several is not None:
            return (several(inputs, self.temperature),)
        return ((super().ask(teacher, inputs)[0].float() / self.temperature).log_softmax(1),)

    def compute(self, batch: LossBatch) -> Tensor:
        output = self.current_output(batch.logits)
        labels = self.base.loss(batch)
        if output is None:
            return labels
        scores = self.base.scores(batch.logits, batch.features)
        taught = soft_target_cross_entropy(scores, output[0].to(scores.dtype), temperature=self.temperature)
        soft = taught.sum() / max(1, len(taught))
        self.last = {"labels": labels.detach(), "teacher": soft.detach()}
        return self.alpha * soft + (1 - self.alpha) * labels

    compute_empty = compute
