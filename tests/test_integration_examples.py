"""The scripts ``examples/integration_*.py`` run on real texts, where the tool and the data are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("integration_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs(script: Path, shared_data: Path, tmp_path: Path) -> None:
    pytest.importorskip(script.stem.removeprefix("integration_"))
    if not (shared_data / "banking77_train.csv").is_file():
        pytest.skip("needs banking77_train.csv in ../shared/data, which this machine does not have")
    command = [sys.executable, str(script), str(shared_data)]
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=quiet, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "hard" in done.stdout
