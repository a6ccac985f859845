"""Every loss × every check: ``pytest --pyargs classgap.testing -k my_loss``. The only module of the package that needs pytest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from classgap import registry
from classgap.registry import Method
from classgap.testing.losses import LOSS_CHECKS


@pytest.mark.parametrize("check", LOSS_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("spec", registry.methods("loss"), ids=lambda spec: spec.name)
def test_loss(spec: Method, check: Callable[[Method], None]) -> None:
    check(spec)
