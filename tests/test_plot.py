"""Figures: every one can be drawn for few and many classes, in both themes, without a browser."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classgap.checks import InputError
from classgap.measure import audit
from classgap.measure.diagnostics.geometry.embedding import embed, hard_and_confused, most_frequent_error
from classgap.measure.render import plot
from reports import HOSTILE, comparison, full_report, label_report

ALL = {
    "accuracy_by_class",
    "worst_pairs",
    "spread_accuracy",
    "margins",
    "max_distances",
    "reliability",
    "embedding",
    "precision_recall",
}


def rows(chart: Any) -> list[dict[str, Any]]:
    """The records of a chart's largest data set."""
    data: dict[str, list[dict[str, Any]]] = chart.to_dict()["datasets"]
    return max(data.values(), key=len)


def test_every_figure_is_saved(tmp_path: Path) -> None:
    made = plot.figures(full_report(names=HOSTILE))
    assert set(made) == ALL
    for name, chart in made.items():
        png = plot.save(chart, tmp_path / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        text = plot.save(chart, tmp_path / f"{name}.svg", theme="dark").read_text(encoding="utf-8")
        assert ET.fromstring(text).tag.endswith("svg")
        assert "#14181d" in text


def test_figures_follow_the_data() -> None:
    assert set(plot.figures(label_report(5))) == {"accuracy_by_class", "worst_pairs"}
    perfect = audit([0, 1, 2], [0, 1, 2])
    assert plot.worst_pairs(perfect) is None
    assert plot.embedding(perfect) is None
    assert set(plot.figures(comparison())) == {"dumbbells", "before_after"}


@pytest.mark.parametrize("num_classes", [3, 60, 1000])
def test_accuracy_shows_every_class_sorted(num_classes: int, tmp_path: Path) -> None:
    report = label_report(num_classes, per_class=10)
    chart = plot.accuracy_by_class(report)
    drawn = rows(chart)
    assert [row["accuracy"] for row in drawn] == sorted(report.per_class["accuracy"].tolist(), reverse=True)
    assert {row["class"] for row in drawn} == set(report.classes)
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in drawn)
    plot.save(chart, tmp_path / "a.svg")
    plot.save(plot.worst_pairs(report), tmp_path / "b.svg")  # type: ignore[arg-type]


def test_absent_class_is_left_out() -> None:
    report = audit([0, 0, 1, 1], [0, 1, 1, 1], class_names=["a", "b", "never"])
    assert {row["class"] for row in rows(plot.accuracy_by_class(report))} == {"a", "b"}


def test_worst_pairs_are_shares_of_the_true_class() -> None:
    report = audit([0] * 10 + [1] * 10, [1] * 4 + [0] * 6 + [1] * 9 + [0])
    drawn = {(row["true"], row["predicted"]): row["share"] for row in rows(plot.worst_pairs(report))}
    assert drawn == {("0", "1"): 0.4, ("1", "0"): 0.1}


@pytest.mark.parametrize("figure", [plot.margins, plot.max_distances])
def test_shares_add_up_to_one_in_each_third(figure: Any) -> None:
    drawn = rows(figure(full_report()))
    for group in plot.GROUPS:
        assert sum(row["share"] for row in drawn if row["group"] == group) == pytest.approx(1, abs=1e-3)


def test_max_distances_are_those_of_the_samples() -> None:
    report = full_report()
    drawn = [row for row in rows(plot.max_distances(report)) if row["group"] == "hard"]
    spread = report.geometry.spread  # type: ignore[union-attr]
    hard = report.per_class["group"][report.samples.y_true] == "hard"  # type: ignore[union-attr]
    mean = spread.max_distance[hard].mean() / spread.largest_norm
    assert sum(row["distance"] * row["share"] for row in drawn) == pytest.approx(mean, rel=0.05)
    assert plot.max_distances(label_report(5)) is None


def test_dumbbells_take_the_ends_of_many_classes() -> None:
    changes = comparison(120)
    drawn = rows(plot.dumbbells(changes, limit=10))
    delta = np.sort(changes.per_class["delta"])
    assert [row["delta"] for row in drawn] == pytest.approx([*delta[::-1][:5], *delta[:5][::-1]], abs=1e-4)
    assert len(rows(plot.before_after(changes))) == 120


def test_embedding_shows_hard_classes_and_their_confusions() -> None:
    report = full_report(12)
    shown = hard_and_confused(report, 4)
    worst = int(np.argmin(report.per_class["accuracy"]))
    assert shown[0] == worst
    assert shown[1] == most_frequent_error(report, worst)
    for method in ("tsne", "pca"):
        found = embed(report, method=method, max_classes=4, max_points=60)
        assert found is not None
        assert found.position.shape == (60, 2)
        assert np.isfinite(found.position).all()
        assert set(report.samples.y_true[found.rows]) == set(found.classes)  # type: ignore[union-attr]
    again = embed(report, max_classes=4, max_points=60)
    first = embed(report, max_classes=4, max_points=60)
    assert again is not None
    assert first is not None
    np.testing.assert_array_equal(again.position, first.position)


def test_one_dimensional_features() -> None:
    report = audit([0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0], features=np.arange(6.0)[:, None])
    found = embed(report, method="pca")
    assert found is not None
    assert found.position.shape == (6, 2)


def test_unknown_ending_or_theme(tmp_path: Path) -> None:
    chart = plot.accuracy_by_class(label_report(3))
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        plot.save(chart, tmp_path / "a.pdf")
    with pytest.raises(InputError, match="theme"):
        plot.save(chart, tmp_path / "a.png", theme="blue")  # type: ignore[arg-type]
