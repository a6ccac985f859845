"""How the benchmark compares two dials at equal overall accuracy."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from posthoc_frontier import curve, reached

OFF_UP_DOWN = [(0.0, 0.0), (2.0, 4.0), (0.0, 8.0), (-1.0, 7.0)]


@pytest.mark.parametrize(
    ("overall", "hard"),
    [(2.0, 4.0), (1.0, 6.0), (0.0, 8.0), (-0.5, 8.0)],  # the last: turning further only loses
)
def test_reached_is_the_best_point_of_the_path_that_costs_no_more(overall: float, hard: float) -> None:
    assert reached(OFF_UP_DOWN, overall) == pytest.approx(hard)


def test_reached_is_nan_above_the_peak() -> None:
    assert math.isnan(reached(OFF_UP_DOWN, 2.1))


def test_curve_starts_at_off_and_follows_the_strengths() -> None:
    def line(method: str, overall: float, hard: float) -> dict[str, object]:
        return {"method": method, "overall": {"delta": overall}, "hard": {"delta": hard}}

    lines = [
        line("gap_dial (12)", -0.02, 0.03),
        line("gap_dial (1.5)", 0.01, 0.02),
        line("gap_dial (chosen)", 1.0, 1.0),
        line("rough dial (1)", 1.0, 1.0),
    ]
    assert curve(lines, "gap_dial") == {0.0: (0.0, 0.0), 1.5: (1.0, 2.0), 12.0: (-2.0, 3.0)}
