"""``<a id="x"></a>`` in Markdown, which GitHub understands, as a target that links on the site find: ``[text](#x)``."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)


def convert(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = ANCHOR.sub(r"(\1)=", source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", convert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
