"""Counts of labels, computed by the engine that holds the rows: only distinct pairs of labels and their numbers leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from classgap.arrays import Ints
from classgap.checks import InputError
from classgap.predictions.batches import MOST_SCORES, may_be_large, num_scores, open_batches
from classgap.predictions.confusion import DENSE_LIMIT, Confusion, check_total
from classgap.predictions.labels import LabelCoder, resolve_classes
from classgap.predictions.matching import different_ids, missing_ids, repeated_id
from classgap.predictions.predictions import DESCRIBING, Predictions
from classgap.predictions.side_files import counts_in_order
from classgap.predictions.slice_counts import SliceCounts
from classgap.predictions.tables import (
    Table,
    collect,
    encode_rows,
    label_values,
    refuse_repeated_header,
    sample_values,
)

BATCH_ROWS = 2_000_000


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct pairs of labels (and slices ``by`` name) as they are stored in the table, and how many samples have them."""

    true: NDArray[Any]
    pred: NDArray[Any]
    by: dict[str, NDArray[Any]]
    count: Ints

    @property
    def num_samples(self) -> int:
        return int(self.count.sum())

    def encode(self, coders: Sequence[LabelCoder], classes: tuple[str, ...], notes: tuple[str, ...]) -> Predictions:
        """Predictions that hold these counts."""
        true, pred, repeats = coders[0](self.true), coders[1](self.pred), self.count
        slices = {
            name: SliceCounts.from_samples(name, values, true, pred, len(classes), repeats)
            for name, values in self.by.items()
        }
        confusion = Confusion.from_codes(true, pred, len(classes), repeats)
        return Predictions(classes, counted=confusion, counted_by=slices, notes=notes)


def from_table(
    table: Table,
    class_names: Sequence[str] | None,
    train_counts: Any,
    *,
    rows: bool,
    batches: bool | None = False,
    place: Any = "the table",
) -> Predictions:
    """Predictions from any table: with ``rows`` all rows, otherwise only counts if the table holds only labels.

    Args:
        batches: Read scores later, in batches; None means: if there are too many for memory.
        place: Name of the table in error messages.
    """
    if batches is not False and may_be_large(table) and (batches or num_scores(table) > MOST_SCORES):
        return open_batches(table, class_names, train_counts, place)
    if table.columns.count is None and (rows or not table.labels_only):
        return encode_rows(table, class_names, train_counts)
    return count_table(table, class_names, train_counts)


def count_table(table: Table, class_names: Sequence[str] | None, train_counts: Any) -> Predictions:
    """Predictions that hold the counts of a table of labels, not its rows."""
    pairs = count_labels(table)
    classes, coders, notes = resolve_classes(_distinct(table, pairs), names=class_names, option=table.names_option)
    counts = None if train_counts is None else counts_in_order(train_counts, classes, coders)
    return replace(pairs.encode(coders, classes, notes), train_counts=counts)


def count_labels(table: Table) -> Pairs:
    """The pairs of (true, predicted) labels in every slice: one pass over the table, in its engine."""
    found = table.columns
    slices = {name: f"by {name}" for name in found.samples if name not in DESCRIBING}
    columns = {"true": nw.col(found.true), "pred": nw.col(str(found.pred))}
    columns |= {alias: nw.col(found.samples[name]) for name, alias in slices.items()}
    keys = list(columns)
    numbers = {"n": nw.len()}
    if found.count is not None:
        columns["count"] = nw.col(found.count)
        columns["size"] = nw.col(found.count).cast(nw.Float64)  # its sum cannot wrap around
        numbers = {
            "n": nw.col("count").sum(),
            "least": nw.col("count").min(),
            "filled": nw.col("count").count(),
            "rows": nw.len(),
            "size": nw.col("size").sum(),
        }
    elif not slices and (pairs := _count_indices(table)) is not None:
        return pairs
    groups = collect(table.data.lazy().select(**columns).group_by(*keys).agg(**numbers))
    if found.count is not None:
        whole = table.data.collect_schema()[found.count].is_integer()
        if not whole or (len(groups) and ((groups["filled"] < groups["rows"]).any() or groups["least"].min() < 0)):
            raise InputError(
                f"column {found.count!r} must hold whole numbers ≥ 0: the samples that each row stands for"
            )
        check_total(f"column {found.count!r}", groups["size"].to_numpy())
    count = groups["n"].to_numpy().astype(np.int64)
    if count.sum() == 0:
        raise InputError("the predictions must have at least one row, got none")
    true, pred = label_values(groups["true"], found.true, count), label_values(groups["pred"], str(found.pred), count)
    refuse_repeated_header(found, true, pred)
    return Pairs(true, pred, {name: sample_values(groups[alias], name) for name, alias in slices.items()}, count)


def _count_indices(table: Table) -> Pairs | None:
    """The pairs of labels of a lazy polars table whose labels are small whole numbers; None for any other table.

    Such labels index a matrix of counts, which takes a third of the time of a group_by with a million groups.
    """
    names = [table.columns.true, str(table.columns.pred)]
    data, schema = table.data, table.data.collect_schema()
    if table.in_memory or not data.implementation.is_polars() or not all(schema[name].is_integer() for name in names):
        return None
    counts: Ints = np.zeros((0, 0), dtype=np.int64)
    for batch in data.select(*names).to_native().collect_batches(chunk_size=BATCH_ROWS, maintain_order=False):
        if batch.height == 0:
            continue
        columns = [batch[name] for name in names]
        if any(column.null_count() or column.min() < 0 or column.max() >= DENSE_LIMIT for column in columns):
            return None
        true, pred = (column.to_numpy().astype(np.int64, copy=False) for column in columns)
        size = max(len(counts), int(true.max()) + 1, int(pred.max()) + 1)
        counts = np.pad(counts, (0, size - len(counts)))
        counts += np.bincount(true * size + pred, minlength=size**2).reshape(size, size)
    true, pred = np.nonzero(counts)
    return Pairs(true, pred, {}, counts[true, pred]) if len(true) else None


def _distinct(table: Table, pairs: Pairs, side: str = "") -> list[tuple[str, NDArray[Any]]]:
    """The titles and the distinct labels of the label columns."""
    columns = (table.columns.true, pairs.true), (table.columns.pred, pairs.pred)
    return [(f"column {name!r}{side}", np.unique(values)) for name, values in columns]


# ---------------------------------------------------------------- two tables of the same samples


@dataclass(frozen=True, eq=False)
class _Matches:
    """Samples of both tables: class, whether the true labels agree, correct before, correct after, and how many they are."""

    true: Ints
    same: NDArray[np.bool_]
    right_before: NDArray[np.bool_]
    right_after: NDArray[np.bool_]
    count: Ints


def count_both(before: Table, after: Table, class_names: Sequence[str] | None) -> tuple[Predictions, Predictions, Ints]:
    """Counts of two tables of the same samples, and per class the ``(2, 2)`` table of (correct before, correct after).

    Rows are matched by sample id if there is one, otherwise by their order. Never more than 8 K groups leave the engine, unless
    the two tables spell the labels differently.
    """
    by_id = "id" in before.columns.samples
    if not by_id and before.engine != "polars":
        raise InputError(
            f"the rows of a {before.engine} table have no fixed order; name the column of sample ids: columns=Columns(id=…)"
        )
    pairs = count_labels(before), count_labels(after)
    rows = pairs[0].num_samples
    if not by_id and rows != pairs[1].num_samples:
        raise InputError(
            f"before has {rows:,} rows but after has {pairs[1].num_samples:,}; both must hold the same samples"
        )
    distinct = _distinct(before, pairs[0], " (before)") + _distinct(after, pairs[1], " (after)")
    classes, coders, notes = resolve_classes(distinct, names=class_names, option=before.names_option)
    found = _matches(before, after, coders)
    if found is None or found.count.sum() != rows or rows != pairs[1].num_samples:
        raise _ids_differ(before, after)
    different = int(found.count[~found.same].sum())
    if different:
        advice = "check the labels and the class names of both" if by_id else (
            "if the rows are in different order, name the column of sample ids with --id"
        )  # fmt: skip
        raise InputError(f"the true labels of before and after differ in {different:,} of {rows:,} rows; {advice}")
    cells = np.zeros((len(classes), 2, 2), dtype=np.int64)
    np.add.at(cells, (found.true, found.right_before.astype(int), found.right_after.astype(int)), found.count)
    first, second = (
        side.encode(codes, classes, notes) for side, codes in zip(pairs, (coders[:2], coders[2:]), strict=True)
    )
    return first, second, cells


def _matches(before: Table, after: Table, coders: Sequence[LabelCoder]) -> _Matches | None:
    """The samples of both tables, grouped by the engine; None if a sample of one table is not in the other."""
    alike = _one_spelling(coders)
    sides = [_side(table, str(i), alike) for i, table in enumerate((before, after))]
    if "id" in before.columns.samples:
        both = _joined(*sides)
    else:
        import polars as pl

        both = nw.from_native(pl.concat([nw.to_native(side) for side in sides], how="horizontal"))
    if alike:
        both = both.with_columns(same=nw.col("true0") == nw.col("true1"))
    keys = ["true0", "same", "right0", "right1"] if alike else ["true0", "pred0", "true1", "pred1"]
    groups = collect(both.group_by(*keys).agg(nw.len().alias("n")))
    if any(groups[key].null_count() for key in keys):
        return None
    values = [label_values(groups[key], key) for key in keys]
    count = groups["n"].to_numpy().astype(np.int64)
    if alike:
        same, before_right, after_right = (flag.astype(bool) for flag in values[1:])
        return _Matches(coders[0](values[0]), same, before_right, after_right, count)
    true, pred, true_after, pred_after = (coder(column) for coder, column in zip(coders, values, strict=True))
    return _Matches(true, true == true_after, pred == true, pred_after == true_after, count)


def _one_spelling(coders: Sequence[LabelCoder]) -> bool:
    """Whether equal labels mean equal classes in all columns, so that the engine can compare labels itself."""
    if len({"i" if coder.values.dtype.kind == "u" else coder.values.dtype.kind for coder in coders}) > 1:
        return False
    code_of: dict[Any, int] = {}
    for coder in coders:
        for label, code in zip(coder.values.tolist(), coder.codes.tolist(), strict=True):
            if code_of.setdefault(label, code) != code:
                return False
    return len(set(code_of.values())) == len(code_of)


def _side(table: Table, number: str, alike: bool) -> Any:
    """What is needed of one table: the id, the true label, and the predicted label or whether it is correct."""
    schema, found = table.data.collect_schema(), table.columns

    def text(name: str) -> Any:  # categories of two tables are not always comparable
        return nw.col(name).cast(nw.String) if schema[name] in (nw.Categorical, nw.Enum) else nw.col(name)

    true, pred = text(found.true), text(str(found.pred))
    columns = {"true": true, **({"right": pred == true} if alike else {"pred": pred})}
    if "id" in found.samples:
        columns["id"] = _id(table)
    return table.data.lazy().select(**{f"{name}{number}": column for name, column in columns.items()})


def _id(table: Table) -> Any:
    """The id as the engine compares it: categories as text, nan as a missing value."""
    name = table.columns.samples["id"]
    kind, column = table.data.collect_schema()[name], nw.col(name)
    if kind in (nw.Categorical, nw.Enum):
        return column.cast(nw.String)
    return nw.when(~column.is_nan()).then(column) if kind.is_float() else column


def _joined(before: Any, after: Any) -> Any:
    """All samples of both tables, also those that only one of them has: then the labels of the other table are null."""
    kinds = before.collect_schema()["id0"], after.collect_schema()["id1"]
    before = before.with_columns(_id_of_one_type(nw.col("id0"), kinds))
    after = after.with_columns(_id_of_one_type(nw.col("id1"), kinds))
    return before.join(after, left_on="id0", right_on="id1", how="full")


def _id_of_one_type(column: Any, kinds: Sequence[Any]) -> Any:
    """An id of tables with these types of ids, so that equal ids are equal: 7 and 7.0 are also equal to the text "7"."""
    if kinds[0] == kinds[1]:
        return column
    numbers = [kind.is_numeric() for kind in kinds]
    if all(numbers) and any(kind.is_float() for kind in kinds):
        return column.cast(nw.Float64)
    text = column.cast(nw.String)
    return text.str.replace_all(r"\.0$", "") if any(numbers) and not all(numbers) else text


def _ids_differ(before: Table, after: Table) -> InputError:
    """Why the ids of two tables do not match one to one."""
    sides = []
    kinds = [table.data.collect_schema()[table.columns.samples["id"]] for table in (before, after)]
    for table in (before, after):
        name = table.columns.samples["id"]
        ids = table.data.lazy().select(id=_id_of_one_type(_id(table), kinds).cast(nw.String))
        if missing := len(collect(ids.filter(nw.col("id").is_null()))):
            return missing_ids(name, missing)
        twice = collect(ids.group_by("id").agg(nw.len().alias("n")).filter(nw.col("n") > 1).head(1))
        if len(twice):
            return repeated_id(twice["id"].to_list()[0])
        sides.append(ids)
    lacking, unknown = (
        collect(one.join(other, on="id", how="anti"))["id"].to_list() for one, other in (sides, sides[::-1])
    )
    return different_ids(lacking, unknown)
