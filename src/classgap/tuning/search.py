"""The search: every trial is a training run that sees training and validation data only."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from classgap.checks import LARGEST_SEED, InputError, number, reading, whole
from classgap.measure.statistics.metrics import evaluate
from classgap.registry import Space
from classgap.training import TrainConfig, train
from classgap.training.config import MethodConfig, PartConfig, read_run
from classgap.training.epoch import accuracy_by_class
from classgap.training.lock import lock_folder
from classgap.training.progress import DivergedError, TrainProgress
from classgap.training.recipes import asked_for
from classgap.training.run import start
from classgap.tuning.space import as_settings, check_space, search_space, suggest, with_fractions
from classgap.writing import write

Tell = Callable[[str], None]
_FILE = "tuned.json"


@dataclass(frozen=True, eq=False)
class TuneReport:
    """The outcome of a search. Made by :func:`tune`.

    Attributes:
        config: The run with the chosen values.
        values: The chosen values, by setting.
        hard, overall: Accuracy of the hard third and of all validation samples under the chosen values.
        reference: The same of the reference, ``{"hard": …, "overall": …}``.
        feasible: Whether any trial kept the overall accuracy of the reference. If not, the chosen one has the best of all.
        trials: Every finished trial: values, ``hard``, ``overall``, and whether it was pruned.
    """

    config: TrainConfig
    values: Mapping[str, Any]
    hard: float
    overall: float
    reference: Mapping[str, float]
    feasible: bool
    trials: Sequence[Mapping[str, Any]]
    folder: Path

    @property
    def settings(self) -> list[str]:
        """The chosen values as ``--set`` takes them."""
        return as_settings(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "values": dict(self.values),
            "validation": {"hard": self.hard, "overall": self.overall},
            "reference": dict(self.reference),
            "feasible": self.feasible,
            "trials": [dict(trial) for trial in self.trials],
            "config": self.config.to_dict(),
        }

    def train(self, folder: str | Path | None = None, **options: Any) -> Any:
        """Train with the chosen values, test once, and keep ``tuned.json`` beside the results; options of :func:`train`.

        Of several processes that call this, one trains; the others wait for it and get its result.
        """
        place = self.folder / "best" if folder is None else Path(folder)
        lock = lock_folder(place, wait=-1)
        try:
            present = read_run(place)
            if present is not None and (changed := present.differences(self.config)):
                raise InputError(
                    f"{place} was trained with the choice among fewer trials ({'; '.join(changed)}); remove this folder to train "
                    "with the present choice"
                )
            result = train(self.config, place, resume=True, **options)
            write(place / _FILE, json.dumps(self.to_dict(), indent=2) + "\n")
        finally:
            lock.release()
        return result


def tune(
    config: TrainConfig | str | Path | None = None,
    folder: str | Path = "tuned",
    *,
    settings: Sequence[str] = (),
    space: Mapping[str, Space] | None = None,
    trials: int = 20,
    slack: float = 0.0,
    prune: bool = True,
    seed: int = 0,
    workers: int | None = None,
    tell: Tell | None = None,
) -> TuneReport:
    """Search for the parameters with the best hard third whose overall accuracy is not worse than that of cross-entropy.

    Both are measured on the validation set; the test set is not touched. Several processes, also on several machines, that are
    given the same ``folder`` share the trials: the study is a journal file in it.

    Args:
        config: What to train: a configuration, or a recipe; without it the defaults.
        folder: Folder of the study.
        settings: Changes of the configuration, as ``["method=elm", "data.val_fraction=0.2"]``.
        space: What to search, by setting; by default the ranges that the method declares.
        trials: Number of trials in the study, over all processes.
        slack: How far the overall accuracy may lie below that of the reference, as a fraction (0.005 is half a point).
        prune: End a trial early whose hard third is below the median of the others at the same epoch.
        seed: Random seed of the search; that of the training is ``config.seed``.
        workers: Processes that decode image files.
        tell: Called with a sentence whenever a trial ends.
    """
    whole("trials", trials, low=1)
    whole("seed", seed, low=0, high=LARGEST_SEED)
    number("slack", slack, low=0.0, high=1.0)
    made = asked_for(config, settings)
    ranges = search_space(made) if space is None else dict(space)
    if not ranges:
        raise InputError(
            f"method {made.method.name} declares no parameters to search; name some, e.g. optim.lr=0.01:0.3:log"
        )
    ranges = with_fractions(made, ranges)
    check_space(made, ranges)
    place = Path(folder)
    search = _Search(made, place, ranges, slack, prune, workers, tell or _silent)
    study = search.open(seed, trials)
    left = trials - sum(trial.state in _counted() for trial in study.get_trials())
    if left > 0:
        study.optimize(search.trial, n_trials=left, callbacks=[search.stop_after(trials)], catch=())
    report = search.report(study)
    write(place / _FILE, json.dumps(report.to_dict(), indent=2) + "\n")
    return report


def _silent(sentence: str) -> None:
    """Nobody asked for progress."""


class _Search:
    """One process of a study."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        space: Mapping[str, Space],
        slack: float,
        prune: bool,
        workers: int | None,
        tell: Tell,
    ) -> None:
        self.config, self.folder, self.space, self.slack = config, folder, space, slack
        self.prune, self.workers, self.tell = prune, workers, tell
        self.reference: dict[str, float] = {}

    def open(self, seed: int, trials: int) -> Any:
        """The study in the folder, and the reference, which the first process trains while the others wait."""
        optuna = _optuna()
        with self._lock("study"):
            stated = self._state()
            joined = stated["processes"]
            write(self.folder / "study.json", json.dumps({**stated, "processes": joined + 1}) + "\n")
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / "study.log"))
        options: dict[str, Any] = {
            "seed": (seed + joined) % (LARGEST_SEED + 1),
            "n_startup_trials": min(10, max(2, trials // 3)),
        }
        if not hasattr(optuna.trial.Trial, "set_constraint"):  # before Optuna 5
            options["constraints_func"] = lambda trial: (trial.user_attrs.get("shortfall", 1.0),)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="classgap",
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.TPESampler(**options),
            pruner=pruner if self.prune else optuna.pruners.NopPruner(),
        )
        with self._lock("reference"):
            self.reference = self._trained_reference()
        return study

    def _state(self) -> dict[str, Any]:
        """What the study is about; another one in the same folder is an error."""
        about = {"config": self.config.to_dict(), "space": {name: repr(values) for name, values in self.space.items()}}
        path = self.folder / "study.json"
        if not path.exists():
            return {**about, "processes": 0}
        with reading(path, "the description of a study"):
            stated: dict[str, Any] = json.loads(path.read_text())
            same = all(stated[key] == json.loads(json.dumps(value)) for key, value in about.items())
            stated["processes"] = whole("processes", stated["processes"], low=0)
        if not same:
            raise InputError(f"{self.folder} holds a study of another run or search space; choose another folder")
        return stated

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        from filelock import FileLock

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f"{name}.lock"):
            yield

    def _trained_reference(self) -> dict[str, float]:
        path = self.folder / "reference.json"
        if not path.exists():
            plain = dataclasses.replace(
                self.config, method=MethodConfig(), stage=PartConfig(), wrapper=PartConfig(), teacher=None
            )
            write(path, json.dumps(self._measured(plain, self.folder / "reference", None)) + "\n")
        with reading(path, "the result of the reference"):
            found: dict[str, float] = {
                name: number(name, json.loads(path.read_text())[name], low=0.0, high=1.0)
                for name in ("hard", "overall")
            }
        self.tell(f"cross-entropy: hard {found['hard']:.1%}, overall {found['overall']:.1%} on validation data")
        return found

    def trial(self, trial: Any) -> float:
        """Train with the values of a trial; the accuracy of the hard third."""
        values = suggest(trial, self.space)
        trial.set_user_attr("values", values)
        config = self.config.override(as_settings(values))
        place = self.folder / "trials" / f"{trial.number:04d}"
        try:
            found = self._measured(config, place, trial if self.prune else None)
        except DivergedError:
            found = {"hard": 0.0, "overall": 0.0}
        shortfall = self.reference["overall"] - self.slack - found["overall"]
        if hasattr(trial, "set_constraint"):
            trial.set_constraint("overall", shortfall)
        for name, value in (*found.items(), ("shortfall", shortfall)):
            trial.set_user_attr(name, value)
        state = "" if shortfall <= 0 else ", below the reference"
        self.tell(
            f"trial {trial.number}: hard {found['hard']:.1%}, overall {found['overall']:.1%}{state} {_shown(values)}"
        )
        return found["hard"]

    def _measured(self, config: TrainConfig, place: Path, trial: Any) -> dict[str, float]:
        """Accuracies on the validation set at the end of a run; raises where the trial is pruned."""
        shutil.rmtree(place, ignore_errors=True)
        trainer = start(config, place, workers=self.workers)
        if trainer.data.val is None:
            raise InputError("tune needs validation data; set data.val_fraction, e.g. to 0.1")

        def watch(position: TrainProgress) -> None:
            if trial is None or position.record is None or position.stage or "val" not in position.record:
                return
            trial.report(position.record["val"]["hard"], position.epoch)
            if trial.should_prune():
                self.tell(f"trial {trial.number}: ended early {_shown(trial.user_attrs['values'])}")
                raise _optuna().TrialPruned

        trainer.watch = watch
        trainer.run()
        scores, _ = trainer.predict(trainer.data.val)
        y = trainer.data.val.y
        by_class = accuracy_by_class(scores, y, trainer.data.num_classes)
        overall = float((scores.argmax(1) == y).double().mean())
        trainer.checkpoint.unlink(missing_ok=True)
        return {"hard": float(evaluate(by_class[~np.isnan(by_class)], ("hard",))[0]), "overall": overall}

    def stop_after(self, trials: int) -> Any:
        """End this process when the study has as many trials, whoever ran them."""
        return _optuna().study.MaxTrialsCallback(trials, states=_counted())

    def report(self, study: Any) -> TuneReport:
        """The best trial that keeps the overall accuracy, otherwise the one with the best overall accuracy."""
        rows = []
        for trial in study.get_trials():
            if "values" in trial.user_attrs and trial.state.is_finished():
                known = {key: trial.user_attrs.get(key) for key in ("hard", "overall")}
                rows.append({"values": trial.user_attrs["values"], **known, "pruned": trial.state.name == "PRUNED"})
        whole_rows = [row for row in rows if row["hard"] is not None and not row["pruned"]]
        if not whole_rows:
            raise InputError(f"no trial of the study in {self.folder} has finished; run it again")
        least = self.reference["overall"] - self.slack
        feasible = [row for row in whole_rows if row["overall"] >= least]
        best = max(feasible, key=lambda r: r["hard"]) if feasible else max(whole_rows, key=lambda r: r["overall"])
        chosen = self.config.override(as_settings(best["values"]))
        return TuneReport(
            chosen, best["values"], best["hard"], best["overall"], self.reference, bool(feasible), rows, self.folder
        )


def _shown(values: Mapping[str, Any]) -> str:
    return "(" + ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()) + ")"


def _counted() -> tuple[Any, ...]:
    """States of trials that count: one that was interrupted, or ended with an error, is made up for."""
    state = _optuna().trial.TrialState
    return state.COMPLETE, state.PRUNED


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise InputError("tune needs Optuna: pip install 'classgap[tune]'") from error
    optuna.logging.set_verbosity(logging.ERROR)  # an error of a trial is raised, not logged with its traceback
    return optuna
