"""Shared fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """Folder with the real CIFAR archives; tests that use it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs the real CIFAR archives in ../shared/data, which this machine does not have")
    return SHARED


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny suite of the bench with its folder and results."""
    from bench_suite import run_all

    return run_all(tmp_path_factory.mktemp("done"))
