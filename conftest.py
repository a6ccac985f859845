"""What every test finds the same on every machine, and the names that every docstring example may use."""

from __future__ import annotations

import os
from typing import Any

# Before torch, NumPy and Typer are loaded. One thread: sums in the same order on every machine, also in the processes that
# tests start. No colours or progress bars in captured output, which continuous integration may ask for.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("FORCE_COLOR", None)
os.environ.pop("PY_COLORS", None)
os.environ.pop("GITHUB_ACTIONS", None)

import numpy as np
import pytest
import torch

import classgap


@pytest.fixture(autouse=True)
def _same_everywhere(doctest_namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    doctest_namespace.update(np=np, torch=torch, classgap=classgap)
    monkeypatch.setenv("COLUMNS", "80")  # not the width of this terminal
