"""Where the command line finds tables: patterns, Hive partitions, an S3 server on this machine, a query on a DuckDB file."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from azurite import ACCOUNT, ACCOUNT_KEY, azurite
from classgap import Columns, Predictions, audit, compare
from classgap.checks import InputError
from classgap.cli.app import app
from classgap.predictions.stores import unreadable

ROWS = pl.DataFrame({"label": ["ant", "bee", "bee", "cat"] * 25, "pred": ["ant", "bee", "cat", "cat"] * 25})
OVERALL = 0.75


def run(*arguments: object) -> Any:
    """The report of the command as JSON."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(*arguments: object) -> str:
    """The error of the command."""
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False, standalone_mode=False)
    return str(caught.value)


def test_patterns_only_where_no_file_has_that_name(tmp_path: Path) -> None:
    for name in ("part-1.csv", "part-2.csv", "part-[12].csv"):
        ROWS.write_csv(tmp_path / name)
    assert run("audit", tmp_path / "part-*.csv")["num_samples"] == 300
    assert run("audit", tmp_path / "part-[12].csv")["num_samples"] == 100  # a file of this name exists
    assert "no file matches the pattern" in refused("audit", tmp_path / "none-*.csv")
    with pytest.raises(InputError, match="there is no file"):
        audit(tmp_path / "part-*.csv")  # in Python paths are literal


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    for site in ("Bonn", "Rome"):
        (tmp_path / "run=1" / f"site={site}").mkdir(parents=True)
        ROWS.write_parquet(tmp_path / "run=1" / f"site={site}" / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    found = Predictions.read(tmp_path, Columns(by=("site",)))
    assert found.slice_counts()["site"].names == ("Bonn", "Rome")
    assert found.num_samples == 200
    by_label = Predictions.read(
        tmp_path, Columns(true="site", pred="label"), class_names=["Bonn", "Rome", *"abc", "ant", "bee", "cat"]
    )
    assert by_label.confusion.support[:2].tolist() == [100, 100]
    alone = tmp_path / "run=1" / "site=Bonn" / "part-0.parquet"
    with pytest.raises(InputError, match="unknown column for --by 'site'"):
        Predictions.read(alone, Columns(by=("site",)))  # a file given by its path is read as it is


# ---------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """An S3 server on this machine, and a function that writes an object. The environment holds address and credentials."""
    boto3 = pytest.importorskip("boto3", reason="needs boto3, which writes the objects of this test")
    moto = pytest.importorskip("moto.server", reason="needs moto[server], an S3 server for tests")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    settings = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="data", ACL="public-read")

        def put(key: str, frame: pl.DataFrame) -> None:
            body = io.BytesIO()
            if key.endswith(".parquet"):
                frame.write_parquet(body)
            else:
                frame.write_csv(body, separator=";")
            client.put_object(Bucket="data", Key=key, Body=body.getvalue(), ACL="public-read")

        yield put
    server.stop()


def test_tables_in_an_object_store(bucket: Any) -> None:
    for site in ("Bonn", "Rome"):
        bucket(f"folder/site={site}/part.parquet", ROWS)
    bucket("folder/_SUCCESS", ROWS)
    bucket("rows.csv", ROWS)
    assert run("audit", "s3://data/rows.csv")["metrics"]["overall"]["value"] == OVERALL
    assert run("audit", "s3://data/folder/site=Bonn/part.parquet")["num_samples"] == 100
    assert run("audit", "s3://data/folder/")["num_samples"] == 200
    assert run("audit", "s3://data/folder")["num_samples"] == 200
    assert run("audit", "s3://data/folder/*/part.parquet")["num_samples"] == 200
    assert set(audit("s3://data/folder/", by="site").slices["site"].per_slice["name"]) == {"Bonn", "Rome"}  # type: ignore[index]
    better = ROWS.with_columns(pred=pl.col("label"))
    bucket("better.parquet", better)
    change = run("compare", "s3://data/rows.csv", "s3://data/better.parquet")
    assert change["metrics"]["overall"]["delta"]["value"] == 1 - OVERALL
    for address in ("s3://data/none.parquet", "s3://nobucket/rows.parquet"):
        sentence = refused("audit", address)
        assert sentence.startswith(
            f"{address} cannot be read: there is no such bucket, folder or file; check the address"
        )
    assert "must be a CSV or Parquet file" in refused("audit", "s3://data/scores.npz")


def test_tables_in_google_cloud_storage(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's store answers polars in the XML form of S3, so the S3 server of these tests stands in for it."""
    for site in ("Bonn", "Rome"):
        bucket(f"google/site={site}/part.parquet", ROWS)
    bucket("google.csv", ROWS)
    key = {"gcs_base_url": os.environ["AWS_ENDPOINT_URL"], "disable_oauth": True, "client_email": "", "private_key": "",
           "private_key_id": ""}  # fmt: skip
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    assert run("audit", "gs://data/google.csv")["metrics"]["overall"]["value"] == OVERALL
    assert run("audit", "gs://data/google/")["num_samples"] == 200
    assert run("audit", "gs://data/google/*/part.parquet")["num_samples"] == 200
    for address in ("gs://data/none.parquet", "gs://nobucket/rows.parquet"):
        assert refused("audit", address).startswith(
            f"{address} cannot be read: there is no such bucket, folder or file"
        )


@pytest.mark.slow
def test_tables_in_azure_blob_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Azurite, Microsoft's emulator (npm install azurite), on this machine."""
    with azurite(tmp_path) as (endpoint, put):
        settings = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                    "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY, "AZURITE_BLOB_STORAGE_URL": endpoint,
                    "AZURE_ALLOW_HTTP": "true"}  # fmt: skip
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        for site in ("Bonn", "Rome"):
            put(f"folder/site={site}/part.parquet", ROWS)
        put("rows.csv", ROWS)
        assert run("audit", "az://data/rows.csv")["metrics"]["overall"]["value"] == OVERALL
        assert run("audit", "az://data/folder/")["num_samples"] == 200
        assert run("audit", "az://data/folder/*/part.parquet")["num_samples"] == 200
        for address in ("az://data/none.parquet", "az://nobucket/rows.parquet"):
            assert refused("audit", address).startswith(f"{address} cannot be read: there is no such bucket, folder or")


@pytest.mark.parametrize(
    ("address", "error", "sentence"),
    [
        (
            "gs://data/a.csv",
            ValueError("Your default credentials were not found."),
            "gcloud auth application-default login",
        ),
        ("az://data/a.csv", OSError("Account must be specified"), "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://data/a.csv", OSError("Error performing GET: 403 Forbidden"), "set AWS_ACCESS_KEY_ID"),
        ("hf://datasets/a/b/c.csv", OSError("error sending request for url"), "the store cannot be reached"),
        ("hf://datasets/a/b/c.csv", OSError("401 Unauthorized"), "set HF_TOKEN"),
        ("s3://data/a.csv", FileNotFoundError("Object at location a.csv not found"), "no such bucket, folder or file"),
        ("ftp://data/a.csv", OSError("unknown scheme"), "check the address and your credentials"),
    ],
)
def test_what_is_missing_is_said(address: str, error: Exception, sentence: str) -> None:
    found = str(unreadable(address, error))
    assert found.startswith(f"{address} cannot be read: ")
    assert sentence in found


def test_errors_of_credential_libraries_end_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """google-auth raises an error of its own if it finds no credentials."""

    def no_credentials(*_: Any, **__: Any) -> None:
        raise LookupError("Your default credentials were not found.")

    monkeypatch.setattr(pl, "scan_parquet", no_credentials)
    assert "gcloud auth" in refused("audit", "gs://data/rows.parquet")


# ---------------------------------------------------------------- DuckDB


def test_a_query_on_a_duckdb_file(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb, whose files this test queries")
    file = tmp_path / "results.duckdb"
    with duckdb.connect(str(file)) as connection:
        arrow = ROWS.with_columns(split=pl.Series(["test", "train"] * 50)).to_arrow()
        connection.register("arrow", arrow)
        connection.sql("create table results as select * from arrow")
    assert run("audit", file, "--sql", "select label, pred from results")["metrics"]["overall"]["value"] == OVERALL
    counted = "select label, pred, count(*) as n from results group by all"
    assert run("audit", file, "--sql", counted)["num_samples"] == 100
    sliced = run("audit", file, "--sql", "from results", "--by", "split")
    assert sliced["slices"]["columns"]["split"]["per_slice"]
    assert "--sql" in refused("audit", file)
    assert "failed" in refused("audit", file, "--sql", "select nothing from nowhere")
    assert "failed" in refused("audit", file, "--sql", "drop table results")
    assert "needs one DuckDB file" in refused("audit", file, file, "--sql", "from results")
    assert "failed" in refused("audit", Path(__file__), "--sql", "from results")  # not a database


# ---------------------------------------------------------------- ids


def test_files_with_ids_are_joined_in_any_order(tmp_path: Path) -> None:
    rows = ROWS.with_row_index("file")
    rows.write_parquet(tmp_path / "before.parquet")
    after = rows.with_columns(pred=pl.col("label")).sample(fraction=1, shuffle=True, seed=3)
    after.write_csv(tmp_path / "after.csv")
    found = compare(tmp_path / "before.parquet", tmp_path / "after.csv", columns=Columns(id="file"))
    assert found.before[0].samples is None  # only counts were read
    assert found.metrics["overall"].delta.value == 1 - OVERALL
    np.testing.assert_array_equal(found.per_class["support"], [25, 50, 25])


# ---------------------------------------------------------------- the page


@pytest.mark.filterwarnings(
    "ignore:The inplace keyword"
)  # Dask reads a folder with an option that pandas 3.1 deprecates
def test_the_python_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the PySpark example, whose call ``tests/test_engines.py`` makes."""
    for tool in ("duckdb", "dask.dataframe", "pandas", "pyarrow"):
        pytest.importorskip(tool, reason=f"the page has an example with {tool}")
    page = Path(__file__).resolve().parents[1] / "docs" / "tables.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    rows = ROWS.rename({"pred": "top1"}).with_columns(
        split=pl.lit("test"), site=pl.Series(["Bonn", "Rome"] * 50), file=pl.int_range(pl.len())
    )
    for folder in ("predictions", "old", "new"):
        (tmp_path / folder).mkdir()
        rows.write_parquet(tmp_path / folder / "part-0.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        if "pyspark" not in block:
            exec(block, names)
            assert names["report"].num_samples == 100
    assert len(blocks) == 7
    assert names["change"].num_samples == 100


def test_a_table_of_counts_has_no_ids_to_pair_by(tmp_path: Path) -> None:
    """Beside a table with ids this was a traceback."""
    (tmp_path / "rows.csv").write_text("y_true,y_pred\na,a\nb,a\n")
    (tmp_path / "counts.csv").write_text("y_true,y_pred,n\na,a,3\nb,b,2\n")
    for order in (("rows.csv", "counts.csv"), ("counts.csv", "rows.csv")):
        with pytest.raises(InputError, match="hold only counts"):
            compare(*(tmp_path / name for name in order), columns=Columns(id="y_true"))
