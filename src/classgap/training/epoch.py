"""Measurements of an epoch, written to the log: losses, accuracies and the spread of every class."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.batchstats import all_reduce_sum, class_sums, gather_rows
from classgap.batchstats.backend import as_array
from classgap.batchstats.collectives import is_distributed, rank_and_world
from classgap.batchstats.pairs import BatchClasses, batch_classes, centred_rows
from classgap.batchstats.sums import squared_norms
from classgap.checks import InputError
from classgap.measure.statistics.groups import THIRDS, thirds
from classgap.writing import append_line, write

Floats = NDArray[np.float64]


class _Measured(NamedTuple):
    """A batch that waits to be measured."""

    predicted: Tensor
    features: Tensor
    labels: Tensor
    losses: dict[str, Tensor]


class EpochMeter:
    """Sums over the steps of an epoch. They are part of a checkpoint, so a resumed epoch reports what a whole one would.

    The spread of a class is pooled from deviations within batches, divided by their degrees of freedom: unbiased, and free
    of the drift of the class means during the epoch. Batches wait until there are several of them, which takes a fraction of the
    time; sums are those of measuring one after the other.

    Attributes:
        hits, seen: Correct predictions and samples of each class on this process.
        losses: Sum of each term of the loss over the samples of this process.
        moments: Of each class over all processes: sum of the squared norms of the features, number of samples, sum of squared
            deviations from the mean of the class in the batch, and their degrees of freedom.
        scatter: Sum of squared deviations from the mean of the batch, and their degrees of freedom.
        start: The same for the first batch alone.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes, self.device = num_classes, device
        self.hits, self.seen = np.zeros((2, num_classes))
        self.moments = np.zeros((num_classes, 4))
        self.scatter, self.start = np.zeros((2, 2))
        self.losses: dict[str, float] = {}
        self._waiting: list[_Measured] = []

    def add(self, scores: Tensor, features: Tensor, target: Tensor, losses: Mapping[str, Tensor]) -> None:
        """Add a batch, or a piece of one, and the terms of its loss. A mixed sample counts for its most likely class.

        A collective: every process calls it equally often, also without samples.
        """
        labels = target.argmax(1) if target.dim() == 2 else target
        terms = {name: value.detach() for name, value in losses.items() if value.numel() == 1}
        predicted = torch.as_tensor(as_array(scores).argmax(1))  # on a CPU NumPy takes a fraction of the time
        self._waiting.append(_Measured(predicted, features, labels, terms))
        if len(self._waiting) == _TOGETHER:
            self._measure()

    def finite(self) -> bool:
        """Whether the loss is still finite. A collective: all processes get the same answer, so that all stop or none."""
        return all(math.isfinite(total) for total in self._totals()[2].values())

    def state_dict(self) -> dict[str, Any]:
        """Sums over all processes. A collective."""
        hits, seen, losses = self._totals()
        arrays = {"hits": hits, "seen": seen, "moments": self.moments, "scatter": self.scatter, "start": self.start}
        return {**{name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, "losses": losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`. Only the first process takes the sums that are added over processes again."""
        first = rank_and_world()[0] == 0
        for name in ("hits", "seen", "moments", "scatter", "start"):
            value = state[name].numpy().astype(np.float64)
            if value.shape != getattr(self, name).shape or not np.isfinite(value).all():
                raise ValueError(f"{name} of the epoch has shape {value.shape}, or holds values that are no numbers")
            setattr(self, name, value if first or name not in ("hits", "seen") else np.zeros_like(value))
        self.losses = {name: float(value) if first else 0.0 for name, value in state["losses"].items()}
        self._waiting = []

    def record(self) -> dict[str, Any]:
        """Means over the epoch; per class nan where there is nothing to average. A collective."""
        hits, seen, losses = self._totals()
        count = float(seen.sum())
        means = {name: total / count for name, total in losses.items()}
        norms, rows, scatter, freedom = self.moments.T
        with np.errstate(divide="ignore", invalid="ignore"):
            shared = np.where(freedom > 0, scatter / freedom, scatter.sum() / freedom.sum())
            spread = np.sqrt(np.where(rows > 0, shared, np.nan)).astype(np.float32)
            about = {
                "norm": norms.sum() / rows.sum(),
                "scatter": np.divide(*self.scatter),
                "start": np.divide(*self.start),
            }
        return {
            "train": {**means, "accuracy": float(hits.sum()) / count},
            "spread": {"per_class": spread},
            "features": {name: float(np.float32(np.sqrt(value))) for name, value in about.items()},
        }

    def _totals(self) -> tuple[Floats, Floats, dict[str, float]]:
        self._measure()
        device = self.device if is_distributed() else torch.device("cpu")
        sums = (self.hits, self.seen, np.array(list(self.losses.values())))
        hits, seen, losses = all_reduce_sum(*(torch.from_numpy(part).to(device) for part in sums))
        return hits.cpu().numpy(), seen.cpu().numpy(), dict(zip(self.losses, losses.tolist(), strict=True))

    def _measure(self) -> None:
        """Add the waiting batches to the sums."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        for part in waiting:
            for name, value in part.losses.items():
                new = len(part.labels) * float(value) if len(part.labels) else 0.0
                self.losses[name] = self.losses.get(name, 0.0) + new
        labels, predicted = (
            torch.cat(parts).cpu().numpy() for parts in zip(*((w.labels, w.predicted) for w in waiting), strict=True)
        )
        self.hits += np.bincount(labels[predicted == labels], minlength=self.num_classes)
        self.seen += np.bincount(labels, minlength=self.num_classes)
        batch = np.arange(len(waiting)).repeat([len(part.labels) for part in waiting])
        features, group = (
            [part.features.float() for part in waiting],
            torch.from_numpy(batch * self.num_classes + labels),
        )
        if is_distributed():  # statistics are those of the one batch that all processes form together
            together = torch.cat(features)
            features, group = [gather_rows(together)], gather_rows(group.to(together.device)).cpu()
        if len(group):
            with np.errstate(invalid="ignore", over="ignore"):  # batches that are not finite are left out
                self._add_features([part for part in features if len(part)], group)

    def _add_features(self, features: list[Tensor], group: Tensor) -> None:
        """Add the features of one batch after the other; rows of a group are of one class in one batch."""
        present = batch_classes(group)
        batch, label = np.divmod(present.classes, self.num_classes)
        squared, squares, means = (np.concatenate(part) for part in _squares(features, present.slot, batch))
        norms = np.bincount(present.slot, squared, len(batch))
        deviations = norms - squares / present.size
        _refine(deviations, norms, features, present)
        size = np.bincount(batch, present.size)
        usable = np.bincount(batch, norms + deviations) < _LARGEST  # not one with an overflow, or with nan
        self._add_scatter(usable, size, np.bincount(batch, norms) - means / np.maximum(size, 1))
        kept = usable[batch]
        values = (norms, present.size, deviations, present.size - 1)
        # After the sums so far, one by one: so they do not depend on which batches were measured together.
        place = np.concatenate([np.arange(self.num_classes), label[kept]])
        for column, value in enumerate(values):
            whole = np.concatenate([self.moments[:, column], value[kept]])
            self.moments[:, column] = np.bincount(place, whole, self.num_classes)

    def _add_scatter(self, usable: NDArray[Any], size: NDArray[Any], scatter: Floats) -> None:
        for rows, value in zip(size[usable].tolist(), scatter[usable].tolist(), strict=True):
            if rows > 1:
                new = max(value, 0.0), rows - 1
                self.scatter += new
                if not self.start[1]:
                    self.start += new


def _squares(features: list[Tensor], slot: NDArray[np.int64], batch: NDArray[np.int64]) -> tuple[list[Floats], ...]:
    """Squared norms of the rows, of the sum of each group, and of the sum of each batch (0 for one without rows)."""
    norms: list[Floats] = []
    groups: list[Floats] = []
    batches: list[float] = []
    row = 0
    for part in features:
        mine = slot[row : row + len(part)]
        low, high = int(mine.min()), int(mine.max()) + 1
        row += len(part)
        place = torch.from_numpy(mine - low).to(part.device)
        sums = part.new_zeros(high - low, part.shape[1]).index_add_(0, place, part)
        of = torch.from_numpy(batch[low:high] - len(batches)).to(part.device)
        whole = part.new_zeros(int(batch[high - 1]) + 1 - len(batches), part.shape[1]).index_add_(0, of, sums)
        norms.append(_host(part))
        groups.append(_host(sums))
        batches.extend(_host(whole))
    return norms, groups, [np.array(batches)]


def _host(rows: Tensor) -> Floats:
    """Squared norms of rows."""
    squared: Floats = torch.as_tensor(squared_norms(rows)).cpu().numpy().astype(np.float64)
    return squared


def _refine(deviations: Floats, norms: NDArray[Any], features: list[Tensor], present: BatchClasses) -> None:
    """Deviations within groups that are small beside the features are taken from differences: rounding would show in them."""
    deviations[present.size == 1] = 0.0
    close = (deviations < _CLOSE * norms) & (present.size > 1)
    if not close.any():
        return
    rows = np.flatnonzero(close[present.slot])
    mine = torch.cat(features)[torch.from_numpy(rows)].cpu()
    number = np.cumsum(close) - 1
    part = batch_classes(torch.from_numpy(number[present.slot[rows]]))
    centred = centred_rows(mine, part)
    deviations[close] = np.bincount(np.asarray(centred.slot), _host(centred.values), int(close.sum()))


_TOGETHER = 8
_CLOSE = 0.01
_LARGEST = float(np.finfo(np.float32).max)


def accuracy_by_class(scores: Tensor, target: Tensor, num_classes: int) -> NDArray[np.float64]:
    """Accuracy of each class; nan for an absent class."""
    hits, support = class_sums((scores.argmax(1) == target).double(), target, num_classes)
    accuracy: NDArray[np.float64] = (hits / support).cpu().numpy()
    return accuracy


def add_groups(record: dict[str, Any], accuracy: NDArray[np.float64]) -> None:
    """Add validation accuracy and, by the thirds it defines, the mean accuracy and spread of easy, medium and hard classes."""
    record["val"] = {
        "per_class": accuracy,
        "balanced": float(np.nanmean(accuracy)),
        "worst": float(np.nanmin(accuracy)),
    }
    spread = record["spread"]["per_class"]
    group_of = thirds(accuracy)
    for number, group in enumerate(THIRDS):
        members = group_of == number
        record["val"][group] = _mean(accuracy[members])
        record["spread"][group] = _mean(spread[members])


def _mean(values: NDArray[np.float64]) -> float:
    """Mean of the known values; nan without any, as of the medium third of two classes."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def append_log(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to the log."""
    append_line(path, json.dumps(_plain(record)))


def read_log(path: Path) -> list[dict[str, Any]]:
    """All records of a log, without a last line that a crash has cut off."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    try:
        records = [json.loads(line) for line in lines]
        assert all(isinstance(record["epoch"], int) for record in records)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(
            f"{path} is not the log of a run, one JSON object with an epoch per line ({error}); restore it, or start over in "
            "another folder"
        ) from error
    return records


def cut_log(path: Path, epoch: int) -> None:
    """Remove the records from ``epoch`` on, since these epochs are repeated."""
    kept = [record for record in read_log(path) if record["epoch"] < epoch]
    write(path, "".join(json.dumps(record) + "\n" for record in kept))


def _plain(value: Any) -> Any:
    """JSON has no nan: ``null`` stands for it."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
