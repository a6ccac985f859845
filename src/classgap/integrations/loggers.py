"""An audit in TensorBoard, MLflow or Weights & Biases: ``log_report(report, writer, step=epoch)``. No torch.

Numbers go where the tool draws curves; the classes go into a table and the page into a file where the tool has these.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from classgap.checks import InputError
from classgap.measure.audit_report import HEADLINES, AuditReport
from classgap.measure.render.plain import records
from classgap.predictions.export import csv_text

NUMBERS = (*HEADLINES, "worst_corrected", "gap_corrected")
WANDB_ROWS = 10_000  # more rows of a table are not shown


def log_report(
    report: AuditReport, to: Any, *, step: int | None = None, prefix: str = "classgap/", page: bool = True
) -> None:
    """Log an audit with the tool that ``to`` belongs to.

    ================  ==========================  ============================================================
    tool              ``to``                      what is logged
    ================  ==========================  ============================================================
    TensorBoard       a ``SummaryWriter``         numbers; the report as text (pages are not shown there)
    MLflow            the module ``mlflow``       metrics of the active run; table, JSON and page as artifacts
    Weights & Biases  a run, or module ``wandb``  numbers; table of classes (at most 10 000); page as artifact
    ================  ==========================  ============================================================

    Args:
        report: What :func:`classgap.audit` returned.
        to: A writer, run or module, see above.
        step: Epoch or step that the numbers belong to.
        prefix: Put before every name.
        page: Whether to log the report page, which takes about a second to write.
    """
    if not isinstance(report, AuditReport):
        raise InputError(f"report must be an AuditReport, got {type(report).__name__}; make one with classgap.audit")
    tool = (to.__name__ if isinstance(to, ModuleType) else type(to).__module__).partition(".")[0]
    if hasattr(to, "add_scalar") and hasattr(to, "add_text"):
        _tensorboard(report, to, step, prefix)
    elif tool == "mlflow" and isinstance(to, ModuleType):
        _mlflow(report, to, step, prefix, page)
    elif tool == "wandb":
        _wandb(report, to, step, prefix, page)
    else:
        raise InputError(
            "to must be a SummaryWriter of TensorBoard, the module mlflow, or a run of Weights & Biases, got "
            f"{type(to).__name__}"
        )


def numbers(report: AuditReport, prefix: str = "") -> dict[str, float]:
    """Headline numbers of a report that are known, under names with a prefix.

    Example:
        >>> numbers(classgap.audit([0, 0, 1, 1], [0, 1, 1, 1]), "test/")["test/gap"]
        0.5
    """
    values = {name: report.metrics[name].value for name in NUMBERS if name in report.metrics}
    return {f"{prefix}{name}": value for name, value in values.items() if not math.isnan(value)}


def _tensorboard(report: AuditReport, writer: Any, step: int | None, prefix: str) -> None:
    for name, value in numbers(report, prefix).items():
        writer.add_scalar(name, value, global_step=step)
    writer.add_text(f"{prefix}report", report.to_markdown(), global_step=step)


def _mlflow(report: AuditReport, mlflow: Any, step: int | None, prefix: str, page: bool) -> None:
    mlflow.log_metrics(numbers(report, prefix), step=step)
    folder = prefix.rstrip("/") + ("" if step is None else f"/step_{step}")
    rows = records(report.per_class)
    mlflow.log_text(csv_text(rows), f"{folder}/classes.csv".lstrip("/"))
    mlflow.log_dict(report.to_dict(), f"{folder}/report.json".lstrip("/"))
    if page:
        with tempfile.TemporaryDirectory() as scratch:
            mlflow.log_artifact(str(report.to_html(Path(scratch) / "report.html")), folder.lstrip("/") or None)


def _wandb(report: AuditReport, run: Any, step: int | None, prefix: str, page: bool) -> None:
    import wandb

    if isinstance(run, ModuleType):
        if wandb.run is None:
            raise InputError("to is the module wandb, but no run is active; call wandb.init first, or pass a run")
        run = wandb.run
    per_class = report.per_class
    hardest_first = np.argsort(per_class["accuracy"], kind="stable")  # absent classes, whose accuracy is nan, come last
    rows = records(per_class[hardest_first[:WANDB_ROWS]])
    table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
    run.log({**numbers(report, prefix), f"{prefix}classes": table}, step=step)
    if page:
        artifact = wandb.Artifact(f"classgap-report-{run.id}", type="report")
        with tempfile.TemporaryDirectory() as scratch:
            artifact.add_file(str(report.to_html(Path(scratch) / "report.html")))
            run.log_artifact(artifact)
