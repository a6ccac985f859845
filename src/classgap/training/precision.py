"""Whether bfloat16 products work on this processor, with which setting, and how fast. Loads no torch; a child process finds out.

Some virtual machines advertise AMX instructions that they cannot execute: the first bfloat16 product then kills the process
with SIGILL, which no ``except`` can catch. oneDNN, which computes these products for torch, leaves AMX alone when
``ONEDNN_MAX_CPU_ISA`` limits it to an older instruction set. It reads this variable once, at the first computation of the
process, so the variable must be set before.

On a processor without instructions for bfloat16 a run can take three times as long as in float32, where one would expect
half the time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from classgap.checks import InputError

VARIABLE, LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
_KNOWN = "CLASSGAP_BF16"  # what the test processes found, for the children of this process
_SECONDS = 180  # loading torch may take long on a busy machine
_WORTH_SAYING = 1.3  # times as long as float32; closer to 1 than this, neither is clearly faster
# Prints the word "works", then how many times as long as float32 a training step takes if this is the only processor to train on.
_PROGRAM = """
import time
import torch
from torch import nn
torch.set_num_threads(1)
a, b = torch.ones(12, 8, dtype=torch.bfloat16), torch.ones(96, 64, dtype=torch.bfloat16)
a @ a.T, b @ b.T, b.T @ b
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, padding=1), nn.Flatten(), nn.Linear(1152, 256))
images = torch.ones(32, 3, 8, 8)
fastest = {True: float("inf"), False: float("inf")}
for _ in range(8):
    for bf16 in fastest:
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = net(images).float().sum()
        loss.backward()
        fastest[bf16] = min(fastest[bf16], time.perf_counter() - start)
gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
print("works", 0 if gpu else round(fastest[True] / fastest[False], 1))
"""


@dataclass(frozen=True)
class Bf16:
    """What bfloat16 products need on this processor.

    Attributes:
        works: Whether there is a setting in which they work.
        limited: Whether that setting is ``ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16``; otherwise it is the environment as it is.
        reason: What happened to the test process that failed; empty where the first one succeeded.
        times_float32: How many times as long as in float32 a training step takes; 0 where that is not known or there is a GPU.
    """

    works: bool
    limited: bool
    reason: str = ""
    times_float32: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether the environment of this process holds what they need."""
        return self.works and (not self.limited or os.environ.get(VARIABLE) == LIMIT)

    @property
    def sentence(self) -> str:
        """For the user; empty where there is nothing to say."""
        if not self.works:
            return (
                f"bfloat16 products do not work on this processor (a test process {self.reason}); use precision=32-true, "
                "or train on a GPU"
            )
        said = []
        if self.limited:
            said.append(
                f"bfloat16 products work on this processor only with {VARIABLE}={LIMIT} (without it a test process "
                f"{self.reason})"
            )
        if self.times_float32 >= _WORTH_SAYING:
            said.append(
                f"bfloat16 takes about {self.times_float32:g} times as long as float32 on this processor (measured on a small "
                "network); precision=32-true is faster"
            )
        return "; ".join(said)

    def export(self) -> None:
        """Set the variable for child processes, and for this one if it has not computed anything with torch yet."""
        if self.limited:
            os.environ[VARIABLE] = LIMIT


def probe_bf16() -> Bf16:
    """Try bfloat16 products in a child process: in this environment, then limited. Asked once; child processes inherit it."""
    if not (known := os.environ.get(_KNOWN)):
        limited, (reason, times) = False, _try({})
        works = not reason
        if not works:
            second, times = _try({VARIABLE: LIMIT})
            works = limited = not second
        known = os.environ[_KNOWN] = json.dumps([works, limited, reason, times])
    return Bf16(*json.loads(known))


def uses_bf16(precision: str) -> bool:
    """Whether a run in this precision computes bfloat16 products."""
    return precision.startswith("bf16")


def set_up_precision(precision: str, *, children: bool = False) -> str:
    """Set what ``precision`` needs on this processor; returns the sentence that tells the user, if there is one.

    To be called before torch is loaded, or with ``children=True`` before processes are started that will train. Where no
    setting works nothing is said, since the run may use a GPU: :func:`require_precision` decides that.
    """
    if not uses_bf16(precision):
        return ""
    found = probe_bf16()
    if children or "torch" not in sys.modules:
        found.export()
    return found.sentence if found.ready else ""


def require_precision(precision: str) -> None:
    """Refuse to compute on the processor in a precision that would end this process."""
    if not uses_bf16(precision):
        return
    found = probe_bf16()
    if not found.works:
        raise InputError(f"precision={precision}: {found.sentence}")
    if not found.ready:
        raise InputError(f"precision={precision}: {found.sentence}; set this variable before Python starts")


def _try(settings: dict[str, str]) -> tuple[str, float]:
    """What happened to a process that computes bfloat16 products with these environment variables (empty if nothing), and the
    number of times as long as float32 that it measured."""
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"gave no answer within {_SECONDS} seconds", 0.0
    printed = done.stdout.split()[-2:]
    if done.returncode == 0 and len(printed) == 2 and printed[0] == "works":
        return "", float(printed[1])
    if done.returncode < 0:
        return f"was killed by signal {-done.returncode}, {signal.strsignal(-done.returncode)}", 0.0
    last = done.stderr.strip().splitlines()[-1:]
    return " ".join([f"ended with code {done.returncode}", *(f"({line})" for line in last)]), 0.0
