"""A table in Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Literal, get_args

Format = Literal["md", "tex", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "²": r"\textsuperscript{2}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "√": r"$\surd$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "π": r"$\pi$",
    "τ": r"$\tau$",
    "–": "--",
}


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; columns of words, such as the first one, are aligned to the left, others to the right."""

    title: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def render(self, form: Format, *, level: int = 3) -> str:
        """The table as text of the format, with title (a heading of ``level`` in Markdown and HTML) and caption."""
        if form == "md":
            return self._markdown(level)
        return self._latex() if form == "tex" else self._html(level)

    @property
    def _left(self) -> tuple[bool, ...]:
        """Columns of words."""
        return tuple(i == 0 or any(row[i][:1].isalpha() for row in self.rows) for i in range(len(self.heads)))

    def _markdown(self, level: int) -> str:
        from rich.cells import cell_len

        from classgap.measure.render.plain import escape

        def pad(cell: str, width: int, left: bool) -> str:
            space = " " * (width - cell_len(cell))
            return cell + space if left else space + cell

        lines = [tuple(map(escape, row)) for row in (self.heads, *self.rows)]
        widths = [max(cell_len(row[i]) for row in lines) for i in range(len(self.heads))]
        # Padded, so that it is a table in a terminal and in an editor too.
        padded = [f"| {' | '.join(map(pad, row, widths, self._left))} |" for row in lines]
        rule = "|".join(
            f" {'-' * w} " if left else f" {'-' * (w - 1)}: " for w, left in zip(widths, self._left, strict=True)
        )
        body = "\n".join([padded[0], f"|{rule}|", *padded[1:]])
        return f"{'#' * level} {escape(self.title)}\n\n{body}\n\n{escape(self.caption)}\n"

    def _latex(self) -> str:
        columns = "".join("l" if left else "r" for left in self._left)
        lines = [" & ".join(map(latex_escape, row)) + r" \\" for row in (self.heads, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                rf"\caption{{{latex_escape(self.title)}. {latex_escape(self.caption)}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def _html(self, level: int) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            styles = ("" if left else ' style="text-align:right"' for left in self._left)
            parts = (f"<{tag}{style}>{html.escape(c)}</{tag}>" for c, style in zip(cells, styles, strict=True))
            return f"<tr>{''.join(parts)}</tr>"

        rows = "\n".join(line(row, "td") for row in self.rows)
        return (
            f"<h{level}>{html.escape(self.title)}</h{level}>\n<table>\n<caption>{html.escape(self.caption)}</caption>\n"
            f"<thead>{line(self.heads, 'th')}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n"
        )


def latex_escape(text: str) -> str:
    """``text`` so that LaTeX prints it as it is.

    Example:
        >>> latex_escape("50 % of a_b & {c} ↑")
        '50 \\\\% of a\\\\_b \\\\& \\\\{c\\\\} $\\\\uparrow$'
    """
    return "".join(_LATEX.get(character, character) for character in text)
