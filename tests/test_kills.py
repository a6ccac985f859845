"""Runs that are killed at random moments and resumed end with the bytes of runs that were not; see ``kill_loop.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from image_files import NEEDS_TORCHVISION
from waiting import SECONDS

pytestmark = [NEEDS_TORCHVISION, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


def kill(folder: Path, kills: int, *names: str, seconds: int = SECONDS) -> str:
    script = Path(__file__).with_name("kill_loop.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(kills), "0", *names],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_some_kills(tmp_path: Path) -> None:
    assert "kills" in kill(tmp_path, 4, "mr2", "lazy")


@pytest.mark.slow
def test_many_kills_in_all_settings(tmp_path: Path) -> None:
    assert "kills" in kill(tmp_path, 90, seconds=6 * SECONDS)
