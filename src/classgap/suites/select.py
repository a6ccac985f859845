"""Which epoch of a run counts: selection rules as named objects.

Validation rules look at the log only. The test set is scored after training, at the epochs the rules chose; its numbers
are recorded and take no part in choosing, but for the rule that says so in its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classgap.checks import InputError
from classgap.measure.statistics.metrics import evaluate

if TYPE_CHECKING:
    from classgap.suites.results import EpochResult, Result

Record = Mapping[str, Any]


@dataclass(frozen=True)
class EpochRule:
    """How to choose an epoch.

    Attributes:
        metric: Entry of a log record's ``"val"`` to maximise; empty where the rule does not look at validation data.
        honest: False where it looks at test data.
        meaning: For captions.
    """

    name: str
    meaning: str
    metric: str = ""
    honest: bool = True

    def best(self, history: Sequence[Record]) -> int:
        """The epoch chosen from a log; the latest of equals, which has trained longest."""
        if not self.metric:
            return int(history[-1]["epoch"])
        if "val" not in history[-1]:
            raise InputError(f"--rule {self.name} needs a validation split: set data.val_fraction above 0 in the task")
        scores = [_or_minus_infinity(record["val"][self.metric]) for record in history]
        return int(max(zip(scores, (record["epoch"] for record in history), strict=True))[1])

    def pick(self, result: Result) -> EpochResult:
        """The recorded epoch of a finished run that this rule chooses."""
        if not self.honest:
            return max(result.candidates, key=lambda c: (_hard_third(result, c), c.epoch))
        for candidate in result.candidates:
            if self.name in candidate.rules:
                return candidate
        raise InputError(
            f"the run {result.name} has no epoch recorded for --rule {self.name}: it had no validation split"
        )


def _or_minus_infinity(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(value) else value


def _hard_third(result: Result, candidate: EpochResult) -> float:
    present = result.support > 0
    return float(evaluate(np.asarray(candidate.test_correct)[present] / result.support[present], ("hard",))[0])


RULES: Mapping[str, EpochRule] = {
    rule.name: rule
    for rule in (
        EpochRule("last", "the last epoch"),
        EpochRule("val_hard", "the epoch with the best hard third on validation data", "hard"),
        EpochRule("val_balanced", "the epoch with the best mean class accuracy on validation data", "balanced"),
        EpochRule(
            "test_oracle",
            "TEST ORACLE: of the recorded epochs the one with the best hard third on the test set itself; too good to be "
            "reported as a result",
            honest=False,
        ),
    )
}
VALIDATION_RULES = tuple(rule for rule in RULES.values() if rule.metric)
