"""Processes that tests start. Limits end what hangs; they are no measure of speed, so a busy machine stays far below them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SECONDS = 600
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A running command, ended with the block however that ends. Ctrl-C reaches it also where it does not reach the tests."""
    heeds = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # a shell's background jobs ignore it
    with subprocess.Popen(command, text=True, **heeds, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Return as soon as ``condition`` holds; an error if ``process`` ends before."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, f"the process ended early with code {process.returncode}"
        assert time.monotonic() < deadline, f"nothing happened within {SECONDS} seconds"
        time.sleep(0.02)
