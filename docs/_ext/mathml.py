"""Formulas as MathML, which browsers draw themselves: no script, no fonts, no network. Docutils does the conversion."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_BIG = re.compile(r"\\([bB]igg?)\s*(\\[{}|]|[^\w\s])")
_REWRITES = (
    (re.compile(r"\\textstyle\b"), ""),
    (re.compile(r"…"), r"\\ldots"),
    (re.compile(r"\\mathop\{\\mathrm\{(\w+)\}\}"), r"\\operatorname*{\1}"),
)

logger = logging.getLogger(__name__)


def understood(tex: str) -> str:
    """The formula in commands that docutils knows."""
    for pattern, replacement in _REWRITES:
        tex = pattern.sub(replacement, tex)
    return _BIG.sub(_sided, tex)


def _sided(match: re.Match[str]) -> str:
    """Docutils knows ``bigl`` and ``bigr``, which say on which side the delimiter stands, but not ``big``."""
    size, delimiter = match.groups()
    if delimiter == "/":
        return "/"
    side = "r" if delimiter in (")", "]", "\\}") else "l"
    return f"\\{size}{side}{delimiter}"


def convert(node: nodes.Element, *, as_block: bool) -> str:
    """The formula of ``node``; one that cannot be converted is a warning, and shown as TeX."""
    tex = understood(node.astext().strip())
    if as_block and not tex.startswith("\\begin{") and ("\\\\" in tex or "&" in tex):
        tex = f"\\begin{{aligned}}{tex}\\end{{aligned}}"
    try:
        return str(tex2mathml(tex, as_block=as_block))
    except MathError as error:
        logger.warning("formula cannot be converted to MathML (%s): %s", error, tex, location=node)
        return f"<code>{tex}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(convert(node, as_block=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    self.body.append(f"{number}{convert(node, as_block=True)}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("config-inited", lambda _, config: config.__setitem__("html_math_renderer", "mathml"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
