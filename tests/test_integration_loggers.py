"""An audit in TensorBoard, MLflow and Weights & Biases, read back from a local store; nothing goes over the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classgap import AuditReport, audit
from classgap.checks import InputError
from classgap.integrations.loggers import log_report, numbers

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def report() -> AuditReport:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 300)
    return audit(y, np.where(rng.random(300) < 0.6 + 0.08 * y, y, 0), class_names=[*"abcde", "never"], n_boot=100)


def test_tensorboard(report: AuditReport, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        log_report(report, writer, step=3, prefix="val/")
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Scalars("val/hard")
    assert (event.step, event.value) == (3, pytest.approx(report.hard.value))
    assert set(events.Tags()["scalars"]) == set(numbers(report, "val/"))
    text = events.Tensors("val/report/text_summary")[0].tensor_proto.string_val[0].decode()
    assert report.verdict in text


def test_mlflow(report: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    try:
        with mlflow.start_run() as run:
            log_report(report, mlflow, step=2)
        found = mlflow.get_run(run.info.run_id)
    finally:
        mlflow.set_tracking_uri(before)
    assert found.data.metrics == pytest.approx(numbers(report, "classgap/"))
    (page,) = tmp_path.glob("runs/*/*/artifacts/classgap/step_2/report.html")
    assert "never" in page.read_text(encoding="utf-8")
    lines = page.with_name("classes.csv").read_text().splitlines()
    assert len(lines) == 7
    assert json.loads(page.with_name("report.json").read_text())["num_samples"] == 300


def test_weights_and_biases_offline(report: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(InputError, match="no run is active"):
        log_report(report, wandb)
    logged: list[dict[str, Any]] = []
    with wandb.init(mode="offline", dir=tmp_path, project="classgap", settings=wandb.Settings(console="off")) as run:
        plain = run.log
        monkeypatch.setattr(run, "log", lambda data, **more: (logged.append(data), plain(data, **more)))
        log_report(report, run, step=1)
        log_report(report, wandb, step=2, page=False)
        summary = dict(run.summary)
    assert summary["classgap/gap"] == pytest.approx(report.gap.value)
    table = logged[0]["classgap/classes"]
    accuracy = [row[table.columns.index("accuracy")] for row in table.data]
    assert accuracy[:5] == sorted(accuracy[:5])  # hardest first
    assert table.data[5][table.columns.index("name")] == "never"
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_wrong_use_is_said(report: AuditReport) -> None:
    with pytest.raises(InputError, match="to must be a SummaryWriter"):
        log_report(report, print)
    with pytest.raises(InputError, match="report must be an AuditReport, got dict"):
        log_report({}, sys)  # type: ignore[arg-type]
