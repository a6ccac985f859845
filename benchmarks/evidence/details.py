"""docs/evidence_details.md: what helps and what does not, method by method, with its tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import figures
from committed import COMPACT, DIAL, EQUAL, HERE, MR2, RELEASED, Found, Measured, filled, turned_to
from regimes import OUTCOMES, by_outcome, collapse_table
from studies import geometry, ideas

from classgap.suites.render import Table

RIVALS = ("logit adjustment", "squeeze logits, weight 0.01", "label smoothing 0.1")
HEAD = """\
# Evidence in detail

What was found of each method, and the tables behind it. [evidence.md](evidence.md) says what to do and how to read the tables,
[evidence_runs.md](evidence_runs.md) lists every run. Written by `python benchmarks/evidence/page.py`.
"""


def details_page(found: Found, superseded: Found, equal: Found, measured: Mapping[str, Measured]) -> str:
    """The text of the page; draws its pictures too."""
    tables = (
        _on_every_task(found, MR2, "MR² on every task"),
        _on_every_task(found, RELEASED, "MR² released on every task"),
        _on_every_task(found, COMPACT, "Compact logits on every task"),
        _against_rivals(found),
        _after_training(found),
        _with_equal_samples(equal),
        _overview(found),
        collapse_table(),
    )
    return "\n".join(
        [
            HEAD,
            filled((HERE / "findings.md").read_text(), measured),
            *(table.render("md", level=2) for table in tables),
            _pictures(figures.draw(found, superseded)),
            *(geometry(path) for path in sorted(HERE.glob("*_geometry.json"))),
            ideas(),
        ]
    )


def _on_every_task(found: Found, variant: str, title: str) -> Table:
    """One variant against the reference, a row for each task."""
    rows = _rows_of(variant, found)
    caption = (
        "Difference to cross-entropy in points, with its 95 % interval over samples and seeds, as described above."
    )
    return Table(title, caption, ("task", *_heads(found)), tuple(rows))


def _against_rivals(found: Found) -> Table:
    """Compact logits against what one would try first, wherever both were run."""
    rows = [(rival, *row) for rival in RIVALS for row in _rows_of(COMPACT, turned_to(found, rival, COMPACT))]
    caption = (
        "Difference of compact logits to the method in the first column, which here is the reference and ranks the classes; "
        "otherwise as above. *Squeeze logits* is a penalty on large logits that does not look at classes."
    )
    return Table("Compact logits against other methods", caption, ("against", "task", *_heads(found)), tuple(rows))


def _after_training(found: Found) -> Table:
    """The gap dial as last stage, after compact logits and after cross-entropy."""
    dialled = (f"{COMPACT}{DIAL}", f"cross_entropy{DIAL}")
    rows = [(variant, *row) for variant in dialled for row in _rows_of(variant, found)]
    caption = (
        "Difference to cross-entropy without the dial in points, as above. The dial is fitted on the validation set, and its "
        "strength is chosen there: 50 samples per class, 60 on Fashion-MNIST. Cross-entropy does not use these samples; the next "
        "table corrects for that."
    )
    return Table("The gap dial after training", caption, ("variant", "task", *_heads(found)), tuple(rows))


def _with_equal_samples(equal: Found) -> Table:
    """The dial against using its validation samples for training."""
    rows = [(variant, *row) for variant in EQUAL for row in _rows_of(variant, equal)]
    caption = (
        "Difference in points to cross-entropy with as many additional training samples as the dial has for validation (on "
        "CIFAR-10 the same samples, elsewhere from the same pool). *Refit*: the dial is fitted as before, then the network is "
        "trained again with all samples and the dial is applied to it."
    )
    return Table("Equal numbers of samples on both sides", caption, ("variant", "task", *_heads(equal)), tuple(rows))


def _rows_of(variant: str, found: Found) -> list[tuple[str, ...]]:
    """The row of this variant in the table of differences of each task, under the name of the task."""
    return [
        (f"{suite.name}: {table.task.name}", *row[1:])
        for suite, _, tables in found
        for table in tables
        for row in table.differences.rows
        if row[0] == variant
    ]


def _heads(found: Found) -> tuple[str, ...]:
    """The columns of every table of differences, without the variant."""
    return tuple(found[0][2][0].differences.heads[1:])


def _overview(found: Found) -> Table:
    *outcomes, noise = OUTCOMES
    rows = []
    for suite, _, tables in found:
        for task in tables:
            by = by_outcome(task, list(task.comparisons))
            cells = ("; ".join(by[outcome]) or "–" for outcome in outcomes)
            rows.append((f"{suite.name}: {task.task.name}", *cells, str(len(by[noise]))))
    caption = (
        "Verdicts of classgap compare against the reference, from evidence_runs.md; the last column counts variants."
    )
    heads = ("task", *(outcome[0].lower() + outcome[1:] for outcome in OUTCOMES))
    return Table("All verdicts", caption, heads, tuple(rows))


def _pictures(drawn: Sequence[tuple[str, str]]) -> str:
    lines = [f"![{name}](images/{name})\n\n{caption}\n" for name, caption in drawn]
    return "\n".join(["## Pictures\n", *lines])
