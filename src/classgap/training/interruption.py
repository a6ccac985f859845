"""Signals that ask a run to stop: it saves a checkpoint first. SLURM sends one before the time of a job is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
_received: signal.Signals | None = None


class RunInterrupted(Exception):
    """A run has stopped at the request of a signal, after a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after a checkpoint was saved")
        self.number = number


@contextlib.contextmanager
def noting_signals() -> Iterator[None]:
    """Within this block SIGTERM and SIGUSR1 are noted, and a run stops at its next step; a second one acts as usual."""
    global _received
    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def note(number: int, frame: FrameType | None) -> None:
        global _received
        _received = signal.Signals(number)
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield
    finally:
        _received = None
        for number, handler in before.items():
            signal.signal(number, handler)


def received() -> int:
    """Number of the signal that was noted; 0 for none."""
    return 0 if _received is None else int(_received)


def requeue(number: int) -> str | None:
    """Put a SLURM job that was warned by SIGUSR1 into the queue again; its identifier, or None where that does not apply."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or signal.Signals(number).name != "SIGUSR1":
        return None
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return job if done.returncode == 0 else None
