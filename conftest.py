"""Names that every docstring example may use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import classgap


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(np=np, torch=torch, classgap=classgap)
