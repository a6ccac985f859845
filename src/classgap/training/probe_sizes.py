"""Linear heads on nested parts of the training samples, for learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from classgap.checks import InputError, number, whole
from classgap.data import MEMORY_MB, Split, TrainingData
from classgap.data.splits import choose
from classgap.predictions import Predictions
from classgap.training.config import TrainConfig
from classgap.training.probe_report import ProbeReport
from classgap.training.probing import Loop, _check, _points
from classgap.training.run import open_data

SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class SizedRun:
    """Test predictions of a head trained with ``share`` of the training samples of every class."""

    share: float
    seed: int
    predictions: Predictions


def probe_sizes(
    data: str,
    shares: Sequence[float] = SHARES,
    *,
    seeds: int = 3,
    settings: Sequence[str] = (),
    memory: int = MEMORY_MB,
    watch: Callable[[int, int], None] | None = None,
) -> list[SizedRun]:
    """Train linear heads on features with several shares of the training samples, for :func:`classgap.learning_curve`.

    The parts of a seed are nested, and those of different seeds are drawn anew. Every head gets as many steps as with all
    samples, i.e. more epochs with fewer samples.

    Args:
        data: A file of :func:`classgap.features`, or another data set of vectors.
        settings: As in :func:`classgap.probe`, e.g. ``["epochs=20", "optim.lr=0.1"]``.
    """
    shares = sorted({number("shares", share, low=0.0, high=1.0, open_low=True) for share in shares})
    base = TrainConfig().override(["model=linear", *settings, f"data={data}"])
    sets = open_data(base.data, memory=memory)
    _check(base, sets)
    jobs = [(share, seed) for share in shares for seed in range(whole("seeds", seeds, low=1))]
    found = []
    for done, (share, seed) in enumerate(jobs):
        found.append(SizedRun(share, seed, _train(base, sets, share, seed)))
        if watch:
            watch(done + 1, len(jobs))
    return found


def _train(base: TrainConfig, sets: TrainingData, share: float, seed: int) -> Predictions:
    config = base.override([f"epochs={math.ceil(base.epochs / share)}"])
    part = replace(sets, train=_part(sets.train, sets.num_classes, share, seed))
    group = Loop(config, part, [_points(config, {"seed": [seed]})])
    group.train(lambda: None)
    heads = tuple(group.results())
    return ProbeReport(config, heads, part, 0.0).outputs(heads[0]).predictions().labels_only()


def _part(train: Split, num_classes: int, share: float, seed: int) -> Split:
    """``share`` of every class, at least one sample of each that has any."""
    if share == 1:
        return train
    labels = train.y.cpu().numpy()
    available = np.bincount(labels, minlength=num_classes)
    wanted = np.maximum(np.round(share * available), np.minimum(available, 1)).astype(np.int64)
    rows = torch.from_numpy(choose(labels, np.arange(len(labels)), wanted, seed))
    if not isinstance(train.x, torch.Tensor):
        raise InputError("learning curves need features in memory; write them with classgap features")
    return Split(train.x[rows], train.y[rows])
