"""Runs that build upon other runs, and everything the loop supplies: stages, teachers, heads, views, samplers, SAM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classgap
from classgap.checks import InputError
from classgap.data import Batches, Normalise, Split, mixup, policies
from classgap.samplers import ClassBalancedSampler
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.epoch import read_log
from classgap.training.folder import write_results
from classgap.training.run import start
from classgap.training.stages.base import SharedRuns
from stage_runs import CONVOLUTIONS, LONG_TAIL, SMALL, criterion_state, equal, run, weights


class Killed(Exception):
    pass


def kill_at(stage: str, step: int) -> Any:
    def watch(position: TrainProgress) -> None:
        if position.stage == stage and position.step == step and not position.note:
            raise Killed

    return watch


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "cuts"),
    [
        (["sampler=class_balanced"], [("", 2)]),
        (["sampler=p_by_q", "sampler.classes=5", "sampler.samples=2", "sampler.start_epoch=1"], [("", 5)]),
        (["wrapper=sam", "method=mr2"], [("", 4)]),
        (["mix=mixup", "method=bcl"], [("", 2)]),
        (["method=fair_dro", "method.update=epoch"], [("", 2)]),
        (["stage=jtt", "stage.first=2"], [("stage1", 4), ("", 2)]),
        (["stage=linear_probe", "stage.epochs=2"], [("stage1", 2), ("", 2)]),
        (["stage=three_stage"], [("stage1", 5), ("stage2", 1), ("", 1)]),
        (["stage=crt", "method=gml"], [("teacher", 2), ("stage1", 3)]),
        (["stage=tau_norm"], [("stage1", 4)]),
        (["stage=gap_dial", "stage.refit=true"], [("stage1", 4), ("", 9)]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value[0], str) else "",
)
def test_a_run_killed_in_any_stage_continues_bit_for_bit(
    tmp_path: Path, settings: list[str], cuts: list[tuple[str, int]]
) -> None:
    for stage, step in cuts:
        with pytest.raises(Killed):
            run(tmp_path / "cut", *CONVOLUTIONS, *settings, watch=kill_at(stage, step), resume=True)
    resumed = run(tmp_path / "cut", *CONVOLUTIONS, *settings, resume=True)
    whole = run(tmp_path / "whole", *CONVOLUTIONS, *settings)
    assert equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert np.array_equal(resumed.test.scores, whole.test.scores)
    for one, two in zip(resumed.history, whole.history, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
    again = run(tmp_path / "cut", *CONVOLUTIONS, *settings, resume=True)  # nothing left to do
    assert np.array_equal(again.test.scores, whole.test.scores)


# --- stages ---------------------------------------------------------------------------------------------------------


def test_just_train_twice_without_errors_is_plain_training(tmp_path: Path) -> None:
    run(tmp_path / "plain")
    run(tmp_path / "jtt", "stage=jtt", "stage.factor=0")
    assert equal(weights(tmp_path / "jtt"), weights(tmp_path / "plain"))


def test_just_train_twice_repeats_what_the_first_model_gets_wrong(tmp_path: Path) -> None:
    from classgap.training.run import start

    config = TrainConfig().override([*SMALL, "stage=jtt", "stage.factor=4", "stage.first=1", "method=dbm"])
    trainer = start(config, tmp_path, accelerator="cpu")
    trainer.run()
    first = weights(tmp_path / "stage1")
    images = trainer.normalise(trainer.data.train.x).flatten(1)
    hidden = torch.relu(images @ first["1.weight"].T + first["1.bias"])
    wrong = (hidden @ first["3.weight"].T + first["3.bias"]).argmax(1) != trainer.data.train.y
    visits = torch.bincount(trainer.batches.order(0), minlength=len(wrong))
    assert 0 < wrong.sum() < len(wrong)
    assert torch.equal(visits, 1 + 4 * wrong.long())
    with pytest.raises(InputError, match="set sampler=none"):
        run(tmp_path / "other", "stage=jtt", "sampler=class_balanced")


def test_a_probe_trains_the_head_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path, *CONVOLUTIONS, "method=supcon", "method.ce_weight=0", "stage=linear_probe", "stage.epochs=1")
    first, final = weights(tmp_path / "stage1"), weights(tmp_path)
    changed = {k for k in first if not torch.equal(first[k], final[k])}
    assert changed == {k for k in first if k.startswith(("head.", "fc."))}


def test_three_stages_train_all_then_body_then_head(tmp_path: Path) -> None:
    run(tmp_path, "method=dro_lt", "stage=three_stage", *LONG_TAIL)
    one, two, three = (weights(tmp_path / f) for f in ("stage2/stage1", "stage2", "."))
    head = {"3.weight", "3.bias"}
    assert {k for k in one if not torch.equal(one[k], two[k])} == one.keys() - head
    assert {k for k in two if not torch.equal(two[k], three[k])} == head


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method=crt"], "crt is used together with any method; set stage=crt"),
        (["method=sam"], "set wrapper=sam"),
        (["method=mixup"], "set mix=mixup"),
        (["method=cutout"], "set data.augment=cutout"),
        (["stage=jt"], "did you mean 'jtt'"),
        (["stage=gap_dial", "stage.refit=yes"], "must be true or false"),
        (
            ["stage=gap_dial", "stage.refit=true", *LONG_TAIL],
            "in the proportions of the training samples, but class 9 has",
        ),
        (["stage=jtt", "stage.faktor=3"], "did you mean 'factor'"),
        (["stage=marc", "stage.steps=0"], "stage.steps must be a whole number"),
        (["stage=marc", "stage.normalize=mean"], "stage.normalize"),
        (["stage=tau_norm", "stage.tau=-1"], "stage.tau"),
        (["stage=tau_norm", "method=dbm"], "needs a linear head"),
        (["stage=tau_norm", "data.val_fraction=0"], r"set data\.val_fraction above 0"),
        (["stage=crt", "method=ncl"], "method ncl trains several"),
        (["stage=three_stage", "method=dbm"], "dbm works on cosines"),
        (["stage=three_stage", "method=bcl", "method.base=dbm"], "bcl works on cosines; leave the stage out"),
        (["stage=three_stage", "method=drw", "method.base=ldam"], "drw works on cosines"),
        (["stage=tau_norm", "method=drw", "method.base=ldam"], "needs a linear head"),
        (["stage=three_stage", "method=bcl", "method.base=dmb"], "did you mean 'dbm'"),
        (["method=dbm", "model.head=linear"], "leave it at auto"),
        (["sampler=p_by_q", "sampler.classes=5"], "set batch=20"),
        (["sampler=class_blanced"], "did you mean 'class_balanced'"),
        (["wrapper=sma"], "did you mean 'sam'"),
        (["mix=mix"], "did you mean 'mixup'"),
        (["mix=mixup", "mix.alpha=-1"], "alpha must be"),
        (["mix=mixup", "mix.alfa=1"], "did you mean 'alpha'"),
        (["method=gml", "teacher=nowhere"], "must be the folder of a finished run"),
    ],
)
def test_settings_that_cannot_work_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


# --- what the loop supplies -----------------------------------------------------------------------------------------


def test_rectangles_need_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.normal(size=(40, 5)), "y_train": np.arange(40) % 4}
    np.savez(tmp_path / "d.npz", **arrays, x_test=arrays["x_train"], y_test=arrays["y_train"])
    with pytest.raises(InputError, match="use mixup for vectors"):
        run(tmp_path / "run", f"data=npz:{tmp_path / 'd.npz'}", "data.per_class=none", "mix=cutmix")


def test_a_head_is_chosen_and_said(tmp_path: Path) -> None:
    notes: list[str] = []
    result = run(tmp_path / "auto", "method=dbm", "epochs=1", watch=lambda p: notes.append(p.note))
    assert result.test.bias is None
    assert "head: cosine, since dbm works on cosines" in notes
    run(tmp_path / "views", "method=supcon", "epochs=1", watch=lambda p: notes.append(p.note))
    assert any("without augmentation all views" in note for note in notes)
    run(tmp_path / "said", "method=dbm", "epochs=1", "model.head=cosine")
    assert equal(weights(tmp_path / "auto"), weights(tmp_path / "said"))


def test_a_teacher_is_trained_first_or_taken_from_a_folder(tmp_path: Path) -> None:
    student = run(tmp_path / "student", "method=gml", *LONG_TAIL)
    assert (student.folder / "teacher" / "predictions_test.npz").exists()
    # Balanced softmax on cosines, at the scale of the student.
    taught_by = ["method=dbm", "method.variant=bs", "method.k_m=0", "method.s=30", *LONG_TAIL]
    run(tmp_path / "teacher", *taught_by)
    assert equal(weights(student.folder / "teacher"), weights(tmp_path / "teacher"))
    run(tmp_path / "given", "method=gml", *LONG_TAIL, f"teacher={tmp_path / 'teacher'}")
    assert equal(weights(tmp_path / "given"), weights(student.folder))
    run(tmp_path / "wide", "model=mlp-24")
    run(tmp_path / "from_wide", "method=gml", f"teacher={tmp_path / 'wide'}")
    run(tmp_path / "vectors", "method=ncl")
    with pytest.raises(InputError, match="holds several networks"):
        run(tmp_path / "from_several", "method=gml", f"teacher={tmp_path / 'vectors'}")


def test_several_networks_are_trained_side_by_side(tmp_path: Path) -> None:
    result = run(tmp_path, "method=ncl", "method.experts=2")
    assert result.test.scores.shape == (1000, 10)
    assert result.test.features.shape == (1000, 32)
    assert {k.split(".")[1] for k in weights(tmp_path)} == {"0", "1"}
    done = subprocess.run(
        [sys.executable, "-m", "classgap", "audit", str(tmp_path / "predictions_test.npz")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _batches(**changes: Any) -> Batches:
    images = torch.randint(0, 256, (54, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(54) % 3
    options: dict[str, Any] = {
        "batch": 11,
        "order": ClassBalancedSampler(labels, seed=3),
        "normalise": Normalise((0.5,) * 3, (0.25,) * 3),
        "policies": policies(["crop", "flip"], (0.5,)),
        **changes,
    }
    return Batches(Split(images, labels), **options)


def test_runs_with_the_same_first_stage_train_it_once(tmp_path: Path) -> None:
    for stage in ("crt", "lws", "marc"):
        config = TrainConfig().override(["epochs=1", "data.per_class=12", "batch=32", "model=mlp-8", f"stage={stage}"])
        trainer = start(config, tmp_path / stage, shared=SharedRuns(tmp_path / "shared"))
        trainer.run()
        test, _ = write_results(trainer)
        alone = train(config, tmp_path / f"{stage}-alone")
        assert np.array_equal(test.scores, alone.test.scores)
        assert len(list((tmp_path / "shared").iterdir())) == 1
        assert [path.name for path in (tmp_path / stage).iterdir() if path.is_dir()] == []
    (first,) = (tmp_path / "shared").iterdir()
    assert len(read_log(first / "log.jsonl")) == 1


def test_views_come_one_after_the_other() -> None:
    single, triple = next(_batches().epoch(0)), next(_batches(views=3).epoch(0))
    first, second, third = triple.x.view(3, 11, 3, 8, 8)
    assert torch.equal(first, single.x)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert torch.equal(triple.y.view(3, 11), single.y.expand(3, -1))
    assert torch.equal(triple.index.view(3, 11), single.index.expand(3, -1))
    pieces = list(triple.pieces(4))
    assert [len(p.y) for p in pieces] == [9, 9, 9, 6]
    assert torch.equal(torch.cat([p.x.view(3, -1, 3, 8, 8) for p in pieces], 1).flatten(0, 1), triple.x)
    assert all((p.index.view(3, -1) == p.index.view(3, -1)[0]).all() for p in pieces)


@pytest.mark.parametrize("mix", [None, lambda x, y, rng: mixup(x, y, 3, rng, alpha=1.0)], ids=["plain", "mixup"])
def test_processes_take_disjoint_shares_of_a_sampled_batch(mix: Any) -> None:
    shares = [_batches(rank=rank, world=2, mix=mix).epoch(1) for rank in range(2)]
    for whole, one, two in zip(_batches(mix=mix).epoch(1), *shares, strict=True):
        assert torch.equal(torch.cat((one.index, two.index)), whole.index)
        torch.testing.assert_close(torch.cat((one.x, two.x)), whole.x)
        torch.testing.assert_close(torch.cat((one.y, two.y)), whole.y)
        assert one.total == two.total == whole.total


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Samplers, mixing, sharpness-aware steps, accumulation, clipping and a loss that learns, all at once."""
    settings = ["method=bcl", "sampler=class_balanced", "wrapper=sam", "mix=mixup", "batch=22", "epochs=2"]
    settings = [*SMALL, *settings, "optim.clip=0.5", "method.views=2", "data.augment=crop", "precision=64-true"]
    train(TrainConfig().override(settings), tmp_path / "one", accelerator="cpu")
    sets = [part for s in settings for part in ("--set", s)]
    command = [sys.executable, "-m", "classgap", "train", *sets, "--out", str(tmp_path / "two"), "--devices", "2"]
    done = subprocess.run([*command, "--accelerator", "cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for key, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[key], value, rtol=1e-3, atol=1e-5)


# --- sharpness-aware steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["sam", "asam"])
def test_the_second_pass_leaves_statistics_alone(tmp_path: Path, wrapper: str) -> None:
    one_step = ["model=resnet20", "data.per_class=2", "batch=20", "epochs=1", "method=mr2"]
    run(tmp_path / "plain", *one_step)
    run(tmp_path / "sharp", *one_step, f"wrapper={wrapper}", "wrapper.rho=0.5")
    plain, sharp = weights(tmp_path / "plain"), weights(tmp_path / "sharp")
    statistics = {k for k in plain if "running" in k or "num_batches" in k}
    assert statistics
    assert all(torch.equal(plain[k], sharp[k]) for k in statistics)
    assert not equal(plain, sharp)
    assert equal(criterion_state(tmp_path / "plain"), criterion_state(tmp_path / "sharp"))


def test_sharpness_aware_steps_accumulate_and_vanish_with_their_radius(tmp_path: Path) -> None:
    run(tmp_path / "plain")
    run(tmp_path / "none", "wrapper=sam", "wrapper.rho=0")
    assert equal(weights(tmp_path / "plain"), weights(tmp_path / "none"))
    steps = ("wrapper=sam", "wrapper.rho=0.5", "optim.clip=0.5", "precision=64-true")
    run(tmp_path / "whole", *steps)
    run(tmp_path / "pieces", *steps, "optim.accumulate=3")
    assert not equal(weights(tmp_path / "plain"), weights(tmp_path / "whole"))
    for key, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "pieces")[key], value, rtol=1e-3, atol=1e-5)


# --- configuration and command line ---------------------------------------------------------------------------------


def test_parts_that_a_run_does_not_have_leave_no_trace() -> None:
    plain = TrainConfig()
    assert not {"sampler", "mix", "wrapper", "stage", "teacher"} & plain.to_dict().keys()
    config = plain.override(["stage=jtt", "stage.factor=7", "mix=mixup", "sampler=p_by_q", "sampler.classes=5"])
    assert config.stage.params == {"factor": 7}
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert "-jtt-p_by_q-mixup-" in config.slug
    assert config.override(["stage=crt"]).stage.params == {}


def test_command_line_says_which_stage_it_is_in(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from classgap.cli.app import app

    sets = [part for s in (*SMALL, "method=dbm", "stage=jtt") for part in ("--set", s)]
    done = CliRunner().invoke(app, ["train", *sets, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "digits · mlp-16 · dbm · jtt" in done.output
    assert "stage1  epoch 1/1" in done.output
    assert "head: cosine" in done.output
    before = classgap.audit(**_labels(tmp_path / "run" / "stage1"))
    after = classgap.audit(**_labels(tmp_path / "run"))
    assert classgap.compare(before, after) is not None


def _labels(folder: Path) -> dict[str, Any]:
    with np.load(folder / "predictions_test.npz") as saved:
        return {"y_true": saved["y_true"], "y_pred": saved["y_pred"]}


def test_sharpness_aware_steps_with_a_gradient_scaler(tmp_path: Path) -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision import MixedPrecision

    from classgap.data import load_data
    from classgap.training.loop import Trainer

    config = TrainConfig().override([*SMALL, "wrapper=sam", "wrapper.rho=0.5", "optim.clip=0.5", "optim.accumulate=2"])
    states = []
    for scale in (None, 2.0**10, 2.0**40):  # the last overflows until it has been halved often enough
        plugins = (
            [] if scale is None else [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))]
        )
        folder = tmp_path / str(scale)
        folder.mkdir()
        fabric = Fabric(accelerator="cpu", devices=1, plugins=plugins)
        trainer = Trainer(config, load_data("digits", per_class=13), fabric, folder)
        trainer.run()
        states.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    plain, scaled, overflowed = states
    for name, value in plain.items():
        torch.testing.assert_close(scaled[name], value, rtol=0.02, atol=5e-3)
        assert torch.isfinite(overflowed[name]).all()
