"""Names that every docstring example may use; and, where torch is not installed, the tests of the half that needs none."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classgap

TORCH = importlib.util.find_spec("torch") is not None
_TORCH_SIDE = r"losses|heads|optim|samplers|stats|data|models|train|bench"
_IMPORTS_TORCH = re.compile(rf"^\s*(from|import) (torch|lightning_fabric|classgap\.({_TORCH_SIDE}))\b", re.MULTILINE)
_TORCH_FOLDER = re.compile(rf"classgap/({_TORCH_SIDE})(/|\.py)")


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(np=np, classgap=classgap)
    if TORCH:
        import torch

        doctest_namespace.update(torch=torch)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without torch (``make lowest``), files that import it are left out."""
    if TORCH or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    on_torch_side = _TORCH_FOLDER.search(collection_path.as_posix())
    return True if on_torch_side or _IMPORTS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_report_header() -> str:
    return "" if TORCH else "torch is not installed: files that import it are left out"
