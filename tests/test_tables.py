"""Reading prediction files: what comes out equals what went in. See also ``test_table_*.py`` and ``test_sample_columns.py``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from classgap import Columns, Predictions, audit, compare
from classgap.checks import InputError
from classgap.predictions.files import count_two
from table_files import COUNTS, NAMES, PRED, TRUE, archive, confusion, write


def test_streaming_equals_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    true, pred = rng.integers(0, 30, (2, 5000))
    file = write(tmp_path / "p.parquet", {"y_true": true, "y_pred": pred})
    assert confusion(Predictions.read([file])) == confusion(Predictions.read([file], rows=True))


def test_scores_as_columns_list_or_prefix(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(7, 12))
    numbered = {f"score_{k}": scores[:, k] for k in (11, *range(11))}
    found = Predictions.read([write(tmp_path / "a.csv", {"label": TRUE, **numbered})])
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, scores)
    np.testing.assert_array_equal(found.y_pred, scores.argmax(1))
    assert len(found.classes) == 12
    listed = write(tmp_path / "b.parquet", {"label": TRUE, "logits": scores.tolist()})
    np.testing.assert_array_equal(Predictions.read([listed]).scores, scores)
    arrays = pl.DataFrame({"label": TRUE, "out": pl.Series(scores)})
    arrays.write_parquet(tmp_path / "c.parquet")
    np.testing.assert_array_equal(Predictions.read([tmp_path / "c.parquet"], Columns(scores="out")).scores, scores)
    named = {f"p_{name}": scores[:, k] for k, name in enumerate(NAMES)}
    file = write(tmp_path / "d.csv", {"label": np.array(NAMES)[TRUE], **named})
    found = Predictions.read([file], Columns(scores="p_"))
    assert found.classes == tuple(NAMES)
    assert found.y_true is not None
    assert found.y_true.tolist() == TRUE.tolist()


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_archives(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(2)
    arrays = {
        "y_true": TRUE, "logits": rng.normal(size=(7, 3)), "features": rng.normal(size=(7, 4)).astype(np.float32),
        "weight": rng.normal(size=(3, 4)), "bias": np.zeros(3), "train_counts": np.array([5, 6, 7]),
        "class_names": np.array(NAMES),
    }  # fmt: skip
    found = Predictions.read([archive(tmp_path / f"a.{ending}", **arrays)])
    assert found.classes == tuple(NAMES)
    assert found.train_counts is not None
    assert found.train_counts.tolist() == [5, 6, 7]
    for ours, theirs in ((found.scores, "logits"), (found.features, "features"), (found.weight, "weight")):
        np.testing.assert_array_equal(ours, arrays[theirs])
    twice = Predictions.read([tmp_path / f"a.{ending}", archive(tmp_path / f"b.{ending}", **arrays)])
    assert twice.num_samples == 14
    assert twice.weight is not None
    assert twice.weight.shape == (3, 4)


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.25]], dtype=np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = {
        "y_true": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        "scores": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [16, 24]},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + np.array([1, 0], dtype="<i8").tobytes() + raw
    (tmp_path / "b.safetensors").write_bytes(data)
    np.testing.assert_array_equal(Predictions.read([tmp_path / "b.safetensors"]).scores, values)


def test_semicolons_and_late_names(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("target;pred\n" + "1;1\n" * 20_000 + "owl;1\n", encoding="utf-8")
    assert Predictions.read([file]).classes == ("1", "owl")


def test_late_decimals_are_numbers(tmp_path: Path) -> None:
    """Columns that are whole numbers in the first 10 000 rows were read as whole numbers."""
    file = tmp_path / "a.csv"
    file.write_text("label,prob,w\n" + "0,0,1\n" * 10_001 + "1,0.75,0.5\n", encoding="utf-8")
    found = Predictions.read([file], Columns(sample_weight="w"))
    assert found.scores[-1].tolist() == [0.25, 0.75]
    assert found.sample_weight[-1] == 0.5
    assert Predictions.read([file], Columns(scores="prob")).y_pred[-1] == 1
    file.write_text("label,pred,n\n" + "0,0,1\n" * 10_001 + "1,1,0.5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"column 'n' of .* must hold whole numbers, got '0.5'"):
        Predictions.read([file])


def test_separators_in_quotes_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('label;pred;"a,b,c,d"\n1;1;x\n2;2;y\n', encoding="utf-8")
    assert Predictions.read([file]).classes == ("1", "2")


def test_frames_equal_arrays() -> None:
    columns = {
        "label": np.array(NAMES)[TRUE],
        "prediction": np.array(NAMES)[PRED],
        "emb_0": TRUE / 3,
        "emb_1": PRED / 7,
    }
    expected = Predictions.from_arrays(columns["label"], columns["prediction"])
    import pandas as pd
    import pyarrow as pa

    for frame in (pl.DataFrame(columns), pd.DataFrame(columns), pa.table(columns)):
        found = Predictions.from_frame(frame)
        assert found.classes == expected.classes
        assert confusion(found) == confusion(expected)
        np.testing.assert_allclose(found.features, np.stack([TRUE / 3, PRED / 7], 1))
        assert audit(frame).overall == audit(expected).overall
    with pytest.raises(InputError, match="no column has a usual name for true labels"):
        Predictions.from_frame(pl.DataFrame({"a": [1]}))
    with pytest.raises(InputError, match="scores cannot be combined with a table"):
        audit(pl.DataFrame(columns), scores=np.eye(7))


def test_a_path_is_enough(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {"y_true": TRUE, "y_pred": PRED})
    assert audit(file).confusion.counts.tolist() == COUNTS
    assert audit(str(file)).samples is not None
    with pytest.raises(InputError, match="y_pred cannot be combined with Predictions"):
        audit(Predictions.read(file), PRED)
    with pytest.raises(InputError, match="expected the path of a prediction file"):
        audit("")


def test_scores_from_a_head_in_small_integers(tmp_path: Path) -> None:
    """int8 features times an int8 weight would wrap."""
    features, weight = np.array([[100, 0], [0, 100]], np.int8), np.array([[100, 0], [0, 100]], np.int8)
    found = Predictions.read([archive(tmp_path / "a.npz", y_true=np.arange(2), features=features, weight=weight)])
    assert found.scores.tolist() == [[1e4, 0.0], [0.0, 1e4]]  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"'bias' .* must hold one number per class"):
        Predictions.read(
            [archive(tmp_path / "b.npz", y_true=np.arange(2), features=features, weight=weight, bias=np.zeros((2, 2)))]
        )


def test_streamed_comparison(tmp_path: Path) -> None:
    before = write(tmp_path / "a.parquet", {"y_true": TRUE, "y_pred": PRED})
    after = write(tmp_path / "b.csv", {"label": TRUE, "prediction": TRUE})
    assert count_two(before, after, Columns()) is not None
    found = compare(before, after)
    assert found.per_class["gained"].tolist() == [1, 0, 1]
    assert found.per_class["lost"].tolist() == [0, 0, 0]
    scored = write(tmp_path / "s.csv", {"y_true": TRUE, "score_0": PRED, "score_1": PRED, "score_2": PRED})
    assert count_two(before, scored, Columns()) is None
    assert count_two(archive(tmp_path / "a.npz", y_true=TRUE, y_pred=PRED), after, Columns()) is None
    short = write(tmp_path / "short.csv", {"y_true": TRUE[:5], "y_pred": PRED[:5]})
    with pytest.raises(InputError, match="before has 7 rows but after has 5"):
        count_two(before, short, Columns())
    moved = write(tmp_path / "moved.csv", {"y_true": TRUE[::-1], "y_pred": PRED})
    with pytest.raises(InputError, match="differ in 6 of 7 rows"):
        count_two(before, moved, Columns())
