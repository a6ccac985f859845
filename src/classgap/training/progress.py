"""What a training run reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from classgap.checks import InputError


class DivergedError(InputError):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class TrainProgress:
    """Progress of a training run.

    Attributes:
        record: The log entry of an epoch that has just ended.
        stage: Which of several runs this is, e.g. ``"teacher"``; empty for the run itself.
        note: A message for the user, sent once.
    """

    step: int
    steps: int
    epoch: int
    epochs: int
    record: dict[str, Any] | None = None
    stage: str = ""
    note: str = ""


Watcher = Callable[[TrainProgress], None]
