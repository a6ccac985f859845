"""One thread per test process, and the names that every docstring example may use."""

from __future__ import annotations

import os
from typing import Any

# Before torch and NumPy are loaded: sums in the same order on every machine, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

import classgap


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(np=np, torch=torch, classgap=classgap)
