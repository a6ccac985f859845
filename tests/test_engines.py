"""The same numbers from every engine as from arrays: polars, pandas, Arrow, DuckDB, Dask and a local PySpark session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest

from classgap import Columns, Predictions, audit, compare
from classgap.checks import InputError

duckdb = pytest.importorskip("duckdb", reason="needs duckdb, an engine that the tests use")
dask = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe], an engine that the tests use")
pytest.importorskip("pandas", reason="needs pandas, which the engines exchange tables with")
pytest.importorskip("pyarrow", reason="needs pyarrow, which the engines exchange tables with")

CONNECTION = duckdb.connect()
Engine = Callable[[pl.DataFrame], Any]
NAMES = np.array(["ant", "bee", "cat", "dog"])


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One local Spark session for all tests of this file."""
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark, an engine that the tests use")
    if shutil.which("java") is None:
        pytest.skip("a local PySpark session needs Java, which this machine does not have")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m", "spark.log.level": "ERROR"}  # fmt: skip
    session = sql.SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    yield session
    session.stop()


LAZY = ("polars lazy", "duckdb", "dask", "pyspark")
ENGINES = ("polars", "pandas", "arrow", *LAZY)
BRIEFLY = [pytest.param(name, marks=pytest.mark.slow) if name in ("dask", "pyspark") else name for name in ENGINES]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """A function that hands a polars table to the engine."""
    if request.param == "pyspark":
        session = request.getfixturevalue("spark")
        return lambda frame: session.createDataFrame(frame.to_arrow())
    return {
        "polars": lambda frame: frame,
        "polars lazy": lambda frame: frame.lazy(),
        "pandas": lambda frame: frame.to_pandas(),
        "arrow": lambda frame: frame.to_arrow(),
        "duckdb": lambda frame: CONNECTION.from_arrow(frame.to_arrow()),
        "dask": lambda frame: dask.from_pandas(frame.to_pandas(), npartitions=2),
    }[request.param]


def labels(seed: int, rows: int = 300) -> tuple[Any, Any]:
    """Four classes; class 3 is never a true label, so it is absent."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, rows)
    return true, np.where(rng.random(rows) < 0.7, true, rng.integers(0, 4, rows))


KINDS: dict[str, Callable[[Any], pl.Series]] = {
    "whole numbers": lambda y: pl.Series(y),
    "small numbers": lambda y: pl.Series(y, dtype=pl.Int8),
    "floats": lambda y: pl.Series(y.astype(float)),
    "text": lambda y: pl.Series(NAMES[y]),
    "categories": lambda y: pl.Series(NAMES[y], dtype=pl.Categorical),
    "booleans": lambda y: pl.Series(y % 2 == 1),
}


@pytest.mark.parametrize("engine", BRIEFLY, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_and_label_type_gives_the_counts_of_arrays(engine: Engine, kind: str) -> None:
    true, pred = (KINDS[kind](y) for y in labels(0))
    expected = Predictions.from_arrays(true.to_numpy(), pred.to_numpy())
    found = Predictions.from_frame(engine(pl.DataFrame({"other": pred, "target": true, "prediction": pred})))
    assert found.classes == expected.classes
    np.testing.assert_array_equal(found.confusion.counts, expected.confusion.counts)


def test_whether_rows_leave_the_engine(engine: Engine, request: pytest.FixtureRequest) -> None:
    true, pred = labels(1)
    frame = engine(pl.DataFrame({"label": NAMES[true], "guess": NAMES[pred], "file": np.arange(300)}))
    report = audit(frame, columns=Columns(pred="guess"))
    lazy = request.node.callspec.params["engine"] in LAZY
    assert (report.samples is None) == lazy
    expected = audit(NAMES[true], NAMES[pred])
    assert report.metrics == expected.metrics
    assert report.verdict == expected.verdict
    kept = Predictions.from_frame(frame, Columns(pred="guess", id="file"), rows=True)
    assert kept.has_rows
    assert sorted(np.asarray(kept.ids).tolist()) == list(range(300))


@pytest.mark.parametrize("engine", BRIEFLY, indirect=True)
def test_scores_come_from_every_engine(engine: Engine) -> None:
    true, _ = labels(2)
    scores = np.random.default_rng(0).normal(size=(300, 4)).round(3)
    columns = {f"score_{k}": scores[:, k] for k in range(4)}
    found = Predictions.from_frame(
        engine(pl.DataFrame({"y": true, "row": np.arange(300), **columns})), Columns(id="row")
    )
    order = np.argsort(np.asarray(found.ids))
    np.testing.assert_array_equal(np.asarray(found.scores)[order], scores)
    assert found.scores_kind == "logits"


def test_a_table_that_is_already_counted(engine: Engine) -> None:
    true, pred = labels(3)
    rows = pl.DataFrame({"true": NAMES[true], "pred": NAMES[pred]})
    counted = rows.group_by("true", "pred").len("n").cast({"n": pl.Int64})
    expected = audit(rows)
    for frame, columns in (
        (counted, None),
        (counted.rename({"n": "rows"}), Columns(count="rows")),
        (pl.concat([counted, counted.with_columns(n=pl.lit(0, pl.Int64))]), None),
    ):
        report = audit(engine(frame), columns=columns)
        assert report.metrics == expected.metrics
        assert report.num_samples == 300
    for numbers, reason in (
        ([-1, 2], "whole numbers ≥ 0"),
        ([1, None], "whole numbers ≥ 0"),
        ([0.5, 1.0], "whole numbers"),
    ):
        frame = engine(pl.DataFrame({"true": [0, 1], "pred": [0, 1], "n": numbers}))
        with pytest.raises(InputError, match=f"column 'n' must hold {reason}"):
            audit(frame)


def test_slices_are_counted_by_the_engine(engine: Engine) -> None:
    true, pred = labels(5)
    rng = np.random.default_rng(0)
    site, year = rng.choice(["Bonn", "Rome"], 300), rng.choice([2024, 2025], 300)
    expected = Predictions.from_arrays(true, pred, by={"site": site, "year": year}).slice_counts()
    frame = pl.DataFrame({"y": true, "pred": pred, "site": site, "year": year})
    found = Predictions.from_frame(engine(frame), Columns(by=("site", "year"))).slice_counts()
    for name, counts in expected.items():
        assert found[name].names == counts.names
        np.testing.assert_array_equal(found[name].support, counts.support)
        np.testing.assert_array_equal(found[name].correct, counts.correct)
    holes = pl.DataFrame({"y": [0, 1, 1], "pred": [0, 1, 0], "site": ["Bonn", None, "Bonn"]})
    assert audit(engine(holes), by="site").slices["site"].per_slice["support"].sum() == 3  # type: ignore[index]


def test_missing_labels_and_empty_tables(engine: Engine) -> None:
    holes = pl.DataFrame({"y_true": ["a", None, "b", None], "y_pred": ["a", "b", "b", "b"]})
    with pytest.raises(InputError, match="column 'y_true' has 2 rows without a label"):
        audit(engine(holes))
    with pytest.raises(InputError, match="column 'y_true' has rows without a label"):
        audit(engine(holes.fill_null("")))
    with pytest.raises(InputError, match="at least one row, got none"):
        audit(engine(holes.drop_nulls().clear()))
    with pytest.raises(InputError, match="name it with --true or Columns"):
        audit(engine(holes.rename({"y_true": "colour"})))


# ---------------------------------------------------------------- compare


def two_tables(seed: int = 4) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same samples in two orders, with predictions of two models."""
    true, before = labels(seed)
    after = np.where(np.random.default_rng(9).random(300) < 0.3, true, before)
    first = pl.DataFrame({"file": [f"{i}.png" for i in range(300)], "label": NAMES[true], "pred": NAMES[before]})
    second = first.with_columns(pred=pl.Series(NAMES[after])).sample(fraction=1, shuffle=True, seed=1)
    return first, second


ID = Columns(id="file")


def test_comparison_joins_in_the_engine(engine: Engine) -> None:
    first, second = two_tables()
    expected = compare(first, second, columns=ID)
    found = compare(engine(first), engine(second), columns=ID)
    assert repr(found.metrics) == repr(expected.metrics)
    assert found.verdict == expected.verdict
    ours, theirs = (sorted(map(repr, c.per_class.tolist())) for c in (found, expected))
    assert ours == theirs
    for ours, theirs in ((found.before[0], expected.before[0]), (found.after[0], expected.after[0])):
        order = [theirs.classes.index(name) for name in ours.classes]
        np.testing.assert_array_equal(ours.confusion.counts, theirs.confusion.counts[order][:, order])


@pytest.mark.parametrize("engine", BRIEFLY, indirect=True)
def test_labels_may_be_spelled_differently(engine: Engine) -> None:
    first, second = two_tables()
    codes = {name: k for k, name in enumerate(NAMES.tolist())}
    second = second.with_columns(pl.col("label", "pred").replace_strict(codes))
    found = compare(engine(first), engine(second), columns=ID, class_names=NAMES.tolist())
    expected = compare(*two_tables(), columns=ID, class_names=NAMES.tolist())
    assert repr(found.metrics) == repr(expected.metrics)


@pytest.mark.parametrize("engine", BRIEFLY, indirect=True)
def test_ids_that_do_not_match(engine: Engine) -> None:
    first, second = two_tables()
    cases = {
        "lacks 2 ids of the first run and has 0 others": second.filter(~pl.col("file").is_in(["7.png", "8.png"])),
        r"lacks 1 ids of the first run and has 1 others \(e.g. 7.png, new.png\)": second.with_columns(
            file=pl.col("file").replace("7.png", "new.png")
        ),
        "must be unique, but 8.png occurs more than once": second.with_columns(
            file=pl.col("file").replace("7.png", "8.png")
        ),
        "column 'file' has 1 row without a value": second.with_columns(file=pl.col("file").replace("7.png", None)),
    }
    for reason, changed in cases.items():
        with pytest.raises(InputError, match=reason):
            compare(engine(first), engine(changed), columns=ID)
    relabelled = second.with_columns(label=pl.when(pl.col("file") == "7.png").then(pl.lit("dog")).otherwise("label"))
    with pytest.raises(InputError, match=r"true labels .*differ in 1 of 300 rows"):
        compare(engine(first), engine(relabelled), columns=ID)


def test_engines_without_an_order_of_rows_need_ids(spark: Any) -> None:
    first, second = two_tables()
    for hand_over in (lambda f: CONNECTION.from_arrow(f.to_arrow()), lambda f: spark.createDataFrame(f.to_arrow())):
        with pytest.raises(InputError, match=r"rows of .* have no fixed order.*id"):
            compare(hand_over(first), hand_over(second))
    assert compare(first.lazy(), first.lazy()).num_samples == 300  # the rows of polars have an order


def test_tables_of_different_engines_are_compared_by_their_rows() -> None:
    first, second = two_tables()
    found = compare(first.lazy(), CONNECTION.from_arrow(second.to_arrow()), columns=ID)
    assert repr(found.metrics) == repr(compare(first, second, columns=ID).metrics)
    several = compare([first.lazy(), second.lazy()], [CONNECTION.from_arrow(second.to_arrow())], columns=ID)
    assert several.num_samples == 300


@pytest.mark.parametrize("engine", BRIEFLY, indirect=True)
def test_whole_ids_of_different_types_are_joined(engine: Engine) -> None:
    first, second = two_tables()
    numbers = pl.col("file").str.extract(r"(\d+)").cast(pl.Int64)
    expected = compare(first, second, columns=ID)
    for kind in (pl.Float64, pl.Int64):
        stored = first.with_columns(file=numbers.cast(kind)), second.with_columns(file=numbers.cast(pl.String))
        assert repr(compare(*map(engine, stored), columns=ID).metrics) == repr(expected.metrics)


def test_tables_of_two_connections_are_compared_by_their_rows() -> None:
    import duckdb

    first, second = two_tables()
    other = duckdb.connect()
    found = compare(CONNECTION.from_arrow(first.to_arrow()), other.from_arrow(second.to_arrow()), columns=ID)
    assert repr(found.metrics) == repr(compare(first, second, columns=ID).metrics)
