"""Scores in batches: the same numbers as in memory where they are sums, and a stated stratified sample for the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from classgap import Predictions, audit
from classgap.checks import InputError
from classgap.measure.render import html
from classgap.predictions import batches
from command_line import call

ROWS, CLASSES = 3000, 7
RNG = np.random.default_rng(0)
TRUE = RNG.choice(CLASSES - 1, ROWS, p=[0.3, 0.3, 0.2, 0.1, 0.09, 0.01])  # the last class has no samples
LOGITS = RNG.normal(size=(ROWS, CLASSES)) + 2 * np.eye(CLASSES)[TRUE]
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
SITE = RNG.choice(["Bonn", "Rome"], ROWS)
EXACT = ("support", "accuracy", "low", "high", "precision", "f1", "top5", "output_margin", "logit_margin",
         "logit_margin_variance", "ece", "classwise_ece", "overconfidence", "log_loss", "brier")  # fmt: skip


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_BATCH_SCORES", 0)  # 1000 rows per batch


def frame(scores: Any = LOGITS, **more: Any) -> pl.DataFrame:
    return pl.DataFrame({"label": TRUE, **{f"score_{k}": scores[:, k] for k in range(scores.shape[1])}, **more})


def duckdb_table(rows: pl.DataFrame) -> Any:
    return pytest.importorskip("duckdb", reason="needs duckdb, an engine that the tests use").from_arrow(
        rows.to_arrow()
    )


def dask_table(rows: pl.DataFrame) -> Any:
    dask = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe], an engine that the tests use")
    return dask.from_pandas(rows.to_pandas(), npartitions=3)


@pytest.mark.parametrize(
    "scores", [LOGITS, PROBABILITIES, LOGITS.astype(np.float32)], ids=["logits", "probabilities", "float32"]
)
@pytest.mark.parametrize("engine", [pl.DataFrame.lazy, duckdb_table, dask_table], ids=["polars", "duckdb", "dask"])
def test_sums_are_those_of_all_rows(engine: Callable[[pl.DataFrame], Any], scores: Any) -> None:
    rows = frame(scores, site=SITE)
    expected = audit(rows, by="site")
    found = audit(engine(rows), by="site", sample=500)
    assert found.metrics == expected.metrics
    assert found.verdict == expected.verdict
    np.testing.assert_array_equal(found.confusion.counts, expected.confusion.counts)
    for name in EXACT:
        np.testing.assert_allclose(found.per_class[name], expected.per_class[name], rtol=1e-9, err_msg=name)
    for section in ("calibration", "margins"):
        one, other = getattr(found, section).summary(), getattr(expected, section).summary()
        one.pop("adaptive_ece", None)
        assert one == pytest.approx({key: other[key] for key in one}, rel=1e-9)
    assert found.slices["site"].per_slice.tolist() == expected.slices["site"].per_slice.tolist()  # type: ignore[index]
    np.testing.assert_allclose(found.calibration.bin_accuracy, expected.calibration.bin_accuracy)  # type: ignore[union-attr]


def test_the_sample_is_stated_stratified_and_repeatable() -> None:
    rows = frame(file=np.arange(ROWS))
    found = audit(rows.lazy(), sample=600, ids="file", seed=3)
    samples = found.samples
    assert samples is not None
    assert samples.row_numbers is not None
    counts = np.bincount(samples.y_true, minlength=CLASSES)
    assert np.abs(counts - 0.2 * np.bincount(TRUE, minlength=CLASSES)).max() <= 1
    np.testing.assert_array_equal(TRUE[samples.row_numbers], samples.y_true)
    np.testing.assert_array_equal(LOGITS[samples.row_numbers], samples.scores)
    np.testing.assert_array_equal(samples.ids, samples.row_numbers)
    again = audit(rows.lazy(), sample=600, ids="file", seed=3).samples
    np.testing.assert_array_equal(again.row_numbers, samples.row_numbers)  # type: ignore[union-attr]
    assert (found.sampling.rows, found.sampling.of, found.sampling.seed) == (len(samples.y_true), ROWS, 3)  # type: ignore[union-attr]
    assert f"a sample of {len(samples.y_true):,} rows, stratified by class" in found.notes[0]
    assert "seed 3" in found.notes[0]
    assert found.to_dict()["sampling"]["of"] == ROWS
    page = html.render_audit(found)
    assert f"sample of {len(samples.y_true):,} rows (seed 3)" in page
    worst = found.mistakes(n=1).row(0, named=True)
    assert worst["row"] == worst["id"]


def test_a_sample_of_all_rows_is_the_audit_in_memory() -> None:
    expected = audit(frame())
    found = audit(frame().lazy(), sample=ROWS)
    for name in expected.per_class.dtype.names or ():
        if expected.per_class.dtype[name].kind == "f":
            np.testing.assert_allclose(found.per_class[name], expected.per_class[name], rtol=1e-9, err_msg=name)
    assert [d.name for d in found.diagnoses] == [d.name for d in expected.diagnoses]
    assert found.mistakes(n=None).equals(expected.mistakes(n=None))


def test_scores_that_turn_out_to_be_logits() -> None:
    """The first batches are probabilities; a later row has a value outside [0, 1], so all are logits, as in memory."""
    scores = PROBABILITIES.copy()
    scores[-1] = LOGITS[-1] * 3
    expected = audit(frame(scores))
    found = audit(frame(scores).lazy(), sample=500)
    assert found.samples is not None
    assert found.samples.scores_kind == "logits"
    np.testing.assert_allclose(found.per_class["log_loss"], expected.per_class["log_loss"])


def test_one_score_column_names_predictions_and_thresholds(tmp_path: Path) -> None:
    true = np.where(TRUE == 0, "ham", "spam")
    chance = 1 / (1 + np.exp(-(2.0 * (TRUE > 0) - 1 + LOGITS[:, -1])))
    rows = pl.DataFrame({"label": true, "prob": chance})
    rows.write_csv(tmp_path / "rows.csv")
    for options in ({}, {"threshold": 0.3}, {"threshold": 0.7, "positive": "ham"}):
        expected = audit(rows, **options)  # type: ignore[arg-type]
        found = audit(tmp_path / "rows.csv", sample=500, **options)  # type: ignore[arg-type]
        assert found.to_dict()["metrics"] == expected.to_dict()["metrics"]
        np.testing.assert_allclose(found.per_class["brier"], expected.per_class["brier"])
    given = frame(pred=np.roll(TRUE, 1))
    assert audit(given.lazy(), sample=500).metrics == audit(given).metrics
    assert any("y_pred is not the class of the highest score" in note for note in audit(given.lazy(), sample=500).notes)


def test_only_large_tables_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit(frame().lazy()).sampling is None
    monkeypatch.setattr("classgap.predictions.counting.MOST_SCORES", ROWS * CLASSES - 1)
    found = audit(frame().lazy())
    assert found.sampling is not None
    assert found.sampling.rows == ROWS  # small enough for the sample to be all
    assert audit(frame()).sampling is None
    assert Predictions.from_frame(frame().lazy()).scores is not None  # fix and compare need the rows


def test_predictions_in_batches_can_still_be_counted() -> None:
    found = Predictions.from_frame(frame().lazy(), batches=True)
    assert not found.has_rows
    assert found.num_samples == ROWS
    np.testing.assert_array_equal(found.confusion.counts, Predictions.from_frame(frame()).confusion.counts)
    assert audit(found.labels_only()).overall.value == audit(frame()).overall.value


def test_unusable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="these predictions are in memory"):
        audit(TRUE, scores=LOGITS, sample=500)
    with pytest.raises(InputError, match="sample must be a whole number"):
        audit(frame().lazy(), sample=1)
    broken = LOGITS.copy()
    broken[-1, 0] = np.nan
    with pytest.raises(InputError, match="scores holds nan"):
        audit(frame(broken).lazy(), sample=500)
    holes = frame().with_columns(score_0=pl.when(pl.int_range(ROWS) == ROWS - 1).then(None).otherwise("score_0"))
    with pytest.raises(InputError, match="must have a number in every row"):
        audit(holes.lazy(), sample=500)
    with pytest.raises(InputError, match="labels must be numbers from 0 to 6"):
        audit(frame().with_columns(label=pl.lit(9)).lazy(), sample=500)


def test_command_line(tmp_path: Path) -> None:
    frame().write_parquet(tmp_path / "rows.parquet")
    done = call("audit", tmp_path / "rows.parquet", "--sample", "500", "--out", tmp_path / "report", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["sampling"] == {"rows": 499, "of": ROWS, "seed": 0}
    assert (tmp_path / "report" / "mistakes.csv").exists()
    text = call("audit", tmp_path / "rows.parquet", "--sample", "500").out
    assert "stratified by class" in " ".join(text.split())


def test_one_score_column_is_counted_by_its_kind() -> None:
    labels = TRUE % 2
    labels[-1] = 1
    probability = 0.8 * labels + 0.1
    late = np.where(np.arange(ROWS) < 1000, probability, np.log(probability / (1 - probability)))
    for values in (probability, np.append(probability[:-1], 1.0000001), np.log(probability / (1 - probability)), late):
        table = pl.DataFrame({"label": labels, "prob": values})
        expected = Predictions.from_frame(table).confusion.counts
        found = Predictions.from_frame(table.lazy(), batches=True)
        np.testing.assert_array_equal(found.confusion.counts, expected)
        np.testing.assert_array_equal(audit(table.lazy(), sample=500).confusion.counts, expected)
