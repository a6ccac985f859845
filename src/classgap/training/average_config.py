"""Which average of the weights the results of a run are made with. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from classgap.checks import InputError, number


@dataclass(frozen=True)
class AverageConfig:
    """The results are those of an average of the weights over the steps of the training; see ``classgap.training.averaging``.

    Attributes:
        name: ``ema`` for an exponential average, ``swa`` for an equal one over the last part of the training.
        decay: Of ``ema``: factor of the older weights at each step. Without it ``horizon`` decides, for any length of run.
        horizon: Of ``ema``: how far the average reaches back, as a share of all steps; 0.05 by default, which is a decay of
            1 - 1 / (0.05 × steps).
        start: Share of the training that is over when the average begins; 0 for ``ema`` and 0.75 for ``swa`` by default.
        every: Of ``swa``: average the weights after each ``step``, or after each ``epoch`` as published.
    """

    name: Literal["none", "ema", "swa"] = "none"
    decay: float | None = None
    horizon: float | None = None
    start: float | None = None
    every: Literal["step", "epoch"] = "step"

    @property
    def from_share(self) -> float:
        """Share of the training that is over when the average begins."""
        return self.start if self.start is not None else {"swa": 0.75}.get(self.name, 0.0)

    def decay_for(self, steps: int) -> float:
        """Factor of the older weights at each of ``steps`` steps."""
        if self.decay is not None:
            return self.decay
        return 1 - 1 / max(1.0, (0.05 if self.horizon is None else self.horizon) * steps)

    def check(self) -> None:
        """Raise where a setting is out of range, or belongs to another kind of average."""
        for name, kinds in {"decay": "ema", "horizon": "ema", "start": "ema or swa", "every": "swa"}.items():
            if getattr(self, name) != getattr(AverageConfig(), name) and self.name not in kinds.split():
                raise InputError(
                    f"average.{name} is a setting of average={kinds}, got average={self.name}; leave it out"
                )
        if self.decay is not None and self.horizon is not None:
            raise InputError("average.decay and average.horizon exclude each other; set one of them")
        if self.horizon is not None:
            number("average.horizon", self.horizon, low=0, high=1, open_low=True)
        for name in ("decay", "start"):
            if (share := getattr(self, name)) is not None and number(f"average.{name}", share, low=0, high=1) == 1:
                raise InputError(f"average.{name} must be below 1, got {share:g}: nothing would be averaged")
