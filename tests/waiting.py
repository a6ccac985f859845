"""Limits of tests with processes: they end what hangs. They are no measure of speed, so a busy machine stays far below them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

SECONDS = 600


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[Any]) -> None:
    """Return as soon as ``condition`` holds; an error if ``process`` ends before."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, f"the process ended early with code {process.returncode}"
        assert time.monotonic() < deadline, f"nothing happened within {SECONDS} seconds"
        time.sleep(0.02)
