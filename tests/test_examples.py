"""The scripts in ``examples/`` run, quickly, without a warning, and only on data that everybody has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("plot_*.py"))


def test_there_are_examples() -> None:
    assert len(SCRIPTS) >= 7


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs(script: Path, tmp_path: Path) -> None:
    if re.search(r"import torch|classgap\.(losses|train)", script.read_text()):
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,  # on an idle machine each takes less than a minute; here many tests share it
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_needs_nothing_that_users_do_not_have(script: Path) -> None:
    text = script.read_text()
    for word in ("fetch_", "openml", "/work", "shared/", "pandas", "matplotlib", "classgap._"):
        assert word not in text, f"{script.name} uses {word}"
