"""Tables of scores that are too large for memory: their labels are counted first, then the rows are read in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from classgap import checks
from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.predictions.binary import decide, two_columns, two_names
from classgap.predictions.confusion import Confusion
from classgap.predictions.labels import LabelCoder, resolve_classes
from classgap.predictions.predictions import Predictions, ScoreKind
from classgap.predictions.side_files import counts_in_order
from classgap.predictions.tables import Table, collect, in_order_of, label_values, sample_values, score_matrix

MOST_SCORES = 100_000_000
"""Scores (rows × classes) beyond which a table that is not in memory is measured in batches."""
_BATCH_SCORES = 4_000_000
_ENGINES = ("polars", "duckdb", "dask")


@dataclass(frozen=True, eq=False)
class Batches:
    """The rows of a table of scores as predictions, batch by batch; every iteration reads the table again.

    Attributes:
        support: ``(K,)`` rows of each class.
        single: Whether the scores are one column, that of the second of two classes.
        threshold, positive: What the user gave (see :func:`decide`), applied to every batch.
        place: Name of the table in error messages.
    """

    table: Table
    classes: tuple[str, ...]
    coders: tuple[LabelCoder, ...]
    support: Ints
    single: bool
    place: Any = "the table"
    threshold: float | None = None
    positive: str | None = None

    @property
    def num_samples(self) -> int:
        return int(self.support.sum())

    def read(self, kind: ScoreKind | None = None) -> Iterator[Predictions]:
        """The batches, in the order of the rows; scores are of the given kind, or of the kind that the first batch suggests.

        Raises:
            KindChanged: A later batch has values outside [0, 1], so the scores are logits, not probabilities.
        """
        from classgap.predictions.files import readable

        start = 0
        with readable(self.place):
            for rows in _row_batches(self.table, self._wanted):
                batch = self._encode(rows, kind, start)
                kind, start = batch.scores_kind, start + len(rows)
                yield batch

    def count(self) -> Confusion:
        """The confusion counts of all rows."""
        try:
            parts = [batch.confusion.counts for batch in self.read()]
        except KindChanged:  # the first batches looked like probabilities
            parts = [batch.confusion.counts for batch in self.read("logits")]
        return Confusion(sum(parts[1:], parts[0]))

    @property
    def _wanted(self) -> list[str]:
        found = self.table.columns
        names = (found.true, found.pred, *found.scores, *found.features, *found.samples.values())
        return list(dict.fromkeys(name for name in names if name is not None))

    def _encode(self, rows: Any, kind: ScoreKind | None, start: int) -> Predictions:
        from classgap.predictions.files import located

        found = self.table.columns
        y_true = self.coders[0](label_values(rows[found.true], found.true))
        width = 1 if self.single else len(self.classes)
        scores = checks.float_matrix("scores", score_matrix(rows, found.scores), columns=width)
        kind = _kind(scores, kind, self.single)
        if self.single:
            scores = two_columns(scores, kind, found.scores[0])
        elif kind == "probabilities":
            scores = checks.probabilities("scores", scores)
        if found.pred is not None:
            y_pred = self.coders[1](label_values(rows[found.pred], found.pred))
        else:
            y_pred = (scores[:, 1] >= scores[:, 0]).astype(np.int64) if self.single else scores.argmax(axis=1)
        columns = {name: sample_values(rows[column], name) for name, column in found.samples.items()}
        if "path" in columns and isinstance(self.place, Path):
            columns["path"] = located(columns["path"], self.place.parent)
        batch = Predictions(
            self.classes,
            y_true=y_true,
            y_pred=y_pred,
            scores=scores,
            scores_kind=kind,
            features=score_matrix(rows, found.features) if found.features else None,
            columns=columns,
            positive=1 if self.single else None,
            one_score=self.single,
            threshold=0.5 if self.single and found.pred is None else None,
            row_numbers=np.arange(start, start + len(rows)),
        )
        return decide(batch, self.threshold, self.positive)


class KindChanged(Exception):
    """The first batches looked like probabilities, but later scores lie outside [0, 1]."""


def _kind(scores: NDArray[Any], kind: ScoreKind | None, single: bool) -> ScoreKind:
    outside = kind != "logits" and (not checks.in_unit_range(scores) if single else checks.are_logits(scores))
    if kind is None and outside:
        checks.refuse_percentages("scores", scores, independent=single)
    if kind == "logits" or (kind is None and outside):
        return "logits"
    if outside:
        raise KindChanged
    return "probabilities"


def may_be_large(table: Table) -> bool:
    """Whether the table has scores, is not in memory, and is in an engine that gives its rows in batches."""
    found = table.columns
    plain = "sample_weight" not in found.samples and found.count is None
    return plain and bool(found.scores) and not table.in_memory and table.engine in _ENGINES


def num_scores(table: Table) -> int:
    """Rows × classes of a table of scores; only rows are counted, none is read."""
    rows = int(collect(table.data.lazy().select(n=nw.len()))["n"][0])
    return rows * _width(table)


def _width(table: Table) -> int:
    names = table.columns.scores
    if len(names) > 1:
        return len(names)
    first = collect(table.data.lazy().select(names[0]).head(1))
    if len(first) == 0:
        return 0
    return max(2, int(score_matrix(first, names).shape[1]))


def open_batches(table: Table, class_names: Sequence[str] | None, train_counts: Any, place: Any) -> Predictions:
    """Predictions that read their rows in batches: only the labels are read here."""
    found, width = table.columns, _width(table)
    single = len(found.scores) == 1 and table.data.collect_schema()[found.scores[0]].is_numeric()
    names = class_names if class_names is not None else found.spelled
    columns = [name for name in (found.true, found.pred) if name is not None]
    groups = collect(table.data.lazy().select(*columns).group_by(*columns).agg(n=nw.len()))
    counts = groups["n"].to_numpy().astype(np.int64)
    if counts.sum() == 0:
        raise InputError("the predictions must have at least one row, got none")
    labels = [label_values(groups[name], name, counts) for name in columns]
    if found.spelled is not None and names is not None and set(found.spelled) == set(names):
        table = replace(table, columns=replace(found, scores=in_order_of(names, found, labels)))
    distinct = [(f"column {name!r}", np.unique(values)) for name, values in zip(columns, labels, strict=True)]
    notes: tuple[str, ...] = ()
    if single:
        names, notes = two_names(distinct, names, f"column {found.scores[0]!r}")
    classes, coders, more = resolve_classes(
        distinct,
        names=names,
        width=width,
        option=table.names_option,
        numbered=found.numbered,
        only_names=found.named_by_numbers,
    )
    support = np.zeros(len(classes), dtype=np.int64)
    np.add.at(support, coders[0](labels[0]), counts)
    batches = Batches(table, classes, tuple(coders), support, single, place)
    known = None if train_counts is None else counts_in_order(train_counts, classes, coders)
    return Predictions(classes, batches=batches, train_counts=known, notes=(*more, *notes))


def _row_batches(table: Table, wanted: Sequence[str]) -> Iterator[Any]:
    """Rows of a table that is not in memory, in order."""
    size = max(1000, _BATCH_SCORES // max(len(wanted), _width(table)))
    data, engine = table.data.select(*wanted), table.engine
    if engine == "polars":
        for batch in data.to_native().collect_batches(chunk_size=size, maintain_order=True):
            yield from _parts(batch, size)
    elif engine == "duckdb":
        import polars as pl

        relation = data.to_native()
        reader = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
        for batch in reader(size):
            yield from _parts(pl.from_arrow(batch), size)
    else:
        for partition in data.to_native().partitions:
            yield from _parts(partition.compute(), size)


def _parts(native: Any, size: int) -> Iterator[Any]:
    """A native table in memory as narwhals tables of at most ``size`` rows."""
    rows = nw.from_native(native, eager_only=True)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
