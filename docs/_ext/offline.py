"""A page that would load a script, a style sheet, a font or a picture from the network is a warning, and so an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc\s*=\s*["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref\s*=\s*["']?(?:https?:)?//[^"'\s>]+"""
    r"""|@import\s+(?:url\()?["']?https?://[^"')\s]+|\burl\(\s*["']?https?://[^"')\s]+"""
)
logger = logging.getLogger(__name__)


def check(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in (".html", ".css"):
            for found in set(LOADS.findall(path.read_text(encoding="utf-8"))):
                logger.warning("%s loads from the network: %s", path.relative_to(app.outdir), found[:200])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
