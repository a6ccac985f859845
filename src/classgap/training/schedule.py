"""The learning rate as a pure function of the position, so that a checkpoint needs no state of a schedule."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence

from classgap.checks import InputError
from classgap.training.config import ScheduleConfig


def rate_factor(schedule: ScheduleConfig, epoch: float, epochs: int) -> float:
    """Factor of the full learning rate at fractional ``epoch`` (0 at the first step).

    Example:
        >>> [round(rate_factor(ScheduleConfig("cosine", warmup=1), e, 5), 3) for e in (0, 0.5, 1, 3, 5)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        >>> [round(rate_factor(ScheduleConfig("step", milestones=(2, 4)), e, 5), 3) for e in (0, 2, 4.5)]
        [1.0, 0.1, 0.01]
    """
    if epoch < schedule.warmup:
        return schedule.warmup_start + (1 - schedule.warmup_start) * epoch / schedule.warmup
    if schedule.name == "cosine":
        progress = (epoch - schedule.warmup) / (epochs - schedule.warmup)
        return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    if schedule.name == "step":
        return schedule.gamma ** bisect.bisect_right(schedule.milestones, epoch)
    return 1.0


def in_epochs(schedule: ScheduleConfig, steps_until: Sequence[int]) -> ScheduleConfig:
    """The schedule with a warm-up that is given in optimiser steps expressed in epochs.

    Args:
        steps_until: Steps before each epoch, and the number of all steps.
    Example:
        >>> in_epochs(ScheduleConfig(warmup_steps=15), [0, 10, 20, 30]).warmup
        1.5
    """
    steps = schedule.warmup_steps
    if not steps:
        return schedule
    if steps >= steps_until[-1]:
        raise InputError(f"schedule.warmup_steps={steps} must be less than the {steps_until[-1]} steps of the run")
    epoch = bisect.bisect_right(steps_until, steps) - 1
    length = steps_until[epoch + 1] - steps_until[epoch]
    return dataclasses.replace(schedule, warmup=epoch + (steps - steps_until[epoch]) / length, warmup_steps=0)
