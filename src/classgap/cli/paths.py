"""Paths on the command line: literal, addresses in object stores, or quoted file patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from classgap.checks import InputError


def check_filled(words: Sequence[str]) -> None:
    """Refuse a command with an empty argument, which would mean the current folder: usually a variable is not set."""
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if word and not (option.startswith("--") and equals and not value):
            continue
        place = option if word else before
        name = f"the value of {place}" if place.startswith("--") else "an argument"
        raise InputError(f"{name} is empty; is a variable not set? For the current folder write .")


def matching(path: str) -> list[str]:
    """An existing path or an address as it is; otherwise the files that match the pattern, sorted.

    Only ``*`` and ``?`` make a pattern: a file that is called ``x[12].csv``, and is missing, must not give ``x1.csv``.
    """
    if os.path.exists(path) or "://" in path or not set(path) & set("*?"):
        return [path]
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise InputError(f"no file matches the pattern {path!r}")
    return found


def title(paths: Sequence[str]) -> str:
    """What reports call these files."""
    first = paths[0] if "://" in paths[0] else Path(paths[0]).name
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
