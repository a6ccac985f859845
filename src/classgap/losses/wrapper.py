"""Losses with another loss inside, e.g. DRW around LDAM, or BCL, GML and NCL with DBM as their classification term."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from types import NoneType
from typing import Any, ClassVar

from torch import Tensor

from classgap.checks import InputError, shown
from classgap.losses.base import ClassLoss, TrainingPass
from classgap.losses.batch import LossBatch
from classgap.registry import get


class WrapperLoss(ClassLoss):
    """Base of losses with another loss, ``base``, inside.

    The needs of the base are added to those of the wrapper, and whatever a training loop asks of a loss besides its value
    (``start_epoch``, ``observe``, ``leave_out``, ``scores``, ``frozen``, ``cosine_scale``, ``margin_logits``) reaches the base. A
    subclass uses the base in one of two ways:

    - ``self.base.loss(part)`` with a part of the batch, or a changed batch: the base checks it and writes its own state.
    - ``self.base.per_sample(batch)`` with the batch itself, which the wrapper has checked. The class then sets
      ``shares_batch = True``, and the base takes part in the checks and sees the labels.

    Args:
        base: Registered name of the inner loss.
        base_params: Its parameters.
        options: Further arguments of :class:`ClassLoss`, or of the next class among the bases.
    """

    shares_batch: ClassVar[bool] = False
    """Whether the base is computed from the batch of the wrapper by ``self.base.per_sample``."""

    def __init__(
        self,
        num_classes: int,
        *,
        base: str,
        base_params: Mapping[str, Any] | None,
        class_counts: Sequence[float] | Tensor | None = None,
        **options: Any,
    ) -> None:
        self._needs: frozenset[str] = type(self).method.needs
        super().__init__(num_classes, class_counts=class_counts, **options)
        if not isinstance(base_params, (Mapping, NoneType)):
            raise InputError(f"base_params must be a mapping from parameter to value, got {shown(base_params)}")
        chosen = get("loss", base)
        for name in ClassLoss.shared_options:
            if name in (base_params or {}) and name not in signature(chosen.cls).parameters:
                raise InputError(f"{name} cannot be in base_params; give it to {self.name} itself, which applies it")
        self.base: ClassLoss = chosen.build(
            num_classes=num_classes, class_counts=class_counts, **dict(base_params or {})
        )
        self.base.ignore_index = None  # the wrapper has left such samples out
        self._needs |= self.base.needs

    @property
    def needs(self) -> frozenset[str]:
        """What the wrapper needs and what its base needs."""
        return self._needs

    @property
    def ranks_by_output(self) -> bool:
        """Whether the base does, and the wrapper changes nothing about it."""
        return type(self).scores is WrapperLoss.scores and self.base.ranks_by_output

    @property
    def cosine_scale(self) -> float:
        """The scale of the base."""
        return self.base.cosine_scale

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        """The logits with the margin of the base."""
        return self.base.margin_logits(logits, target)

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """The scores of the base."""
        return self.base.scores(logits, features)

    @contextlib.contextmanager
    def frozen(self, *, across_ranks: bool = False) -> Iterator[None]:
        with super().frozen(across_ranks=across_ranks), self.base.frozen(across_ranks=across_ranks):
            yield

    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        self.base.start_epoch(epoch, training_pass)

    def observe(self, inputs: Tensor) -> None:
        self.base.observe(inputs)

    def leave_out(self, keep: Tensor) -> None:
        self.base.leave_out(keep)

    def check(self, batch: LossBatch) -> None:
        super().check(batch)
        if self.shares_batch:
            self.base.check(batch)

    def update_from_labels(self, target: Tensor) -> None:
        super().update_from_labels(target)
        if self.shares_batch:
            self.base.update_from_labels(target)
