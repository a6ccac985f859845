"""What every test finds the same on every machine, the names that every docstring example may use, and testing without torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

# Before torch, NumPy and Typer are loaded. One thread: sums in the same order on every machine, also in the processes that
# tests start. No colours or progress bars in captured output, which continuous integration may ask for.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("FORCE_COLOR", None)
os.environ.pop("PY_COLORS", None)
os.environ.pop("GITHUB_ACTIONS", None)

import numpy as np
import pytest

import classgap

TORCH = importlib.util.find_spec("torch") is not None
TOOLS = ("lightning", "skorch", "timm", "torchmetrics", "transformers")
PACKAGE = Path(__file__).resolve().parent / "src" / "classgap"


@pytest.fixture(autouse=True)
def _same_everywhere(doctest_namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    doctest_namespace.update(np=np, classgap=classgap)
    if TORCH:
        import torch

        doctest_namespace.update(torch=torch)
    monkeypatch.setenv("COLUMNS", "80")  # not the width of this terminal


def _imports(names: frozenset[str], indent: str) -> re.Pattern[str]:
    """An import of torch or of one of these modules of classgap, at this indentation."""
    modules = "|".join(["torch", "lightning_fabric", *(rf"classgap\.{name}" for name in sorted(names))])
    return re.compile(rf"^{indent}(from|import) ({modules})\b", re.MULTILINE)


@functools.cache
def _torch_side() -> frozenset[str]:
    """Modules directly under ``classgap`` that import torch when they are loaded, themselves or through one another."""
    sources = {
        path.stem: "\n".join(
            file.read_text(encoding="utf-8") for file in ([path] if path.is_file() else path.rglob("*.py"))
        )
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    found: frozenset[str] = frozenset()
    while new := {name for name, text in sources.items() if _imports(found, "").search(text)} - found:
        found |= new
    return found


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without torch (``make lowest``), files that import it are left out; so is an adapter whose tool is not installed."""
    if collection_path.parent == PACKAGE / "integrations" and (tool := collection_path.stem.partition("_")[0]) in TOOLS:
        return True if importlib.util.find_spec(tool) is None else None
    if TORCH or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    if collection_path.is_relative_to(PACKAGE):
        top = collection_path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        return True if top in _torch_side() else None
    text = collection_path.read_text(encoding="utf-8")
    return True if _imports(_torch_side(), r"[ \t]*").search(text) else None


def pytest_report_header() -> str:
    return "" if TORCH else "torch is not installed: files that import it are left out"
