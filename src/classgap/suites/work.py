"""Running one job: train, keep the weights of the epochs the rules choose, score the test set once for each."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import classgap
from classgap.data import Split
from classgap.measure.statistics.groups import THIRDS
from classgap.suites.jobs import LAST_WEIGHTS, Job, JobFolder, complete
from classgap.suites.measures import measure
from classgap.suites.results import EpochResult, Result, pack
from classgap.suites.select import VALIDATION_RULES
from classgap.training.config import read_run
from classgap.training.epoch import read_log
from classgap.training.loop import Trainer
from classgap.training.progress import DivergedError, TrainProgress
from classgap.training.run import start
from classgap.training.stages.base import SharedRuns
from classgap.writing import write

Watch = Callable[[float], None]


def run_job(job: Job, folder: JobFolder, watch: Watch | None = None, *, workers: int | None = None) -> Result:
    """Run the job, or what is left of it, and mark it as done. The caller must hold its lock.

    Args:
        watch: Called with the share of the training that is done.
        workers: Processes that decode image files.
    """
    stored = read_run(folder.path)  # the same run, perhaps with settings that a later version spells differently
    trainer = start(
        stored or job.config,
        folder.path,
        resume=True,
        workers=workers,
        shared=SharedRuns(folder.shared, folder.finished, complete),
    )

    def after_step(position: TrainProgress) -> None:
        if position.record is not None:
            keep_best(trainer, folder.path)
        if watch is not None:
            watch(position.step / position.steps)

    trainer.watch = after_step
    keep_best(trainer, folder.path)  # a crash may have come between a checkpoint and this
    diverged = ""
    candidates: tuple[EpochResult, ...] = ()
    measures: dict[str, float] = {}
    try:
        trainer.run()
        _save_weights(trainer, folder.path / LAST_WEIGHTS)
        if job.measures:
            measures = measure(trainer.predictions(trainer.data.test), job.measures)
        candidates = tuple(_candidates(trainer, folder.path))
    except DivergedError as error:
        diverged = str(error).partition(":")[0]
    finite = {name: value if math.isfinite(value) else None for name, value in measures.items()}
    result = dataclasses.replace(_result(job, trainer, candidates, diverged), measures=finite)
    finish(folder, result)
    trainer.release()
    trainer.checkpoint.unlink(missing_ok=True)  # several times the size of the weights, and of no use any more
    return result


def finish(folder: JobFolder, result: Result) -> None:
    """Write the marker that holds the result."""
    write(folder.done, json.dumps(result.to_record()) + "\n")


def keep_best(trainer: Trainer, folder: Path) -> None:
    """Save the weights where the epoch that has just ended is the best so far by a rule."""
    history = read_log(trainer.log)
    if trainer.step or not history or "val" not in history[-1]:
        return
    for rule in VALIDATION_RULES:
        if rule.best(history) == trainer.epoch - 1:
            _save_weights(trainer, folder / f"{rule.name}.pt")


def _save_weights(trainer: Trainer, path: Path) -> None:
    content = io.BytesIO()  # torch would report a full disk as an error of its archive
    torch.save({"model": trainer.model.state_dict(), "criterion": trainer.criterion.state_dict()}, content)
    write(path, content.getvalue())


def _candidates(trainer: Trainer, folder: Path) -> Iterator[EpochResult]:
    """Every epoch that a rule chose, the last one first, since its weights are those at hand."""
    history = read_log(trainer.log)
    last = int(history[-1]["epoch"])
    chosen: dict[int, list[str]] = {last: ["last"]}
    if "val" in history[-1]:
        for rule in VALIDATION_RULES:
            chosen.setdefault(rule.best(history), []).append(rule.name)
    for epoch, rules in chosen.items():
        if epoch != last:
            saved = torch.load(folder / f"{rules[0]}.pt", map_location="cpu", weights_only=True)
            trainer.model.load_state_dict(saved["model"])
            trainer.criterion.load_state_dict(saved["criterion"])
        num_classes = trainer.data.num_classes
        y_val, val_pred = _predicted(trainer, trainer.data.val) if trainer.data.val is not None else (None, None)
        y_true, y_pred = _predicted(trainer, trainer.data.test)
        yield EpochResult(
            epoch,
            tuple(rules),
            () if y_val is None else _correct(y_val, val_pred, num_classes),
            _correct(y_true, y_pred, num_classes),
            pack(y_true, y_pred, num_classes),
        )


def _predicted(trainer: Trainer, split: Split) -> tuple[Any, Any]:
    scores, _ = trainer.predict(split)
    return split.y.cpu().numpy(), scores.argmax(1).cpu().numpy()


def _correct(y_true: Any, y_pred: Any, num_classes: int) -> tuple[int, ...]:
    return _counts(y_true[y_pred == y_true], num_classes)


def _counts(labels: Any, num_classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(labels, minlength=num_classes).tolist())


def _result(job: Job, trainer: Trainer, candidates: Sequence[EpochResult], diverged: str) -> Result:
    data, history = trainer.data, read_log(trainer.log)
    num_classes = data.num_classes
    return Result(
        suite=job.suite,
        task=job.task,
        variant=job.variant,
        seed=job.seed,
        config=job.config,
        split_hash=data.split_hash,
        class_names=data.class_names,
        train_counts=tuple(data.class_counts.tolist()),
        val_support=() if data.val is None else _counts(data.val.y.numpy(), num_classes),
        test_support=_counts(data.test.y.numpy(), num_classes),
        candidates=tuple(candidates),
        curve=_curve(history),
        class_spread=tuple(map(_four_digits, history[-1]["spread"]["per_class"])) if history else (),
        seconds=round(sum(record["seconds"] for record in history), 2),
        version=classgap.__version__,
        diverged=diverged,
    )


def _curve(history: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The log by column, to four digits."""
    columns = [("train", "loss"), ("train", "accuracy")]
    if history and "val" in history[-1]:
        columns += [
            (part, name) for part, names in (("val", ("balanced", *THIRDS)), ("spread", THIRDS)) for name in names
        ]
    return {f"{part}_{name}": [_four_digits(record[part][name]) for record in history] for part, name in columns}


def _four_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
