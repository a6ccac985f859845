"""Deferred re-weighting: a schedule around any loss of single samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from classgap.checks import InputError, number
from classgap.losses.base import ClassLoss, TrainingPass
from classgap.losses.class_weights import ClassWeightedLoss, WeightNorm
from classgap.losses.cross_entropy import CrossEntropyLoss
from classgap.registry import Choice, Float, get, method

# Their loss of a batch is the mean of per_sample, so weights can be put in between.
_MEANS = (ClassLoss.compute, CrossEntropyLoss.compute, ClassWeightedLoss.compute)


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
class DRWLoss(ClassWeightedLoss):
    r"""Deferred re-weighting: a loss as it is for most of the training, then with class-balanced weights.

    First the features are learnt from all samples alike; late, when the learning rate has dropped, rare classes get weights by
    effective number and boundaries move in their favour. The base may be any loss that is a mean over samples:
    ``base="ldam"`` is LDAM-DRW, ``base="dbm"`` DBM-DRW.

    When to use: long tails, with cross-entropy, LDAM or DBM; simple and strong.
    Expect: on balanced data it is the base loss, by default cross-entropy; on long tails a clear gain for rare
    classes with the features of plain training.
    Pitfalls: it counts epochs: pass ``epoch`` in every call and the run's length as ``epochs``, or it may never switch. The
    switch should fall where the learning rate is already low.

    Args:
        base: Name of the loss to wrap.
        base_params: Its parameters.
        start: When weights set in: a share of ``epochs`` if at most 1, otherwise the (0-based) epoch itself.
        epochs: Length of the run, for a ``start`` given as a share.
        beta: Parameter of the class-balanced weights.
        weight_norm: What the weighted mean divides by: ``"weights"`` (authors' code) or ``"batch"``.
    Example:
        >>> criterion = DRWLoss(2, base="logit_adjusted", base_params={"tau": 1.5}, epochs=10, class_counts=[90, 10])
        >>> criterion.start_at, criterion.class_weights(epoch=7), criterion.class_weights(epoch=8)
        (8, None, tensor([0.2007, 1.7993]))
    """

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
    ) -> None:
        super().__init__(num_classes, beta=beta, weight_norm=weight_norm, class_counts=class_counts)
        self.base: ClassLoss = get("loss", base).build(
            num_classes=num_classes, class_counts=class_counts, **dict(base_params or {})
        )
        _check_base(self.base)
        start = number("start", start, low=0.0)
        self.start_at = round(start * number("epochs", epochs, low=1)) if start <= 1 else int(start)

    @property
    def needs(self) -> frozenset[str]:
        """Its own and the base's."""
        return self.method.needs | self.base.needs if hasattr(self, "base") else self.method.needs

    @property
    def cosine_scale(self) -> float:
        return self.base.cosine_scale

    def class_weights(self, epoch: int | None) -> Tensor | None:
        return self.balanced_weights if epoch is not None and epoch >= self.start_at else None

    def unweighted(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> Tensor:
        return self.base.per_sample(logits, target, features, index, epoch)

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.base.margin_logits(logits, target)

    # Whatever the base does around a step it does here too.
    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        with super().frozen(), self.base.frozen():
            yield

    def update_from_labels(self, target: Tensor) -> None:
        self.base.update_from_labels(target)

    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        self.base.start_epoch(epoch, training_pass)

    def observe(self, inputs: Tensor) -> None:
        self.base.observe(inputs)

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        return self.base.scores(logits, features)

    def _check(
        self, logits: Tensor, target: Tensor, features: Tensor | None, index: Tensor | None, epoch: int | None
    ) -> None:
        super()._check(logits, target, features, index, epoch)
        self.base._check(logits, target, features, index, epoch)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, start_at={self.start_at}"


def _check_base(base: ClassLoss) -> None:
    weighted = isinstance(base, ClassWeightedLoss) and base.class_weights(None) is not None
    if weighted or type(base).compute not in _MEANS:
        why = "has class weights of its own" if weighted else "is a statistic of the whole batch"
        raise InputError(
            f"base of drw must be a plain mean over samples, but {base.name} {why}; choose e.g. cross_entropy, ldam or dbm"
        )
