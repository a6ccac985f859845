"""What a prompt and a notebook show of a report and of a comparison: short, complete, and safe whatever classes are called."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from classgap.measure import audit, compare
from classgap.measure.audit_report import AuditReport
from reports import HOSTILE, comparison, full_report, label_report


class Cells(HTMLParser):
    """Tags in order, their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("num_classes", [2, 6, 300])
def test_prompt_shows_one_short_line(num_classes: int) -> None:
    for result in (label_report(num_classes), comparison(num_classes)):
        assert len(repr(result)) < 250
        assert "\n" not in repr(result)
        assert f"{num_classes} classes" in repr(result)
        assert str(result) == repr(result)


def test_line_of_an_audit_has_its_numbers() -> None:
    report = audit(["cat"] * 10 + ["dog"] * 10, ["cat"] * 5 + ["dog"] * 15)
    assert repr(report) == (
        "<AuditReport: 2 classes, 20 samples; overall accuracy 75.0 %, hard third 50.0 %, worst class 50.0 % (cat), "
        f"gap 50.0 %; homogeneity test p = {report.homogeneity.p_value:.3f}>"
    )


def test_line_stays_one_line_whatever_classes_are_called() -> None:
    names = ["a\nb\u2028c" + "x" * 5000, "\x1b[31mred"]
    line = repr(audit([0, 0, 1, 1], [1, 1, 0, 0], class_names=names))
    assert len(line) < 250
    assert line.isprintable()
    line = repr(audit([0, 0, 1, 1], [0, 0, 0, 0], class_names=names))
    assert line.isprintable()


def test_notebook_shows_verdict_headline_and_hardest_classes() -> None:
    report = label_report(12)
    page = Cells(report._repr_html_())
    assert page.open == []
    assert report.verdict in page.text
    for expected in ("hard third", "gap, corrected", "95% interval", "12 classes, 240 samples"):
        assert any(expected in text for text in page.text)
    hardest = report.per_class["name"][np.argsort(report.per_class["accuracy"], kind="stable")[:5]]
    assert [text for text in page.text if text.startswith("class ")] == hardest.tolist()


def test_notebook_shows_classes_that_changed_significantly() -> None:
    before = audit(np.repeat(np.arange(3), 200), np.repeat([0, 1, 0], 200), class_names=["a", "b", "rescued class"])
    after = audit(np.repeat(np.arange(3), 200), np.repeat(np.arange(3), 200), class_names=["a", "b", "rescued class"])
    result = compare(before, after)
    page = Cells(result._repr_html_())
    assert page.open == []
    assert result.verdict.sentence in page.text
    assert "rescued class" in page.text
    assert "+100.0" in page.text
    assert "Classes with a significant change: 1" in page.text
    several = compare([before, before], [after, after])
    assert "2 runs before, 2 runs after" in several._repr_html_()


def test_names_cannot_leave_their_cell() -> None:
    for result in (full_report(names=HOSTILE), comparison(names=HOSTILE)):
        page = Cells(result._repr_html_())
        assert page.open == []
        assert not page.tags & {"script", "style", "b", "i", "img", "a"}
        assert page.attributes <= {"class", "style"}
    assert HOSTILE[0] in Cells(label_report(6, names=HOSTILE)._repr_html_()).text


def test_class_without_samples_is_not_shown_as_the_worst() -> None:
    report: AuditReport = audit([0, 0, 1, 1], [0, 0, 1, 0], class_names=["a", "b", "absent"])
    assert "worst class 50.0 % (b)" in repr(report)
    assert "absent" not in [text for text in Cells(report._repr_html_()).text if len(text) < 10]
