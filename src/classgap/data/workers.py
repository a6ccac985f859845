"""Make things in worker processes, in order, a bounded number ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from classgap.checks import InputError

T = TypeVar("T")
_AHEAD = 2  # finished results that each worker may keep waiting
_MOST = 8


def processor_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(processes: int = 1) -> int:
    """Worker processes for each of the training ``processes`` of this machine: one per processor core, at most 8 each."""
    return max(1, min(_MOST, processor_cores() // max(1, processes)))


def in_order(make: Callable[[int], T], steps: Sequence[int], workers: int) -> Iterator[T]:
    """``make(step)`` for every step, in order; with ``workers`` above 0 in that many processes, ahead of time.

    At most twice as many results as there are workers wait at any time. ``make`` must depend on the step only; then the number of
    workers changes nothing but the time. The random generators of this process are left alone.
    """
    if workers == 0 or len(steps) == 0:
        yield from map(make, steps)
        return
    loader = DataLoader(
        _Steps(make),
        batch_size=None,
        sampler=steps,
        num_workers=min(workers, len(steps)),
        prefetch_factor=_AHEAD,
        collate_fn=_unchanged,
        generator=torch.Generator(),  # the loader draws a seed for its workers, by default from the global generator
    )
    for result in loader:
        if isinstance(result, InputError):
            raise result
        yield result


class _Steps(Dataset[Any], Generic[T]):
    """The results as a data set. An input error is handed over as a value: raised in a worker, it would lose its sentence."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self.make = make

    def __getitem__(self, step: int) -> T | InputError:
        try:
            return self.make(step)
        except InputError as error:
            return error


def _unchanged(value: T) -> T:
    return value
