"""Search for parameters: on validation data only, shared by real processes, with the reference as a constraint."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import classgap
from classgap.checks import InputError
from classgap.registry import Choice, Float, Int
from classgap.training import TrainConfig
from classgap.tuning import parse_space, search_space, tune

pytest.importorskip("optuna", reason="needs Optuna")
SMALL = ["data.per_class=10", "data.val_fraction=0.3", "model=mlp-16", "method=logit_adjusted", "optim.lr=0.05"]
SMALL += ["epochs=3", "batch=50"]


def test_spaces() -> None:
    config = TrainConfig().override(["method=elm", "stage=marc"])
    assert {"method.lam", "method.alpha", "stage.gamma"} <= set(search_space(config))
    found = parse_space(["optim.lr=0.01:0.3:log", "epochs=2:9", "method.c_bar=1,2.5", "method.alpha=prior,count"])
    assert found == {
        "optim.lr": Float(0.01, 0.3, 0.01, log=True),
        "epochs": Int(2, 9, 2),
        "method.c_bar": Choice((1, 2.5), 1),
        "method.alpha": Choice(("prior", "count"), "prior"),
    }
    for wrong in ("optim.lr", "optim.lr=3:1", "optim.lr=0:1:log", "optim.lr=1:2:lin", "optim.lr=a:b"):
        with pytest.raises(InputError, match="--space"):
            parse_space([wrong])


def test_what_cannot_be_searched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean 'optim\.lr'"):
        tune(folder=tmp_path, space={"optim.lrr": Float(0.1, 1.0, 0.1)})
    with pytest.raises(
        InputError, match=r"unknown parameter of cross_entropy 'lam'"
    ):  # before the reference is trained
        tune(folder=tmp_path / "new", space={"method.lam": Float(0.1, 1.0, 0.1)})
    for setting, values in {"method.lam": Float(-1.0, 1.0, 0.1), "method.decay": Choice((0.5, 2.0), 0.5)}.items():
        with pytest.raises(InputError, match=rf"{setting.partition('.')[2]} must be"):
            tune(folder=tmp_path / "new", settings=["method=mr2"], space={setting: values})
    with pytest.raises(InputError, match=r"optim\.lr must be"):
        tune(folder=tmp_path / "new", space={"optim.lr": Choice((0.1, -1), 0.1)})
    with pytest.raises(InputError, match="seed must be"):
        tune(folder=tmp_path / "new", settings=["method=mr2"], seed=2**33)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=r"tune needs validation data; set data\.val_fraction"):
        tune(folder=tmp_path, settings=[*SMALL, "data.val_fraction=0"])


def _start(folder: Path, trials: int) -> subprocess.Popen[str]:
    words = [word for setting in SMALL for word in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "classgap",
        "tune",
        *words,
        "--trials",
        str(trials),
        "--out",
        str(folder),
        "--no-prune",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    """One reference, different trials, no more than asked for (but those under way), one result."""
    folder = tmp_path / "study"
    processes = [_start(folder, 6) for _ in range(2)]
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    report = tune(folder=folder, settings=SMALL, trials=6)  # nothing is left to do
    assert 6 <= len(report.trials) <= 7
    assert len({json.dumps(trial["values"]) for trial in report.trials}) == len(report.trials)
    numbers = sorted(int(number) for text in told for number in re.findall(r"^trial (\d+)", text, re.MULTILINE))
    assert len(numbers) == len(set(numbers)) == len(report.trials)  # each trial was run by one of the two
    stored: dict[str, Any] = json.loads((folder / "tuned.json").read_text())
    assert stored["values"] == dict(report.values)
    good = [t for t in report.trials if t["overall"] >= report.reference["overall"]]
    assert report.feasible is bool(good)
    if good:
        assert report.hard == max(t["hard"] for t in good)
    assert report.config.method.params["tau"] == report.values["method.tau"]
    assert not list(folder.rglob("predictions_test.npz"))  # the test set was not touched
    with pytest.raises(InputError, match="holds a study of another run or search space"):
        tune(folder=folder, settings=[*SMALL, "epochs=4"])
    result = report.train()
    assert json.loads((result.folder / "tuned.json").read_text())["values"] == dict(report.values)


def test_the_chosen_values_are_trained_once(tmp_path: Path) -> None:
    """The same command again, or in a second process, ended with an error."""
    space = {"method.tau": Choice((0.5, 1.0), 1.0)}
    report = classgap.tune(folder=tmp_path, settings=SMALL, space=space, trials=1)
    first, again = report.train(), report.train()
    np.testing.assert_array_equal(first.test.scores, again.test.scores)
    other = dataclasses.replace(report, config=report.config.override(["method.tau=0.7"]))
    with pytest.raises(InputError, match=r"was trained with the choice among fewer trials .*tau.*remove this folder"):
        other.train()


def test_the_constraint_decides(tmp_path: Path) -> None:
    """A learning rate with which the network learns nothing is never chosen."""
    space = {"optim.lr": Choice((1e-6, 0.05), 0.05)}
    report = classgap.tune(folder=tmp_path, settings=SMALL, space=space, trials=4, slack=0.02, prune=False)
    assert {trial["values"]["optim.lr"] for trial in report.trials} == {1e-6, 0.05}
    assert report.values["optim.lr"] == 0.05
    assert report.settings[0].startswith("optim.lr=")


def test_hopeless_trials_end_early(tmp_path: Path) -> None:
    told: list[str] = []
    settings = [*SMALL, "data.per_class=40", "epochs=8"]
    report = tune(
        folder=tmp_path,
        settings=settings,
        space=parse_space(["optim.lr=0.1,0.05,0.08,0.06,0.000001"]),
        trials=12,
        tell=told.append,
    )
    pruned = [trial for trial in report.trials if trial["pruned"]]
    assert pruned
    assert sum("ended early" in sentence for sentence in told) == len(pruned)
    assert (
        report.hard >= max(trial["hard"] for trial in report.trials if trial["hard"] is not None) or not report.feasible
    )


def test_a_range_between_whole_numbers_holds_fractions_where_the_setting_takes_them() -> None:
    from classgap.tuning.space import with_fractions

    config = TrainConfig().override(["method=focal"])
    space = with_fractions(config, parse_space(["method.gamma=0:2", "epochs=2:5", "optim.lr=0:1", "batch=8,16"]))
    assert [type(found) for found in space.values()] == [Float, Int, Float, Choice]


def test_whole_numbers_of_stages_and_samplers_stay_whole() -> None:
    """Searched as fractions, every stage and sampler with such a parameter ended with an error in the first trial."""
    from classgap.tuning.space import with_fractions

    config = TrainConfig().override(["stage=ensemble", "sampler=class_aware", "method=eql", "mix=mixup", "wrapper=sam"])
    space = with_fractions(config, search_space(config))
    assert [space[name] for name in ("stage.members", "sampler.samples")] == [Int(2, 10, 3), Int(1, 16, 4)]
    texts = [
        "stage.members=2:4",
        "stage.dial=1:2",
        "method.threshold=0:1",
        "method.label_smoothing=0:1",
        "mix.alpha=0:1",
    ]
    found = with_fractions(config, parse_space([*texts, "wrapper.rho=0:1"]))
    assert [type(values) for values in found.values()] == [Int, Float, Float, Float, Float, Float]


def test_a_stage_is_tuned(tmp_path: Path) -> None:
    report = tune(folder=tmp_path, settings=[*SMALL, "epochs=1", "stage=jtt"], trials=1, prune=False)
    assert isinstance(report.values["stage.factor"], int)


def test_parts_that_cannot_be_tuned_are_refused_before_the_reference_is_trained(tmp_path: Path) -> None:
    stages = {"stage=gap_dial stage.refit=true": "leave it out", "stage=ensemble_teacher": "needs a method that learns"}
    for settings, sentence in {**stages, "stage=jtt stage.fator=3": "did you mean"}.items():
        with pytest.raises(InputError, match=sentence):
            tune(folder=tmp_path / "new", settings=[*SMALL, *settings.split()])
    with pytest.raises(InputError, match=r"stage\.members is set, but the run has no stage"):
        tune(folder=tmp_path / "new", settings=SMALL, space=parse_space(["stage.members=2:4"]))
    assert not (tmp_path / "new").exists()


def test_the_reference_has_no_teacher(tmp_path: Path) -> None:
    """With ``teacher=FOLDER`` the reference was refused, since cross-entropy does not learn from one."""
    settings = [*SMALL, "epochs=1"]
    classgap.train(folder=tmp_path / "teacher", settings=[*settings, "method=cross_entropy"])
    taught = [*settings, "method=distillation", f"teacher={tmp_path / 'teacher'}"]
    assert tune(folder=tmp_path / "study", settings=taught, trials=1, prune=False).reference["overall"] > 0


def test_a_trial_that_was_interrupted_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as finished: the same command again did nothing and asked to be run again."""
    from classgap.training.loop import Trainer

    whole = Trainer.run

    def interrupted(trainer: Trainer) -> None:
        if trainer.folder.parent.name == "trials":
            raise KeyboardInterrupt
        whole(trainer)

    monkeypatch.setattr(Trainer, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(folder=tmp_path, settings=SMALL, trials=1, prune=False)
    monkeypatch.setattr(Trainer, "run", whole)
    finished = tune(folder=tmp_path, settings=SMALL, trials=1, prune=False)
    assert [trial["hard"] is None for trial in finished.trials] == [True, False]
