"""How many more test samples: Wilson's interval inverted."""

from __future__ import annotations

import numpy as np
import pytest

from classgap import Predictions, audit
from classgap.checks import InputError
from classgap.measure.statistics.planning import half_width, samples_for


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("wanted", [0.2, 0.05, 0.01])
def test_needed_samples_are_just_enough(share, wanted):
    shares = np.array([share])
    number = samples_for(shares, wanted, 0.95)
    assert half_width(shares, number, 0.95)[0] <= wanted < half_width(shares, number - 1, 0.95)[0]


def test_plan_of_a_report():
    report = audit(Predictions.from_counts([[8, 2, 0], [1, 990, 9], [0, 0, 0]], ["cat", "dog", "eel"]))
    rows = report.more_test_samples(0.1, more=90)
    assert rows["name"].tolist() == ["cat", "dog"]  # widest first, absent classes left out
    cat, dog = rows
    assert cat["half_width"] == pytest.approx((report.per_class["high"][0] - report.per_class["low"][0]) / 2)
    assert cat["half_width_with_more"] == pytest.approx(half_width(np.array([0.8]), np.array([100]), 0.95)[0])
    assert cat["needed"] == samples_for(np.array([0.8]), 0.1, 0.95)[0] - 10
    assert cat["needed_at_most"] > cat["needed"] > 0
    assert dog["needed"] == dog["needed_at_most"] == 0
    assert report.to_dict()["test_samples"][0]["name"] == "cat"
    assert "### How many more test samples" in report.to_markdown()


def test_unusable():
    weighted = audit([0, 0, 1], [0, 1, 1], sample_weight=[1.0, 2.0, 1.0])
    with pytest.raises(InputError, match="does not support sample weights"):
        weighted.more_test_samples()
    with pytest.raises(InputError, match=r"half_width must be a finite number in \[0.001, 0.5\]"):
        audit([0, 1], [0, 1]).more_test_samples(5)
