"""Measurements of an epoch, written to the log: losses, accuracies and the spread of every class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.batchstats import ClassMoments, all_reduce_sum, class_sums
from classgap.batchstats.collectives import rank_and_world
from classgap.checks import InputError
from classgap.measure.statistics.groups import THIRDS, thirds
from classgap.writing import append_line, write


class EpochMeter:
    """Sums over the steps of an epoch. They are part of a checkpoint, so a resumed epoch reports what a whole one would.

    The spread of a class is pooled from deviations within batches, divided by their degrees of freedom: unbiased, and free
    of the drift of the class means during the epoch.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self.moments = ClassMoments(num_classes, decay=1.0, spread="ratio").to(device)
        self.hits, self.seen = torch.zeros(2, num_classes, device=device)
        self.losses: dict[str, Tensor] = {}

    def add(self, scores: Tensor, features: Tensor, target: Tensor, losses: Mapping[str, Tensor]) -> None:
        """Add a batch, or a piece of one, and the terms of its loss. A mixed sample counts for its most likely class."""
        if target.dim() == 2:
            target = target.argmax(1)
        hits, seen = class_sums((scores.argmax(1) == target).float(), target, self.num_classes)
        self.hits += hits
        self.seen += seen
        self.moments.update(features.float(), target)
        for name, value in losses.items():
            if value.numel() == 1:
                total = (
                    len(target) * value.detach().double().reshape(()) if len(target) else value.new_zeros(()).double()
                )
                self.losses[name] = self.losses[name] + total if name in self.losses else total

    def finite(self) -> bool:
        """Whether the loss is still finite. A collective: all processes get the same answer, so that all stop or none."""
        return all(bool(torch.isfinite(total)) for total in self._totals()[2].values())

    def state_dict(self) -> dict[str, Any]:
        """Sums over all processes. A collective."""
        hits, seen, losses = self._totals()
        return {"hits": hits, "seen": seen, "losses": losses, "moments": self.moments.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`. Only the first process takes the sums, since they are added over processes again."""
        device, share = self.seen.device, int(rank_and_world()[0] == 0)
        self.hits, self.seen = share * state["hits"].to(device), share * state["seen"].to(device)
        self.losses = {name: share * value.to(device) for name, value in state["losses"].items()}
        self.moments.load_state_dict(state["moments"])

    def record(self) -> dict[str, Any]:
        """Means over the epoch; per class nan where there is nothing to average. A collective."""
        hits, seen, losses = self._totals()
        count = float(seen.sum())
        means = {name: float(total) / count for name, total in losses.items()}
        spread = self.moments.class_spread.sqrt().cpu().numpy()
        return {"train": {**means, "accuracy": float(hits.sum()) / count}, "spread": {"per_class": spread}}

    def _totals(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        hits, seen, *losses = all_reduce_sum(self.hits, self.seen, *self.losses.values())
        return hits, seen, dict(zip(self.losses, losses, strict=True))


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
        record["val"][group] = float(np.mean(accuracy[members]))
        record["spread"][group] = float(np.nanmean(spread[members]))


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
