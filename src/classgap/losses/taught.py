"""Losses that learn from a trained network, the teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from classgap.checks import InputError
from classgap.losses.wrapper import WrapperLoss


class TaughtLoss(WrapperLoss):
    """Base of losses with a teacher: a frozen network that sees the inputs of every batch, and is no part of the state.

    A training loop calls :meth:`bind_teacher` once and :meth:`observe` before each forward pass.
    """

    learns_from: ClassVar[Literal["features", "scores"]] = "features"
    """``"features"``: the teacher must be one network, whose features are used. ``"scores"``: what classes are ranked by is
    enough, so several networks that decide together may be the teacher."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._teacher: list[nn.Module] = []  # in a list, so that its weights are not part of the state of the loss
        self._teacher_output: tuple[Tensor, ...] | None = None

    @staticmethod
    def teacher(params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and parameters of the loss a teacher is trained with, given those of this one."""
        raise NotImplementedError

    def bind_teacher(self, teacher: nn.Module) -> None:
        """Use this trained network, which must return ``(logits, features)`` (see :class:`classgap.heads.FeatureTap`)."""
        self._teacher = [teacher.eval().requires_grad_(False)]

    @torch.no_grad()
    def observe(self, inputs: Tensor) -> None:
        """Compute the output of the teacher for the inputs of the batch."""
        if not self._teacher:
            raise InputError(
                f"{self.name} needs a trained teacher: call criterion.bind_teacher(FeatureTap(model)) first"
            )
        # In a run in double or half precision the teacher, which may come from another run, can have another type.
        weight = next(self._teacher[0].parameters(), None)
        if weight is not None and weight.is_floating_point() and inputs.is_floating_point():
            inputs = inputs.to(weight.dtype)
        self._teacher_output = self.ask(self._teacher[0].eval(), inputs)

    def ask(self, teacher: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
        """What this loss takes from the teacher, one row per sample: its logits and features."""
        output: Any = teacher(inputs)
        if not (isinstance(output, tuple) and len(output) == 2):
            raise InputError("the teacher must return (logits, features); wrap it in classgap.heads.FeatureTap")
        return output

    def leave_out(self, keep: Tensor) -> None:
        """Keep the output of the teacher for these rows only; a second pass over the same batch finds it done."""
        super().leave_out(keep)
        if self._teacher_output is not None:
            parts = (part[keep] if len(part) == len(keep) else part for part in self._teacher_output)
            self._teacher_output = tuple(parts)

    def current_output(self, logits: Tensor) -> tuple[Tensor, ...] | None:
        """The output of the teacher for this batch; None in evaluation mode, where it is not used."""
        if not self.training:
            return None
        if self._teacher_output is None or not self.is_current(self._teacher_output, len(logits)):
            raise InputError(
                f"{self.name} needs the output of the teacher for each batch: call criterion.observe(inputs) before the loss"
            )
        return self._teacher_output

    def is_current(self, output: tuple[Tensor, ...], samples: int) -> bool:
        """Whether this output of the teacher is that for the current batch."""
        return all(len(part) == samples for part in output)
