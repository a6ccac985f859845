"""The learning rate as a pure function of the position, so that a checkpoint needs no state of a schedule."""

from __future__ import annotations

import bisect
import math

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
