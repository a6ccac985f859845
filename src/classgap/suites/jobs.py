"""A job is one training run, named by the hash of its configuration and kept in a folder of that name."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from classgap import registry
from classgap.training.config import MethodConfig, PartConfig, TrainConfig
from classgap.writing import write

LAST_WEIGHTS = "last.pt"


@dataclass(frozen=True)
class Job:
    """One run of a suite. Two jobs with one configuration are the same run, whatever suite, task or variant asks for it.

    Attributes:
        measures: What is measured after training beside accuracies, see :mod:`classgap.suites.measures`.
    """

    suite: str
    task: str
    variant: str
    seed: int
    config: TrainConfig
    measures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.task}/{self.variant} seed {self.seed}"

    @cached_property
    def key(self) -> str:
        return job_key(self.config)


def complete(config: TrainConfig) -> TrainConfig:
    """``config`` with all parameters of its method and its stage spelled out: it means the same when a default changes later.

    Example:
        >>> complete(TrainConfig()).method.params
        {'label_smoothing': 0.0}
    """
    plain = _plain_defaults("loss", config.method.name)
    if "epochs" in plain:  # methods that follow a schedule want to know how long the run is
        plain["epochs"] = config.epochs
    method, stage = MethodConfig(config.method.name, {**plain, **config.method.params}), config.stage
    if stage.name != "none":
        stage = PartConfig(stage.name, {**_plain_defaults("stage", stage.name), **stage.params})
    return dataclasses.replace(config, method=method, stage=stage)


def _plain_defaults(kind: registry.Kind, name: str) -> dict[str, Any]:
    """Defaults that can be written into a configuration."""
    defaults = registry.get(kind, name).defaults
    return {key: value for key, value in defaults.items() if value is None or isinstance(value, (str, int, float))}


def job_key(config: TrainConfig) -> str:
    """Twelve hexadecimal digits that stand for everything a run depends on, machine and folders left out."""
    tree = complete(config).to_dict()
    usual = "cosine" if "cosine_head" in registry.get("loss", config.method.name).needs else "linear"
    if tree["model"]["head"] == usual:
        tree["model"]["head"] = "auto"  # the same run
    if tree["model"]["head"] == "cosine":
        tree["model"].setdefault("head_scale", "learned")  # likewise; and not the run on raw cosines this once meant
    text = json.dumps(_canonical(tree), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    """1 and 1.0 are the same setting."""
    if isinstance(value, dict):
        return {key: _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_canonical(entry) for entry in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class JobFolder:
    """Where a job's log and checkpoint live while it runs, and what became of it.

    ``done`` holds the result and is written last and at once, so it is there whole or not at all. A job belongs to the
    process that holds its lock; the operating system takes the lock back when that process ends, however it ends, so the
    next one goes on from the checkpoint. On a shared folder this needs a file system with locks, which NFS and SMB have.
    """

    def __init__(self, out: Path, job: Job) -> None:
        self.path = out / "jobs" / job.key
        self.shared = out / "shared"  # first stages and teachers that are the same for several jobs
        self.done, self.failure = self.path / "done", self.path / "failed.json"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """True while this process owns the job; False if it is done or another process has it."""
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield not self.done.exists()
        finally:
            lock.release()

    def finished(self, config: TrainConfig, split_hash: str) -> Path | None:
        """Weights that another job of this suite has left, if it is the run ``config`` on data with this hash and is done."""
        other = self.path.parent / job_key(config)
        done, weights = other / "done", other / LAST_WEIGHTS
        if not (done.exists() and weights.exists()):
            return None
        return weights if json.loads(done.read_text())["split_hash"] == split_hash else None

    def fail(self, error: str, session: str) -> None:
        """Note why the job could not be run, so that other workers of this session leave it alone."""
        write(self.failure, json.dumps({"session": session, "error": error}) + "\n")

    def failed(self, session: str) -> str | None:
        """What went wrong with the job in this session."""
        if not self.failure.exists():
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            noted = json.loads(self.failure.read_text())
            return str(noted["error"]) if noted["session"] == session else None
        return None
