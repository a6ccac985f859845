"""Losses whose classification term is itself a loss of the registry, e.g. DBM inside BCL, GML or NCL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from classgap.losses.base import ClassLoss, TrainingPass
from classgap.registry import get


class CompositeLoss(ClassLoss):
    """A loss with another one, ``base``, inside; the hooks of a training loop reach both.

    Args:
        base: Registered name of the inner loss.
        base_params: Its parameters.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        base: str,
        base_params: Mapping[str, Any] | None,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:
        self._needs: frozenset[str] = type(self).method.needs
        super().__init__(num_classes, class_counts=class_counts)
        self.base: ClassLoss = get("loss", base).build(
            num_classes=num_classes, class_counts=class_counts, **dict(base_params or {})
        )
        self._needs |= self.base.needs

    @property
    def needs(self) -> frozenset[str]:
        """Its own and the base's."""
        return self._needs

    def margin_logits(self, logits: Tensor, target: Tensor) -> Tensor:
        """The base's."""
        return self.base.margin_logits(logits, target)

    @property
    def base_scale(self) -> float:
        """What the base multiplies cosines by; 1 for one on plain logits."""
        return self.base.cosine_scale

    @property
    def cosine_scale(self) -> float:
        """The base's."""
        return self.base_scale

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        with super().frozen(), self.base.frozen():
            yield

    def start_epoch(self, epoch: int, training_pass: TrainingPass) -> None:
        self.base.start_epoch(epoch, training_pass)

    def observe(self, inputs: Tensor) -> None:
        self.base.observe(inputs)

    def scores(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """The base's."""
        return self.base.scores(logits, features)
