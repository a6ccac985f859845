"""TensorBoard, MLflow and Weights & Biases: an audit of each step in a local store, with whichever of them is installed.

python examples/integration_loggers.py FOLDER     # with banking77_train.csv and banking77_test.csv (columns text, category)
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import polars as pl
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import classgap
from classgap.integrations.loggers import log_report


def reports(folder: Path) -> list[classgap.AuditReport]:
    """Audits of three models that differ in their regularisation."""
    train, test = (pl.read_csv(folder / f"banking77_{part}.csv") for part in ("train", "test"))
    train = train.sample(2000, seed=0, shuffle=True)
    words = TfidfVectorizer(min_df=2)
    rows, new = words.fit_transform(train["text"].to_list()), words.transform(test["text"].to_list())
    found = []
    for strength in (0.1, 1.0, 10.0):
        model = LogisticRegression(C=strength, max_iter=200).fit(rows, train["category"].to_numpy())
        found.append(classgap.audit(test["category"].to_numpy(), model.predict(new)))
    return found


def main(folder: Path) -> None:
    audits = reports(folder)
    with tempfile.TemporaryDirectory() as scratch:
        if importlib.util.find_spec("tensorboard") and importlib.util.find_spec("torch"):
            from torch.utils.tensorboard import SummaryWriter

            with SummaryWriter(f"{scratch}/tensorboard") as writer:
                for step, report in enumerate(audits):
                    log_report(report, writer, step=step)
        if importlib.util.find_spec("mlflow"):
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = os.environ["DO_NOT_TRACK"] = "true"
            import mlflow

            mlflow.set_tracking_uri(Path(f"{scratch}/mlflow").as_uri())
            with mlflow.start_run():
                for step, report in enumerate(audits):
                    log_report(report, mlflow, step=step)
        if importlib.util.find_spec("wandb"):
            os.environ["WANDB_SILENT"] = "true"
            import wandb

            with wandb.init(mode="offline", dir=scratch, project="classgap") as run:
                for step, report in enumerate(audits):
                    log_report(report, run, step=step)
        for tool in sorted(path.name for path in Path(scratch).iterdir()):
            files = [path for path in Path(scratch, tool).rglob("*") if path.is_file()]
            print(f"{tool}: {len(files)} files, pages: {sum(path.name == 'report.html' for path in files)}")
    print("hard third of the classes:", [f"{report.hard.value:.3f}" for report in audits])


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
