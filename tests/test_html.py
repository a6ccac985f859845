"""The report page: self-contained, small, and safe whatever classes are called."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classgap import Predictions, audit, audit_labels, compare
from classgap.measure.render import html
from classgap.predictions.labels import printable
from reports import HOSTILE, comparison, full_report, label_report


class Outline(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        else:
            self.text.append(data)


def payload(text: str) -> dict[str, Any]:
    return dict(json.loads(Outline(text).scripts[0]))


def test_names_cannot_leave_their_place() -> None:
    for text in (html.render_audit(full_report(names=HOSTILE)), html.render_comparison(comparison(names=HOSTILE))):
        page = Outline(text)
        assert len(page.scripts) == 3  # data, the page's own, Vega
        assert payload(text)["tables"]["classes"]["data"]["name"] == [printable(name) for name in HOSTILE]
        body = text[: text.index('<script type="application/json"')]
        for name in HOSTILE[:2]:
            assert name not in body


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = Outline(html.render_audit(full_report(), source="<i>file.npz"))
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            assert re.match(r"(#|data:|$)", attributes.get(name) or ""), (tag, attributes)
        if attributes.get("http-equiv") == "Content-Security-Policy":
            assert "default-src 'none'" in str(attributes["content"])
            assert "http" not in str(attributes["content"])
    assert "<i>file.npz" in "".join(page.text)


def test_the_page_has_the_margins_by_third() -> None:
    report = full_report()
    text = html.render_audit(report)
    table = payload(text)["tables"]["margins"]["data"]
    assert table["third"] == ["average", "easy", "medium", "hard", "all pairs"]
    levels = report.margin_levels
    assert levels is not None
    expected = [*(e.value for e in levels.output.values()), levels.classifier]
    assert table["value"] == pytest.approx(expected, rel=1e-4)
    assert 'data-table="margins"' in text
    assert 'data-figure="max_distances"' in text
    assert 'data-table="margins"' not in html.render_audit(label_report(5))


def test_thousand_classes_stay_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.2, (1000, 1000)) + np.diag(rng.integers(20, 200, 1000))
    report = audit(Predictions.from_counts(counts, [f"a fairly long class name number {k}" for k in range(1000)]))
    text = html.render_audit(report, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5e6
    pairs = payload(text)["tables"]["pairs"]["data"]
    assert len(pairs["true"]) < 20_000
    assert set(pairs["true"]) == set(report.classes)  # every class keeps its own worst confusions
    assert pairs["count"] == sorted(pairs["count"], reverse=True)
    every = report.confusion.worst_pairs(html.tables.MAX_PAIRS)
    assert [pair.count for pair in every] == pairs["count"][: len(every)]


def test_numbers_on_the_page_are_those_of_the_report() -> None:
    report = full_report()
    text = html.render_audit(report)
    found = payload(text)["tables"]
    np.testing.assert_allclose(found["classes"]["data"]["accuracy"], report.per_class["accuracy"], rtol=1e-4)
    assert found["metrics"]["data"]["value"][0] == pytest.approx(report.overall.value, rel=1e-4)
    assert f"{100 * report.hard.value:.1f}\u00a0%" in "".join(Outline(text).text)
    shown = {column["key"] for column in found["classes"]["columns"]}
    assert {"spread", "logit_margin", "ece", "top5"} <= shown
    assert len(found["groups"]["data"]["value"]) == sum(len(groups) for groups in report.groups.values())


def test_every_column_is_explained() -> None:
    report = full_report(train_counts=[5] * 6)
    columns = html.tables.class_table(report)["columns"] + html.tables.change_table(comparison())["columns"]
    assert [column["key"] for column in columns if not column["help"]] == []


def test_absent_class_and_perfect_model() -> None:
    report = audit([0, 0, 1, 1], [0, 0, 1, 1], class_names=["a", "b", "never"])
    found = payload(html.render_audit(report))["tables"]
    assert found["classes"]["data"]["accuracy"] == [1.0, 1.0, None]
    assert "pairs" not in found


def test_comparison_page(tmp_path: Path) -> None:
    changes = comparison(30)
    text = changes.to_html(tmp_path / "c.html").read_text(encoding="utf-8")
    found = payload(text)
    assert set(found["figures"]) == {"dumbbells", "before_after"}
    np.testing.assert_allclose(found["tables"]["classes"]["data"]["delta"], changes.per_class["delta"], rtol=1e-4)
    assert changes.verdict.title in "".join(Outline(text).text)


def test_the_banner_says_what_got_worse_whatever_the_class_is_called() -> None:
    """The headline ended at the first ": ", also at that of a class name; a loss beside a gain had a green banner."""
    y = np.repeat(np.arange(3), 300)
    right = np.arange(900) % 300
    before = audit(y, np.where(right < 150, y, (y + 1) % 3), class_names=["a", "b", "sub: c"])
    after = audit(y, np.where(right < np.array([290, 290, 100])[y], y, (y + 1) % 3), class_names=["a", "b", "sub: c"])
    found = compare(before, after)
    assert "class 'sub: c'" in found.verdict.title
    assert found.verdict.sentence.startswith(f"{found.verdict.headline}: ")
    text = html.render_comparison(found)
    heading = re.search(r"<h1>(.*?)</h1>", text)
    assert heading is not None
    assert "does not judge the training method" in heading[1]
    assert html._tone(found) != "good"


def test_the_caption_on_spread_says_what_was_measured() -> None:
    """It said "classes whose features scatter widely tend to be hard" whatever the correlation was."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 40)
    for slope, words in (
        (0.0, "not significantly related"),
        (0.07, "less accurate here"),
        (-0.07, "more accurate here"),
    ):
        features = rng.normal(size=(len(y), 4)) * (1 + y[:, None] % 12)
        right = rng.random(len(y)) < np.clip(0.5 - slope * (y - 5.5), 0, 1)
        report = audit(y, np.where(right, y, (y + 1) % 12), features=features)
        assert words in html._spread_correlation(report)
        assert "tend to be hard" not in html.render_audit(report)


def test_runs_that_know_different_classes() -> None:
    y_true = np.array(["a", "a", "b", "b"] * 5)
    before, after = audit(y_true, ["a", "z", "b", "b"] * 5), audit(y_true, ["a", "b", "b", "c"] * 5)
    pairs = payload(html.render_comparison(compare(before, [after, after])))["tables"]["pairs"]["data"]
    found = list(zip(pairs["true"], pairs["predicted"], pairs["before"], pairs["count"], strict=True))
    assert sorted(found) == [("a", "b", 0, 5), ("a", "z", 5, 0), ("b", "c", 0, 5)]


@pytest.mark.parametrize("num_classes", [1, 2, 2100])
def test_one_two_and_sparse_many_classes(num_classes: int) -> None:
    y_true = np.arange(3 * num_classes) % num_classes
    report = audit(y_true, np.where(y_true % 3 == 1, 0, y_true), n_boot=100)
    assert len(payload(html.render_audit(report))["tables"]["classes"]["data"]["name"]) == num_classes
    assert (
        payload(html.render_comparison(compare(report, report, n_boot=100)))["tables"]["classes"]["data"]["delta"][0]
        == 0
    )


def test_reports_write_their_page(tmp_path: Path) -> None:
    assert label_report(3).to_html(tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_chart_library_is_kept_and_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def bundle() -> str:
        made.append(1)
        return "window.vegaEmbed = '</script>';"

    monkeypatch.setattr("vl_convert.javascript_bundle", bundle)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = html._vega.__wrapped__(), html._vega.__wrapped__()
    assert first == second
    assert "</script" not in first
    assert len(made) == 1
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # nothing can be written below a file
    assert html._vega.__wrapped__() == first
    assert len(made) == 2


def test_docs_describe_every_key_and_column() -> None:
    text = (Path(__file__).parents[1] / "docs" / "audit.md").read_text(encoding="utf-8")
    report = full_report(train_counts=[5] * 6)
    described = set(re.findall(r"`([a-z_0-9]+)`", text))
    trees = report.to_dict(), comparison().to_dict()
    keys = {key for tree in trees for key in (*tree, *tree["metrics"], *tree["per_class"][0], *tree["groups"])}
    assert keys - described == set()


@pytest.mark.parametrize(("confidence", "shown"), [(0.975, "97.5%"), (0.999, "99.9%"), (0.58, "58%")])
def test_confidence_levels_are_not_rounded(confidence: float, shown: str, tmp_path: Path) -> None:
    y = np.arange(3).repeat(20)
    other = np.roll(y, 3)
    report = audit(y, other, confidence=confidence)
    changes = compare(Predictions.from_arrays(y, other), Predictions.from_arrays(y, y), confidence=confidence)
    labels = audit_labels(np.eye(3)[y], np.eye(3)[other], confidence=confidence)
    page = report.to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    for text in (report.to_markdown(), changes.to_markdown(), labels.to_markdown(), report._repr_html_(), page):
        assert shown in text
