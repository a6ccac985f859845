"""Results of finished runs: JSON lines that several processes can append, merged and compared sample by sample."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap.checks import InputError, reading, shown
from classgap.suites.jobs import Job, JobFolder, job_key
from classgap.suites.records import placed_records, write_archive
from classgap.training.config import TrainConfig
from classgap.training.setting_types import typed

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class EpochResult:
    """A run at one epoch that some rule chose.

    Attributes:
        rules: Names of the rules that chose it.
        val_correct, test_correct: Correctly classified samples of each class; no validation entries without such a split.
        packed: The test predictions, see :func:`pack`; empty in an archive.
        hits: In an archive, which test samples are classified correctly: one bit per sample, class by class, in base 64.
    """

    epoch: int
    rules: tuple[str, ...]
    val_correct: tuple[int, ...]
    test_correct: tuple[int, ...]
    packed: str = ""
    hits: str = ""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        seed: The suite's seed; the run's own is ``config.seed``, which differs for re-runs.
        support, val_support, train_counts: Samples of each class.
        curve: Columns over the epochs: training accuracy, validation accuracy and class spread by third.
        class_spread: Within-class standard deviation of the features, by class, in the last epoch.
        seconds: Of training, from the log.
        measures: What its job asked for beside accuracies, on the test set after the last epoch.
        diverged: Why there are no candidates: the loss became infinite or nan.
    """

    suite: str
    task: str
    variant: str
    seed: int
    config: TrainConfig
    split_hash: str
    class_names: tuple[str, ...]
    train_counts: tuple[int, ...]
    val_support: tuple[int, ...]
    test_support: tuple[int, ...]
    candidates: tuple[EpochResult, ...]
    curve: Mapping[str, list[float | None]]
    seconds: float
    version: str
    diverged: str = ""
    class_spread: tuple[float | None, ...] = ()
    measures: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task}/{self.variant} seed {self.seed}"

    @cached_property
    def key(self) -> str:
        """Of the configuration, as today's code reads it."""
        return job_key(self.config)

    @property
    def support(self) -> Ints:
        return np.asarray(self.test_support, dtype=np.int64)

    @property
    def y_true(self) -> Ints:
        """Test labels in the order of :meth:`predictions`: class by class."""
        return np.repeat(np.arange(len(self.support)), self.support)

    def predictions(self, candidate: EpochResult) -> Ints:
        """Predicted classes of the test samples; rows agree between runs on the same data."""
        if not candidate.packed:
            raise InputError(
                f"the run {self.name} comes from an archive, which holds what was classified correctly but not which wrong "
                "classes were predicted; use Result.right, or run the job again"
            )
        return unpack(candidate.packed, self.y_true, len(self.support))

    def right(self, candidate: EpochResult) -> Bools:
        """Which test samples are classified correctly, in the order of :attr:`y_true`."""
        if candidate.packed:
            return np.asarray(self.predictions(candidate) == self.y_true)
        bits = np.frombuffer(base64.b64decode(candidate.hits), np.uint8)
        return np.unpackbits(bits, count=int(self.support.sum())).astype(bool)

    def check(self) -> Result:
        """This result, after a comparison of the stored predictions with the stored counts; damage of one of them shows here."""
        typed(self)
        for candidate in self.candidates:
            typed(candidate)
        self._check_shapes()
        for candidate in self.candidates:
            correct = np.bincount(self.y_true, self.right(candidate), minlength=len(self.support))
            if not np.array_equal(correct, candidate.test_correct):
                raise ValueError(f"the predictions of {self.name} in epoch {candidate.epoch} do not fit its counts")
        return self

    def _check_shapes(self) -> None:
        counts = [self.train_counts, self.test_support, *(candidate.test_correct for candidate in self.candidates)]
        held_out = [self.val_support, *(candidate.val_correct for candidate in self.candidates)]
        if any(len(series) != len(self.class_names) for series in [*counts, *filter(None, held_out)]):
            raise InputError(f"the counts of {self.name} are not one for each of its {len(self.class_names)} classes")
        if min(itertools.chain(*counts, *held_out), default=0) < 0:
            raise InputError(f"a count of {self.name} is negative")
        for column, values in self.curve.items():
            if not isinstance(values, list) or not all(v is None or type(v) in (int, float) for v in values):
                raise InputError(f"the curve {column} of {self.name} must be a list of numbers, got {shown(values)}")
        if not self.diverged and not self.curve.get("train_accuracy"):
            raise InputError(f"the training accuracy of {self.name} is missing")

    def for_archive(self) -> Result:
        """The same run with one bit for each test prediction, correct or wrong, which is all that tables need."""
        smaller = []
        for candidate in self.candidates:
            hits = base64.b64encode(np.packbits(self.right(candidate)).tobytes()).decode()
            smaller.append(dataclasses.replace(candidate, packed="", hits=hits))
        return dataclasses.replace(self, candidates=tuple(smaller))

    def to_record(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "key": self.key,
            **{name: getattr(self, name) for name in _PLAIN},
            "config": self.config.to_dict(),
            "candidates": [_without_empty(vars(candidate)) for candidate in self.candidates],
        }

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Result:
        """The inverse of :meth:`to_record`."""
        plain = {name: _frozen(record[name]) for name in _PLAIN if name in record}
        candidates = [EpochResult(**{name: _frozen(v) for name, v in c.items()}) for c in record["candidates"]]
        return Result(config=TrainConfig.from_dict(record["config"]), candidates=tuple(candidates), **plain)


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value != ""}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_PLAIN = tuple(name for name in Result.__dataclass_fields__ if name not in ("config", "candidates"))


def pack(y_true: NDArray[Any], y_pred: NDArray[Any], num_classes: int) -> str:
    """Predictions as a short text: class by class in stable order, as steps from the true class (0 where right), deflated.

    Example:
        >>> y_true, y_pred = np.array([1, 0, 1]), np.array([1, 1, 0])
        >>> unpack(pack(y_true, y_pred, 2), np.sort(y_true), 2)
        array([1, 1, 0])
    """
    order = np.argsort(y_true, kind="stable")
    steps = (y_pred[order] - y_true[order]) % num_classes
    return base64.b64encode(zlib.compress(steps.astype(_step_type(num_classes)).tobytes(), 9)).decode()


def unpack(text: str, y_true: Ints, num_classes: int) -> Ints:
    """The inverse of :func:`pack`, for labels sorted by class."""
    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), _step_type(num_classes))
    return np.asarray((steps.astype(np.int64) + y_true) % num_classes)


def _step_type(num_classes: int) -> str:
    return "<u1" if num_classes <= 256 else "<u4"


def read_results(paths: Iterable[Path]) -> dict[str, Result]:
    """All results by key; of several with one key the first counts.

    With each file its archive is read, ``NAME.jsonl.xz`` beside ``NAME.jsonl``. Files that do not exist hold nothing.
    """
    found: dict[str, Result] = {}
    for path in paths:
        for place, record in placed_records(path):
            result = _checked(record, place, "a result of `classgap bench`")
            found.setdefault(result.key, result)
    return found


def _checked(record: Any, place: str | Path, what: str) -> Result:
    """The result in ``record``; an error names the place it was read from."""
    with reading(place, what):
        try:
            return Result.from_record(record).check()
        except InputError as error:
            raise InputError(f"{place}: {error}") from error


def append_results(path: Path, results: Sequence[Result]) -> int:
    """Add the results that neither ``path`` nor its archive holds, all or none of each; safe among processes.

    Returns:
        How many were added.
    """
    if path.is_dir():
        raise InputError(f"the results file {path} is a folder; name a file, e.g. {path / 'results.jsonl'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        present = {str(record.get("key")) for _, record in placed_records(path)}
        fresh = {r.key: r for r in results if r.key not in present}
        text = "".join(json.dumps(result.to_record()) + "\n" for result in fresh.values())
        if text:
            with path.open("ab+") as handle:
                _mend_end(handle)
                handle.write(text.encode())
                handle.flush()
                os.fsync(handle.fileno())
    return len(fresh)


def archive_results(path: Path) -> int:
    """Move all results of ``path`` into its archive, smaller and with keys as today's code computes them.

    Returns:
        How many results the archive then holds.
    """
    with _locked(path):
        results = read_results([path])
        write_archive(path, (result.for_archive().to_record() for result in results.values()))
    return len(results)


def _locked(path: Path) -> Any:
    from filelock import FileLock

    return FileLock(path.with_name(f".{path.name}.lock"))


def _mend_end(handle: Any) -> None:
    """End the last line; where a crash has cut it off, remove it."""
    handle.seek(0)
    content = handle.read()
    whole = content.rfind(b"\n") + 1
    try:
        json.loads(content[whole:])
        handle.write(b"\n")
    except (ValueError, RecursionError):
        handle.truncate(whole)


def collect_done(jobs: Sequence[Job], out: Path) -> list[Result]:
    """Results in the folders of finished jobs, for a results file that was lost, or that a crash kept from growing."""
    found = []
    for marker in (JobFolder(out, job).done for job in jobs):
        if marker.exists():
            with reading(marker, "the result of a job"):
                record = json.loads(marker.read_text())
            found.append(_checked(record, marker, "the result of a job"))
    return found
