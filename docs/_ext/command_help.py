"""The directive ``command-help``: what ``classgap VERB --help`` prints, so that the page cannot differ from the program."""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner


def help_text(words: list[str]) -> str:
    """Standard output of ``classgap WORDS --help`` on a terminal of 90 columns without colours."""
    from classgap.cli.app import app

    plain = {"COLUMNS": "90", "TERMINAL_WIDTH": "90", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*words, "--help"], env=plain, prog_name="classgap")
    if result.exit_code != 0:
        raise RuntimeError(f"classgap {' '.join(words)} --help failed:\n{result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip("\n").splitlines())


class CommandHelp(SphinxDirective):
    """``.. command-help:: audit``; without an argument, the help of ``classgap`` itself."""

    optional_arguments: ClassVar[int] = 10  # type: ignore[misc]

    def run(self) -> list[nodes.Node]:
        text = help_text(list(self.arguments))
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
