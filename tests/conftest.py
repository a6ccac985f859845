"""Shared fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine, however busy it is.
settings.register_profile("classgap", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", settings.get_profile("classgap"), derandomize=False, database=None, print_blob=True)
settings.load_profile("classgap")

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.hookimpl(trylast=True)  # when tests that were not asked for have been taken out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set what bfloat16 needs on this processor. Collecting computes nothing with torch, so it is not too late."""
    if any(item.get_closest_marker("bf16") for item in items):
        from classgap.training.precision import probe_bf16

        probe_bf16().export()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("bf16"):
        from classgap.training.precision import probe_bf16

        if not probe_bf16().works:
            pytest.skip(probe_bf16().sentence)


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
