"""What is known of finished runs: lines of JSON that can be appended by many, merged, and compared sample by sample."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classgap._checks import InputError
from classgap.bench.jobs import Job, JobFolder, job_key
from classgap.train.config import TrainConfig

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A run at one epoch that some rule chose.

    Attributes:
        rules: Names of the rules that chose it.
        val_correct, test_correct: Right answers of each class; no validation entries without such a split.
        packed: The test predictions, see :func:`pack`.
    """

    epoch: int
    rules: tuple[str, ...]
    val_correct: tuple[int, ...]
    test_correct: tuple[int, ...]
    packed: str


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    Attributes:
        seed: The suite's seed; the run's own is ``config.seed``, which differs for re-runs.
        support, val_support, train_counts: Samples of each class.
        curve: Columns over the epochs: training accuracy, validation accuracy and class spread by third.
        class_spread: Within-class standard deviation of the features, by class, in the last epoch.
        seconds: Of training, from the log.
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
    candidates: tuple[Candidate, ...]
    curve: Mapping[str, list[float | None]]
    seconds: float
    version: str
    diverged: str = ""
    class_spread: tuple[float | None, ...] = ()

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

    def predictions(self, candidate: Candidate) -> Ints:
        """Predicted classes of the test samples; rows agree between runs on the same data."""
        return unpack(candidate.packed, self.y_true, len(self.support))

    def to_record(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "key": self.key,
            **{name: getattr(self, name) for name in _PLAIN},
            "config": self.config.to_dict(),
            "candidates": [vars(candidate) for candidate in self.candidates],
        }

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Result:
        """The inverse of :meth:`to_record`."""
        plain = {name: _frozen(record[name]) for name in _PLAIN if name in record}
        candidates = [Candidate(**{name: _frozen(v) for name, v in c.items()}) for c in record["candidates"]]
        return Result(config=TrainConfig.from_dict(record["config"]), candidates=tuple(candidates), **plain)


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
    """All results by key; of several with one key the first counts. Files that do not exist hold nothing."""
    found: dict[str, Result] = {}
    for path in paths:
        for number, record in _records(path):
            try:
                result = Result.from_record(record)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}, line {number}, is no result of `classgap bench` ({error})") from error
            found.setdefault(result.key, result)
    return found


def _records(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    if not path.exists():
        return
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            if number == len(lines):  # cut off by a crash; its job is not in any other way done
                continue
            raise InputError(f"{path}, line {number}, cannot be read ({error}); restore the file") from error
        if record is not None:
            yield number, record


def append_results(path: Path, results: Sequence[Result]) -> int:
    """Add the results that ``path`` does not hold yet, all or none of each, and return how many; safe among processes."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        present = {record["key"] for _, record in _records(path)}
        fresh = {r.key: r for r in results if r.key not in present}
        text = "".join(json.dumps(result.to_record()) + "\n" for result in fresh.values())
        if text:
            with path.open("ab+") as handle:
                _mend_end(handle)
                handle.write(text.encode())
                handle.flush()
                os.fsync(handle.fileno())
    return len(fresh)


def _mend_end(handle: Any) -> None:
    """End the last line; where a crash has cut it off, remove it."""
    handle.seek(0)
    content = handle.read()
    whole = content.rfind(b"\n") + 1
    try:
        json.loads(content[whole:])
        handle.write(b"\n")
    except json.JSONDecodeError:
        handle.truncate(whole)


def collect_done(jobs: Sequence[Job], out: Path) -> list[Result]:
    """Results in the folders of finished jobs, for a results file that was lost, or that a crash kept from growing."""
    markers = (JobFolder(out, job).done for job in jobs)
    return [Result.from_record(json.loads(marker.read_text())) for marker in markers if marker.exists()]
