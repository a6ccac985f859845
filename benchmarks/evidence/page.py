"""Write the pages of evidence and README's table from the committed results.

    python benchmarks/evidence/page.py        # about two minutes on one core; OMP_NUM_THREADS=1 if it is busy
docs/evidence.md says what to do, evidence_details.md what was found of each method, evidence_runs.md has every run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from committed import (
    HERE,
    RULE,
    Found,
    Measured,
    all_measured,
    committed_results,
    superseded_results,
    with_other_references,
)
from details import details_page
from regimes import collapse_section, regime_tables
from runs_page import runs_page
from situations import HEADS, rows, situation_table, unmeasured_section

ROOT = HERE.parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """The text of each file; draws the pictures too."""
    found = committed_results()
    superseded, turned = superseded_results(found), with_other_references(found)
    measured = all_measured(found, superseded, turned)
    return {
        ROOT / "docs" / "evidence.md": summary(found, turned["equal epochs"], measured),
        ROOT / "docs" / "evidence_details.md": details_page(found, superseded, turned["equal samples"], measured),
        ROOT / "docs" / "evidence_runs.md": runs_page(found, superseded),
        README: with_table(README.read_text(), measured),
    }


def summary(found: Found, equally_long: Found, measured: Mapping[str, Measured]) -> str:
    """What to do, by situation; a short table for each regime; why the published form of MR² stops training."""
    runs = sum(len(results) for _, results, _ in found)
    head = (HERE / "reading.md").read_text().format(rule=RULE.meaning, runs=f"{runs:,}")
    regimes = regime_tables(found, equally_long)
    parts = (head, situation_table(measured), regimes, collapse_section(measured), unmeasured_section())
    return "\n".join(parts)


def with_table(readme: str, measured: Mapping[str, Measured]) -> str:
    """The text with the table between its two marks written again."""
    lines = [HEADS, ("---",) * len(HEADS), *rows(measured, readme=True)]
    return BLOCK.sub("".join(f"| {' | '.join(cells)} |\n" for cells in lines), readme)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
        print(f"written: {path.relative_to(ROOT)}", flush=True)
