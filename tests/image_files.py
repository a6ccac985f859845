"""Small image files for tests."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# Not importorskip: nothing may compute while tests are collected, before conftest.py sets what bf16 needs; torchvision might.
NEEDS_TORCHVISION = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")


def write_image(path: Path, seed: int, size: tuple[int, int] = (12, 12), colour: int | None = None) -> None:
    """An image of ``size`` (width, height): noise around a colour of its class."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 80, (size[1], size[0], 3), dtype=np.uint8)
    if colour is not None:
        pixels[..., colour % 3] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **({"quality": 95} if path.suffix == ".jpg" else {}))


def write_folder(
    root: Path,
    parts: Mapping[str, int] | None = None,
    *,
    classes: tuple[str, ...] = ("ant", "bee", "cat"),
    size: tuple[int, int] = (12, 12),
    suffix: str = ".png",
) -> Path:
    """``root/PART/CLASS/…`` with so many images per class in each part; a part ``""`` is ``root/CLASS/…``."""
    seed = 0
    for part, count in (parts or {"train": 12, "test": 5}).items():
        for k, name in enumerate(classes):
            for i in range(count):
                write_image(root / part / name / f"{i:02d}{suffix}", seed := seed + 1, size, k)
    return root


def truncate(path: Path) -> None:
    """Cut a file in half."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
