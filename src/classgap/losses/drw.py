"""Deferred re-weighting: a schedule around any loss of single samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor

from classgap.checks import InputError, number
from classgap.losses.base import ClassLoss
from classgap.losses.batch import LossBatch
from classgap.losses.class_weights import ClassWeightedLoss, WeightNorm
from classgap.losses.options import LossOptions
from classgap.losses.wrapper import WrapperLoss
from classgap.registry import Choice, Float, method


@method(
    "drw",
    kind="loss",
    family="schedule",
    paper="arXiv:1906.07413",
    needs=("class_counts", "epoch"),
    space={
        "base": Choice(("cross_entropy", "ldam", "dbm"), default="cross_entropy"),
        "start": Float(0.5, 1.0, default=0.8),
        "beta": Choice((0.9, 0.99, 0.999, 0.9999), default=0.9999),
    },
    reduces_to=("cross_entropy", {"start": 1.0}),
)
class DRWLoss(WrapperLoss, ClassWeightedLoss):
    r"""Deferred re-weighting: a loss as it is for most of the training, then with class-balanced weights.

    First the features are learned with equal weights for all samples. Late in training, when the learning rate has dropped,
    class weights by effective number are switched on, and the boundaries move in favour of rare classes. The base may be any
    loss that is a mean over samples: ``base="ldam"`` is LDAM-DRW, ``base="dbm"`` DBM-DRW.

    When to use: long tails, with cross-entropy, LDAM or DBM; simple and strong.
    Expect: on balanced data it is the base loss, by default cross-entropy; on long tails a clear gain for rare
    classes with the features of plain training.
    Pitfalls: it counts epochs: pass ``epoch`` in every call and the run's length as ``epochs``, or it may never switch. The
    switch should fall where the learning rate is already low.

    Args:
        base: Name of the loss to wrap.
        base_params: Its parameters.
        start: When the weights are switched on: a share of ``epochs`` if at most 1, otherwise the (0-based) epoch itself.
        epochs: Length of the run, for a ``start`` given as a share.
        beta: Parameter of the class-balanced weights.
        weight_norm: What the weighted mean divides by: ``"weights"`` (authors' code) or ``"batch"``.
    Example:
        >>> criterion = DRWLoss(2, base="logit_adjusted", base_params={"tau": 1.5}, epochs=10, class_counts=[90, 10])
        >>> criterion.start_at, criterion.class_weights(epoch=7), criterion.class_weights(epoch=8)
        (8, None, tensor([0.2007, 1.7993]))
    """

    shares_batch = True

    def __init__(
        self,
        num_classes: int,
        *,
        base: str = "cross_entropy",
        base_params: Mapping[str, Any] | None = None,
        start: float = 0.8,
        epochs: int = 200,
        beta: float = 0.9999,
        weight_norm: WeightNorm = "weights",
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(
            num_classes,
            base=base,
            base_params=base_params,
            class_counts=class_counts,
            beta=beta,
            weight_norm=weight_norm,
            **options,
        )
        _check_base(self.base)
        start = number("start", start, low=0.0)
        self.start_at = round(start * number("epochs", epochs, low=1)) if start <= 1 else int(start)

    def class_weights(self, epoch: int | None) -> Tensor | None:
        return self.balanced_weights if epoch is not None and epoch >= self.start_at else None

    def unweighted(self, batch: LossBatch) -> Tensor:
        return self.base.per_sample(batch)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, start_at={self.start_at}"


def _check_base(base: ClassLoss) -> None:
    if not base.is_mean_of_samples:
        weighted = isinstance(base, ClassWeightedLoss)
        why = "has class weights of its own" if weighted else "is a statistic of the whole batch"
        raise InputError(
            f"base of drw must be a plain mean over samples, but {base.name} {why}; choose e.g. cross_entropy, ldam or dbm"
        )
