"""All checks of losses, and one function that runs them without pytest."""

from __future__ import annotations

from collections.abc import Callable
from unittest import SkipTest

from classgap import registry
from classgap.registry import Method
from classgap.testing import state_checks, value_checks

LOSS_CHECKS: tuple[Callable[[Method], None], ...] = tuple(
    function
    for module in (value_checks, state_checks)
    for name, function in vars(module).items()
    if name.startswith("check_") and function.__module__ == module.__name__
)
"""Functions of a declaration that raise AssertionError if the loss fails a check, ``unittest.SkipTest`` if it does not apply."""


def check_loss(name: str) -> None:
    """Run every check that all losses of classgap pass on the loss of this name; the first failure is an error.

    The loss must be declared with ``@method``: import its module first, or name its file with ``classgap.registry.load_plugin``.

    Example:
        >>> check_loss("focal")
    """
    spec = registry.get("loss", name)
    for check in LOSS_CHECKS:
        try:
            check(spec)
        except SkipTest:
            continue
        except Exception as error:
            error.add_note(f"{name} fails {check.__name__} of classgap.testing")
            raise
