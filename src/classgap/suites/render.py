"""A table in Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import math
import re
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
    """Text in rows and columns; columns of words, such as the first one, are aligned to the left, others to the right.

    Attributes:
        best: Heads of the columns whose largest number is printed in bold in LaTeX and HTML.
    """

    title: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[str, ...] = ()

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

    def _is_best(self, row: int, column: int) -> bool:
        """Whether the number that this cell starts with is the largest of a column in which one wants to see it."""
        if self.heads[column] not in self.best or len(self.rows) < 2:
            return False
        values = [_number(cells[column]) for cells in self.rows]
        return values[row] == max(values)

    def _latex(self) -> str:
        columns = "".join("l" if left else "r" for left in self._left)
        name = "-".join(re.findall(r"[a-z0-9]+", self.title.lower()))
        rows = [
            [rf"\textbf{{{latex_escape(c)}}}" if self._is_best(i, k) else latex_escape(c) for k, c in enumerate(cells)]
            for i, cells in enumerate(self.rows)
        ]
        return "\n".join(
            [
                r"% needs \usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{latex_escape(self.title)}.}}",
                rf"\label{{tab:{name}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                " & ".join(map(latex_escape, self.heads)) + r" \\",
                r"\midrule",
                *(" & ".join(cells) + r" \\" for cells in rows),
                r"\bottomrule",
                r"\end{tabular}",
                "",
                rf"\smallskip{{\footnotesize {latex_escape(self.caption)}\par}}",
                r"\end{table}",
                "",
            ]
        )

    def _html(self, level: int) -> str:
        def line(cells: tuple[str, ...], tag: str, row: int | None = None) -> str:
            parts = []
            for column, (cell, left) in enumerate(zip(cells, self._left, strict=True)):
                text = html.escape(cell)
                if row is not None and self._is_best(row, column):
                    text = f"<b>{text}</b>"
                parts.append(f"<{tag}>{text}</{tag}>" if left else f'<{tag} style="text-align:right">{text}</{tag}>')
            return f"<tr>{''.join(parts)}</tr>"

        rows = "\n".join(line(cells, "td", row) for row, cells in enumerate(self.rows))
        return (
            f"<h{level}>{html.escape(self.title)}</h{level}>\n<table>\n<caption>{html.escape(self.caption)}</caption>\n"
            f"<thead>{line(self.heads, 'th')}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n"
        )


def _number(cell: str) -> float:
    found = re.match(r"[+-]?\d+(\.\d+)?", cell)
    return float(found[0]) if found else -math.inf


def latex_escape(text: str) -> str:
    """``text`` so that LaTeX prints it as it is.

    Example:
        >>> latex_escape("50 % of a_b & {c} ↑")
        '50 \\\\% of a\\\\_b \\\\& \\\\{c\\\\} $\\\\uparrow$'
        >>> latex_escape("-1.5 [-2, +0.5], re-run")
        '$-$1.5 [$-$2, +0.5], re-run'
    """
    text = re.sub(r"(?<!\w)-(?=\d)", "−", text)
    return "".join(_LATEX.get(character, character) for character in text)
