"""The samples behind an audit: lists of mistakes and of suspected labels, in Python, as files and in the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from classgap import Columns, Predictions, audit, compare
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.measure.render import html, pictures
from classgap.measure.render.folder import write_report
from reports import HOSTILE, comparison, samples
from test_html import payload

TRUE = ["cat", "cat", "cat", "dog", "dog", "fox"]
SCORES = np.array(
    [[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.05, 0.15, 0.8], [0.3, 0.7, 0.0], [0.6, 0.1, 0.3], [0.0, 0.0, 1.0]]
)


def test_mistakes_come_worst_first_with_what_is_known_of_them() -> None:
    report = audit(TRUE, scores=SCORES, class_names=["cat", "dog", "fox"], ids=list("abcdef"), texts=["t"] * 6)
    found = report.mistakes()
    assert found["id"].to_list() == ["c", "e", "b"]
    assert found["row"].to_list() == [2, 4, 1]
    assert found["true"].to_list() == ["cat", "dog", "cat"]
    assert found["predicted"].to_list() == ["fox", "cat", "dog"]
    np.testing.assert_allclose(found["margin"], [-0.75, -0.5, -0.2], atol=1e-6)
    np.testing.assert_allclose(found["probability_true"], [0.05, 0.1, 0.4], atol=1e-6)
    np.testing.assert_allclose(found["probability_predicted"], [0.8, 0.6, 0.6], atol=1e-6)
    assert found["text"].to_list() == ["t"] * 3
    assert report.mistakes("dog")["id"].to_list() == ["e"]
    assert report.mistakes("fox").height == 0
    assert report.mistakes(n=1)["id"].to_list() == ["c"]
    with pytest.raises(InputError, match="unknown value for class_name 'do'; did you mean 'dog'"):
        report.mistakes("do")


def test_logits_give_the_same_mistakes_as_probabilities() -> None:
    logits = np.log(SCORES + 1e-9) + np.arange(6)[:, None]
    names = ["cat", "dog", "fox"]
    first, second = (audit(TRUE, scores=s, class_names=names).mistakes() for s in (SCORES, logits))
    assert first.drop("margin", "probability_true", "probability_predicted").equals(
        second.drop("margin", "probability_true", "probability_predicted")
    )
    np.testing.assert_allclose(first["margin"], second["margin"], atol=1e-5)


def test_without_scores_the_hardest_class_comes_first() -> None:
    report = audit(["a"] * 4 + ["b"] * 4, ["a", "a", "a", "b", "a", "a", "b", "a"])
    found = report.mistakes()
    assert found["row"].to_list() == [4, 5, 7, 3]
    assert found.columns == ["row", "true", "predicted", "cause"]
    with pytest.raises(InputError, match="mistakes needs the samples"):
        audit(Predictions.from_counts([[1, 1], [0, 2]])).mistakes()


def confused_report() -> Any:
    """Class 0 is predicted as class 1 in 30 of 100 samples, and 12 labels of class 2 are wrong."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 100)
    logits = 9 * np.eye(6)[truth] + rng.normal(size=(600, 6))
    logits[:30, 1] = logits[:30].max(axis=1) + 0.5
    labels = truth.copy()
    labels[500:512] = 2
    return audit(labels, scores=logits, scores_kind="logits", ids=[f"s{i}" for i in range(600)]), labels, truth


def test_every_mistake_has_its_suspected_cause() -> None:
    report, labels, truth = confused_report()
    found = report.mistakes(n=None)
    assert found.height == int((report.samples.y_true != report.samples.y_pred).sum())
    cause = dict(zip(found["row"], found["cause"], strict=True))
    assert {cause[row] for row in range(30)} == {"confused"}
    assert {cause[row] for row in range(500, 512)} == {"mislabelled"}
    others = [cause[row] for row in cause if row >= 30 and labels[row] == truth[row]]
    assert "mislabelled" not in others
    suspected = report.mislabelled()
    assert set(suspected["row"]) == set(range(500, 512))
    assert set(suspected["label"]) == {"2"}
    assert set(suspected["suggested"]) == {"5"}
    assert (suspected["probability_suggested"] > suspected["probability_label"]).all()
    assert report.mislabelled(below=0.9).height > suspected.height


def test_causes_with_the_same_title_have_the_same_remedies() -> None:
    report, _, _ = confused_report()
    causes = [cause for diagnosis in report.diagnoses for cause in diagnosis.causes]
    assert len({cause.title for cause in causes}) > 1
    remedies: dict[str, set[tuple[str, ...]]] = {}
    for cause in causes:
        remedies.setdefault(cause.title, set()).add(cause.remedies)
    assert all(len(found) == 1 for found in remedies.values())


def test_the_folder_has_both_lists(tmp_path: Path) -> None:
    report, _, _ = confused_report()
    write_report(report, tmp_path)
    mistakes = pl.read_csv(tmp_path / "mistakes.csv")
    assert mistakes.height == report.mistakes(n=None).height
    assert mistakes.columns[:6] == ["row", "id", "true", "predicted", "margin", "cause"]
    assert pl.read_csv(tmp_path / "mislabelled.csv").height == 12
    write_report(audit(Predictions.from_counts([[3, 1], [2, 5]])), tmp_path / "counts")
    assert not (tmp_path / "counts" / "mistakes.csv").exists()


@pytest.fixture
def image_table(tmp_path: Path) -> Path:
    """A CSV file with image files beside it, one of which is missing and one of which is not an image."""
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for i in range(12):
        Image.fromarray(rng.integers(0, 255, (300, 200, 3), dtype=np.uint8)).save(tmp_path / "images" / f"{i}.png")
        rows.append({"label": "ab"[i % 2], "prediction": "a", "file": f"images/{i}.png", "note": f"text {i}"})
    (tmp_path / "images" / "1.png").write_text("no image")
    (tmp_path / "images" / "3.png").unlink()
    pl.DataFrame(rows).write_csv(tmp_path / "table.csv")
    return tmp_path / "table.csv"


def test_pictures_and_texts_on_the_command_line(image_table: Path, tmp_path: Path) -> None:
    """Paths are relative to the file; what cannot be read is said and left out."""
    options = ["--id", "file", "--path", "file", "--text", "note", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["audit", str(image_table), *options])
    assert result.exit_code == 0, result.output
    table = pl.read_csv(tmp_path / "out" / "mistakes.csv")
    assert table.columns == ["row", "id", "true", "predicted", "cause", "path", "text"]
    assert table["text"].to_list() == [f"text {i}" for i in range(1, 12, 2)]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    shown = payload(page)["tables"]["mistakes"]["data"]
    assert shown["sample"] == [f"images/{i}.png" for i in range(1, 12, 2)]
    known = [picture is not None for picture in shown["picture"]]
    assert known == [False, False, True, True, True, True]
    assert all(picture.startswith("data:image/") for picture in shown["picture"] if picture)
    assert "2 of 6 image files cannot be read" in page
    assert 'data-gallery="mistakes"' in page


def test_pictures_keep_to_the_budget(image_table: Path) -> None:
    files = [str(image_table.parent / "images" / f"{i}.png") for i in (0, 2, 4, 6)]
    whole = pictures.thumbnails(files)
    assert len(whole.by_path) == 4
    assert not whole.notes
    sizes = [len(picture) for picture in whole.by_path.values()]
    part = pictures.thumbnails(files, budget=sum(sizes[:2]))
    assert list(part.by_path) == files[:2]
    assert "2 more samples are listed without a picture" in part.notes[0]
    import base64
    import io

    first = Image.open(io.BytesIO(base64.b64decode(next(iter(whole.by_path.values())).split(",")[1])))
    assert max(first.size) == pictures.SIDE


def test_hostile_texts_stay_texts() -> None:
    s = samples(6, 30)
    texts = [HOSTILE[i % 6] for i in range(180)]
    report = audit(s["y_true"], scores=s["scores"], texts=texts, ids=texts)
    text = html.render_audit(report)
    body = text[: text.index('<script type="application/json"')]
    assert HOSTILE[0] not in body
    assert set(payload(text)["tables"]["mistakes"]["data"]["text"]) <= set(HOSTILE)


def test_confusions_before_and_after() -> None:
    y = ["a"] * 4 + ["b"] * 4
    before, after = audit(y, list("aabc" + "bbbb")), audit(y, list("abbb" + "bbba"))
    found = compare(before, [after, before]).confusions()
    rows = found.select("true", "predicted", "before", "after", "change").rows()
    assert rows == [("a", "b", 1.0, 2.0, 1.0), ("a", "c", 1.0, 0.5, -0.5), ("b", "a", 0.0, 0.5, 0.5)]
    assert found["share_after"].to_list() == [0.5, 0.125, 0.125]
    tree = comparison().to_dict()
    assert json.loads(json.dumps(tree))["confused_pairs"][0].keys() == set(found.columns)
    assert "Confusions that changed most" in comparison().to_markdown()


def test_the_page_of_a_comparison_has_one_number_for_the_hard_classes() -> None:
    """The banner said "hard before +50.8" and the tile "hard third +36.1"."""
    found = comparison(9)
    text = html.render_comparison(found)
    hard = found.groups["cross"]["hard"].delta.value
    assert html._page_points(hard) in text[text.index('class="card tile hard"') :].split("</article>")[0]
    assert f"classes that were hard before {hard * 100:+.1f}" in found.verdict.sentence


def test_shares_are_shown_as_shares() -> None:
    """The last table had 0.0123 and 1.0e-6 where the rest of the page has per cent."""
    report, _, _ = confused_report()
    table = html.tables.metric_table(report)
    kinds = dict(zip(table["data"]["name"], table["kinds"], strict=True))
    assert len(table["kinds"]) == len(table["data"]["name"])
    assert kinds["overall accuracy"] == kinds["calibration: ece"] == "share"
    assert kinds["Gini index"] == kinds["margins: logit margin"] == "number"
    changes = html.tables.metric_change_table(comparison())
    assert {column["kind"] for column in changes["columns"]} == {"text", "value", "change", "long"}


def test_the_command_line_lists_more_labels_on_request(tmp_path: Path) -> None:
    report, labels, _ = confused_report()
    assert report.samples is not None
    np.savez(tmp_path / "a.npz", y_true=labels, scores=report.samples.scores)
    heights = []
    for below in ("0.1", "0.9"):
        options = ["--mislabelled-below", below, "--out", str(tmp_path / below)]
        result = CliRunner().invoke(app, ["audit", str(tmp_path / "a.npz"), *options])
        assert result.exit_code == 0, result.output
        assert "mislabelled.csv" in result.output
        heights.append(pl.read_csv(tmp_path / below / "mislabelled.csv").height)
    assert heights[0] == 12 < heights[1]


def test_figures_of_many_classes_are_thinned_out_but_for_the_ends() -> None:
    from classgap.measure.render import plot

    rows = [{"rank": i} for i in range(50_000)]
    kept = [row["rank"] for row in plot._thinned(rows)]
    assert len(kept) == plot.DRAWN_CLASSES
    assert kept == sorted(set(kept))
    assert kept[: plot.DRAWN_ENDS] == list(range(plot.DRAWN_ENDS))
    assert kept[-plot.DRAWN_ENDS :] == list(range(50_000 - plot.DRAWN_ENDS, 50_000))
    assert "2,000 of 50,000 classes are drawn" in plot.drawn_sentence(50_000)
    assert plot._thinned(rows[:2000]) == rows[:2000]
    assert plot.drawn_sentence(2000) == ""


def test_common_samples_on_request(tmp_path: Path) -> None:
    first = {"id": list("abcdefgh"), "label": [0, 1] * 4, "pred": [0, 1, 1, 1, 0, 0, 0, 1]}
    second = {"id": list("zhgfed"), "label": [0, 1, 0, 1, 0, 1], "pred": [1, 1, 0, 1, 0, 1]}
    files = []
    for name, table in (("a.csv", first), ("b.csv", second)):
        files.append(str(tmp_path / name))
        pl.DataFrame(table).write_csv(files[-1])
    result = CliRunner().invoke(app, ["compare", *files, "--id", "id", "--common", "--json"])
    assert result.exit_code == 0, result.output
    tree = json.loads(result.stdout)
    assert tree["num_samples"] == 5  # d, e, f, g, h
    assert tree["overall"]["before"]["value"] == pytest.approx(0.8)
    assert tree["overall"]["after"]["value"] == 1
    with pytest.raises(InputError, match=r"lacks 3 ids .* and has 1 others .*--common"):
        compare(*files, columns=Columns(id="id"))
    with pytest.raises(InputError, match="needs sample ids"):
        compare(*files, common=True)
