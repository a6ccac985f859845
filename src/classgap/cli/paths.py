"""Paths on the command line: literal, addresses in object stores, or quoted file patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from classgap.checks import InputError


def matching(path: str) -> list[str]:
    """An existing path or an address as it is; otherwise the files that match the pattern, sorted."""
    if os.path.exists(path) or "://" in path or glob.escape(path) == path:
        return [path]
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise InputError(f"no file matches the pattern {path!r}")
    return found


def title(paths: Sequence[str]) -> str:
    """What reports call these files."""
    first = paths[0] if "://" in paths[0] else Path(paths[0]).name
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
