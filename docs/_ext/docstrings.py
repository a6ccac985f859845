"""What autodoc and napoleon do not do with our docstrings: headings inside a paragraph, references to inherited methods."""

from __future__ import annotations

import importlib
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

HEADING = re.compile(r"^(When to use|Expect|Pitfalls|Reference):\s+(?=\S)")


def separate_headings(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """``Pitfalls: …`` at the start of a line begins a paragraph of its own."""
    result: list[str] = []
    for line in lines:
        if HEADING.match(line):
            result.append("")
            line = HEADING.sub(r"**\1:** ", line)
        result.append(line)
    lines[:] = result


def skip_generated(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out ``set_fit_request`` and the like, which scikit-learn adds to every estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def find_inherited(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element) -> Any:
    """``:meth:`name``` in the docstring of a class also means a method that the class inherits."""
    module, owner = node.get("py:module"), node.get("py:class")
    if node.get("refdomain") != "py" or not (module and owner):
        return None
    cls: Any = importlib.import_module(module)
    for part in owner.split("."):
        cls = getattr(cls, part, None)
    domain = env.domains.python_domain
    for ancestor in getattr(cls, "__mro__", ())[1:]:
        for full in domain.objects:
            if full.endswith(f".{ancestor.__name__}.{node['reftarget']}"):
                kind, builder = node["reftype"], app.builder
                return domain.resolve_xref(env, node["refdoc"], builder, kind, full, node, contnode)
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", separate_headings, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", skip_generated)
    app.connect("missing-reference", find_inherited)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
