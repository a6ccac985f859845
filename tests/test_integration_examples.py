"""The scripts ``examples/integration_*.py`` run on real data, alone and with two processes, where tool and data are there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import LOOPBACK, SECONDS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TOOLS = {"loggers": "tensorboard", "sklearn": "sklearn"}
DATA = {
    "banking77_train.csv": ("transformers", "sklearn", "loggers"),
    "cifar100_effnetlite0_pca256.npz": ("lightning", "skorch", "torchmetrics"),
    "cifar10_500per.npz": ("timm",),
}
EVERY = [name for names in DATA.values() for name in names]
TRAIN = ("transformers", "lightning", "skorch", "timm")  # equal to a plain loop, with four accumulated batches


def run(name: str, folder: Path, cwd: Path, *before: str) -> str:
    """What the script prints; skipped without its tool or data."""
    tool = TOOLS.get(name, name)
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"needs {tool}, which is not installed")
    (file,) = (file for file, names in DATA.items() if name in names)
    if not (folder / file).is_file():
        pytest.skip(f"needs {file} in ../shared/data, which this machine does not have")
    command = [sys.executable, *before, str(EXAMPLES / f"integration_{name}.py"), str(folder)]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    done = subprocess.run(command, cwd=cwd, env=quiet, capture_output=True, text=True, timeout=3 * SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_there_is_one_for_every_tool() -> None:
    assert {path.stem for path in EXAMPLES.glob("integration_*.py")} == {f"integration_{name}" for name in EVERY}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_it_runs(name: str, shared_data: Path, tmp_path: Path) -> None:
    printed = run(name, shared_data, tmp_path)
    assert ("difference from a plain loop" in printed) == (name in TRAIN)
    assert "hard" in printed or name == "timm"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers", "lightning", "timm", "torchmetrics"])
def test_two_processes_give_the_same(name: str, shared_data: Path, tmp_path: Path) -> None:
    two = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--local-addr=127.0.0.1")
    assert "2 processes" in run(name, shared_data, tmp_path, *two)
