"""Audits of scores that are too large for memory: sums over all rows in one pass, and a stratified sample for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from classgap.arrays import Float64s, Ints, divide, group_sums
from classgap.checks import InputError
from classgap.measure.diagnosing import top5_hits
from classgap.measure.diagnostics.calibration import CalibrationSums, losses_of, softmax
from classgap.measure.diagnostics.margins import Margins, margins_of
from classgap.predictions import Confusion, Predictions, SliceCounts
from classgap.predictions.batches import Batches, KindChanged
from classgap.predictions.binary import differing_note

_SAMPLE_ROWS, _SAMPLE_SCORES, _FEWEST_ROWS = 200_000, 10_000_000, 10_000


@dataclass(frozen=True)
class Sampling:
    """What an audit of a large table took from a sample: ``rows`` of its ``of`` rows, stratified by class, with this ``seed``."""

    rows: int
    of: int
    seed: int

    @property
    def sentence(self) -> str:
        """What is exact, and what is of the sample."""
        return (
            "the scores were read in batches: accuracies, confusions, top-5, calibration, log-loss, Brier score and mean "
            f"margins are of all {self.of:,} rows; areas under curves, curves, quantiles, prediction sets, features, causes, "
            f"mistakes and labels to check are of a sample of {self.rows:,} rows, stratified by class in proportion to its size "
            f"(seed {self.seed}); --sample sets its size."
        )

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class _Moments:
    """Number, mean and sum of squared deviations per class, added batch by batch (Chan et al. 1983)."""

    def __init__(self, num_classes: int) -> None:
        self.count, self.mean, self.squares = np.zeros((3, num_classes))

    def add(self, values: Float64s, y_true: Ints) -> None:
        number = len(self.count)
        count = np.bincount(y_true, minlength=number)
        mean = np.nan_to_num(divide(group_sums(values, y_true, number), count))
        squares = group_sums((values - mean[y_true]) ** 2, y_true, number)
        total = self.count + count
        shift = mean - self.mean
        self.squares += squares + shift**2 * np.nan_to_num(divide(self.count * count, total))
        self.mean += shift * np.nan_to_num(divide(count, total))
        self.count = total

    @property
    def class_mean(self) -> Float64s:
        return np.where(self.count > 0, self.mean, np.nan)

    @property
    def class_variance(self) -> Float64s:
        return divide(self.squares, self.count)

    @property
    def overall(self) -> float:
        return float((self.count * self.mean).sum() / self.count.sum())


@dataclass(frozen=True, eq=False)
class Streamed:
    """The result of one pass: counts of all rows, sums of all scores, and a sample of the rows.

    Attributes:
        predictions: Counts of all rows.
        sample: The rows of the sample.
        top5: ``(K,)`` share of each class whose true score is among the five highest; None with at most five classes.
    """

    predictions: Predictions
    sample: Predictions
    sampling: Sampling
    top5: Float64s | None
    calibration: CalibrationSums
    output: _Moments
    logit: _Moments
    negative: int

    def sections(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The sections of the sample, with the numbers of all rows where they are sums."""
        margins: Margins = found["margins"]
        exact = {
            "output_margin": self.output.overall,
            "output_margin_balanced": float(np.nanmean(self.output.class_mean)),
            "logit_margin": self.logit.overall,
            "logit_margin_balanced": float(np.nanmean(self.logit.class_mean)),
            "negative_share": self.negative / self.sampling.of,
        }
        sides = {
            name: replace(getattr(margins, name), mean=sums.class_mean, variance=sums.class_variance)
            for name, sums in (("output", self.output), ("logit", self.logit))
        }
        calibration = self.calibration.result(found["calibration"].adaptive_ece)
        return {**found, "margins": Margins(**sides, exact=exact), "calibration": calibration}


def stream(predictions: Predictions, sample: int | None, seed: int) -> Streamed:
    """One pass over the batches of ``predictions``; ``sample`` is the number of rows of the sample."""
    batches = predictions.batches
    assert batches is not None
    width = max(len(batches.classes), 2)
    rows = max(_FEWEST_ROWS, min(_SAMPLE_ROWS, _SAMPLE_SCORES // width)) if sample is None else sample
    try:
        return _pass(predictions, batches, rows, seed, None)
    except KindChanged:  # the first batches looked like probabilities
        return _pass(predictions, batches, rows, seed, "logits")


def _pass(predictions: Predictions, batches: Batches, rows: int, seed: int, kind: Any) -> Streamed:
    number, rng = len(batches.classes), np.random.default_rng(seed)
    if number < 2:
        raise InputError(f"margins need at least 2 classes, got scores with {number} column(s)")
    wanted = _allocate(batches.support, rows)
    chosen = [_ranks(int(n), int(m), rng) for n, m in zip(batches.support, wanted, strict=True)]
    seen = np.zeros(number, dtype=np.int64)
    counts: Any = None
    calibration, output, logit = CalibrationSums(number), _Moments(number), _Moments(number)
    hits, negative, differing = np.zeros(number), 0, 0
    parts: list[Predictions] = []
    slices: dict[str, list[SliceCounts]] = {}
    for batch in batches.read(kind):
        y_true, scores = batch.y_true, batch.scores
        assert scores is not None
        block: Any = Confusion.from_codes(y_true, batch.y_pred, number).counts
        counts = block if counts is None else counts + block
        margins = margins_of(scores, y_true, batch.scores_kind or "logits")
        output.add(margins[0], y_true)
        logit.add(margins[1], y_true)
        negative += int((margins[1] < 0).sum())
        if batch.scores_kind == "probabilities":
            calibration.add(scores, y_true, None)
        else:
            calibration.add(softmax(scores), y_true, losses_of(scores, y_true))
        hits += top5_hits(scores, y_true, number)
        if batches.table.columns.pred is not None and batches.threshold is None:
            differing += int((scores.argmax(axis=1) != batch.y_pred).sum())
        for name, table in batch.slice_counts().items():
            slices.setdefault(name, []).append(table)
        parts.append(batch.take(_in_sample(y_true, seen, chosen)))
        seen += np.bincount(y_true, minlength=number)
    if not np.array_equal(seen, batches.support):
        raise InputError("the table changed while it was read; audit it again when it is complete")
    drawn = _joined(parts)
    counted = replace(
        predictions,
        batches=None,
        counted=Confusion(counts),
        counted_by={name: _merged(tables) for name, tables in slices.items()},
        notes=predictions.notes + differing_note(differing / int(seen.sum())),
    )
    sampling = Sampling(drawn.num_samples, int(seen.sum()), seed)
    top5 = divide(hits, seen) if number > 5 else None
    return Streamed(counted, drawn, sampling, top5, calibration, output, logit, negative)


def _allocate(support: Ints, rows: int) -> Ints:
    """Rows of each class in the sample: in proportion to the class, at least one of each class that has rows."""
    share = support * min(1.0, rows / max(int(support.sum()), 1))
    return np.minimum(support, np.maximum(np.round(share).astype(np.int64), (support > 0).astype(np.int64)))


def _ranks(number: int, wanted: int, rng: np.random.Generator) -> Ints:
    """``wanted`` different ranks below ``number``, sorted."""
    if wanted >= number:
        return np.arange(number)
    return np.sort(rng.choice(number, wanted, replace=False, shuffle=False))


def _in_sample(y_true: Ints, seen: Ints, chosen: list[Ints]) -> Ints:
    """Rows of this batch that are in the sample: those whose rank within their class was chosen."""
    order = np.argsort(y_true, kind="stable")
    counts = np.bincount(y_true, minlength=len(seen))
    rows, start = [], 0
    for k in np.flatnonzero(counts):
        first, last = np.searchsorted(chosen[k], [seen[k], seen[k] + counts[k]])
        rows.append(order[start + chosen[k][first:last] - seen[k]])
        start += counts[k]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)


def _joined(parts: list[Predictions]) -> Predictions:
    """The rows of all parts."""

    def join(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    arrays = {name: join(name) for name in ("y_true", "y_pred", "scores", "features", "row_numbers")}
    return replace(parts[0], columns=columns, **arrays)


def _merged(tables: list[SliceCounts]) -> SliceCounts:
    """The sum of the counts of several batches, each with its own slices."""
    names = sorted({name for table in tables for name in table.names})
    place = {name: s for s, name in enumerate(names)}
    correct, support = np.zeros((2, tables[0].support.shape[0], len(names)), dtype=np.int64)
    for table in tables:
        columns = [place[name] for name in table.names]
        correct[:, columns] += table.correct
        support[:, columns] += table.support
    return SliceCounts(tuple(names), correct, support)
