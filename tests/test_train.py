"""The loop: identities, determinism, resuming a killed run, several processes, and errors that keep what is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from classgap.checks import InputError
from classgap.training import TrainConfig, TrainProgress, train
from waiting import SECONDS, started, wait_until

SMALL = ["data.per_class=13", "epochs=3", "batch=24", "optim.lr=0.05", "model=mlp-16"]
CLI = [sys.executable, "-m", "classgap", "train"]


def _fit(folder: Path, *settings: str, **options: Any) -> Any:
    return train(TrainConfig().override([*SMALL, *settings]), folder, accelerator="cpu", **options)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _same(one: Path, two: Path) -> bool:
    a, b = _weights(one), _weights(two)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def _run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, check=check, timeout=SECONDS)


def _sets(*settings: str) -> list[str]:
    return [part for s in (*SMALL, *settings) for part in ("--set", s)]


@pytest.mark.parametrize("method", ["cross_entropy", "mr2"])
def test_a_run_is_deterministic_and_writes_what_audit_reads(tmp_path: Path, method: str) -> None:
    one = _fit(tmp_path / "a", f"method={method}")
    _fit(tmp_path / "b", f"method={method}")
    _fit(tmp_path / "c", f"method={method}", "seed=1")
    assert _same(tmp_path / "a", tmp_path / "b")
    assert not _same(tmp_path / "a", tmp_path / "c")
    assert (one.test.y_pred == one.test.y_true).mean() > 0.3
    with np.load(tmp_path / "a" / "predictions_test.npz") as saved:
        np.testing.assert_allclose(
            saved["features"] @ saved["weight"].T + saved["bias"], saved["scores"], rtol=1e-4, atol=1e-4
        )
        assert saved["train_counts"].tolist() == [13] * 10
        assert saved["class_names"].tolist() == [str(k) for k in range(10)]
    assert (tmp_path / "a" / "predictions_val.npz").exists()
    last = one.history[-1]
    assert [r["epoch"] for r in one.history] == [0, 1, 2]
    assert len(last["val"]["per_class"]) == len(last["spread"]["per_class"]) == 10
    assert last["val"]["easy"] >= last["val"]["hard"]
    assert last["train"]["loss"] < one.history[0]["train"]["loss"]
    assert {"easy", "medium", "hard"} < last["spread"].keys()


@pytest.fixture
def double() -> Iterator[None]:
    """Everything in double precision, also what Fabric returns from a model, which it casts to the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("model", ["mlp-16", "resnet20"])
def test_the_loop_equals_a_dozen_plain_lines(tmp_path: Path, model: str) -> None:
    """In double precision, where this is well conditioned.

    Six steps magnify a perturbation of the weights about 20 times until it switches a rectifier on or off. The rounding
    errors of single precision, which differ between processors, are large enough to do that; those of double precision
    are not.
    """
    from classgap.data import load_data, shuffled
    from classgap.models import build_model

    settings = ("epochs=2", "data.per_class=6", "channels_last=false", "optim.nesterov=true", "precision=64-true")
    _fit(tmp_path, f"model={model}", *settings)
    data = load_data("digits", per_class=6)
    mean, std = (255 * torch.tensor(moment) for moment in (data.mean, data.std))
    images = data.train.x.float().sub_(mean).div_(std).double()  # in single precision, as a model gets them
    torch.manual_seed(0)
    net = build_model(model, 10, (1, 8, 8)).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    order = shuffled(60, seed=0)
    for step in range(6):
        rows = order(step // 3)[24 * (step % 3) : 24 * (step % 3 + 1)]
        optimizer.param_groups[0]["lr"] = 0.05 * 0.5 * (1 + np.cos(np.pi * step / 6))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images[rows]), data.train.y[rows]).backward()
        optimizer.step()
    for key, value in net.state_dict().items():
        torch.testing.assert_close(_weights(tmp_path)[key], value, rtol=1e-7, atol=1e-9)


def test_model_file_is_that_of_the_plain_model(tmp_path: Path) -> None:
    from classgap.models import build_model

    _fit(tmp_path, "epochs=1")
    plain = build_model("mlp-16", 10, (1, 8, 8))
    assert _weights(tmp_path).keys() == plain.state_dict().keys()
    plain.load_state_dict(_weights(tmp_path))  # strict: also the shapes agree


def test_accumulated_pieces_equal_the_whole_batch(tmp_path: Path) -> None:
    settings = ("method=cross_entropy", "optim.clip=0.5", "precision=64-true")
    _fit(tmp_path / "whole", *settings)
    _fit(tmp_path / "pieces", *settings, "optim.accumulate=5")
    for key, value in _weights(tmp_path / "whole").items():
        torch.testing.assert_close(_weights(tmp_path / "pieces")[key], value, rtol=1e-4, atol=1e-6)


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    free = _fit(tmp_path / "free", "epochs=1")
    held = _fit(tmp_path / "held", "epochs=1", "optim.clip=0.001")
    assert held.history[0]["train"]["loss"] > free.history[0]["train"]["loss"]


@pytest.mark.parametrize(
    "settings",
    [
        ["optim=adamw", "optim.lr=0.001"],
        ["schedule=step", "schedule.milestones=1,2", "schedule.warmup=0.5"],
        pytest.param(["precision=bf16-mixed", "method=mr2"], marks=pytest.mark.bf16),
        ["model=resnet20", "data.per_class=4", "epochs=1", "data.augment=crop,flip,cutout"],
        ["model.head=cosine", "data.val_fraction=0"],
        ["data.profile=exponential", "data.per_class=40", "data.imbalance=10", "method=mr2"],
    ],
    ids=lambda s: s[0],
)
def test_settings_train(tmp_path: Path, settings: list[str]) -> None:
    result = _fit(tmp_path, *settings)
    assert np.isfinite(result.test.scores).all()
    assert (result.val is None) == ("data.val_fraction=0" in settings)
    assert (result.test.bias is None) == ("model.head=cosine" in settings)


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", ["cross_entropy", "mr2"])
@pytest.mark.parametrize("stop", [3, 6, 8, 16])  # in mid-epoch, at its end, after a mid-epoch checkpoint, near the end
def test_a_run_cut_off_continues_bit_for_bit(tmp_path: Path, method: str, stop: int) -> None:
    settings = (f"method={method}", "checkpoint_steps=2", "model=resnet20", "data.per_class=6", "batch=10")

    def cut(position: TrainProgress) -> None:
        if position.step == stop:
            raise Killed

    with pytest.raises(Killed):
        _fit(tmp_path / "cut", *settings, watch=cut)
    resumed = _fit(tmp_path / "cut", *settings, resume=True)
    whole = _fit(tmp_path / "whole", *settings)
    assert _same(tmp_path / "cut", tmp_path / "whole")
    for one, two in zip(resumed.history, whole.history, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_resume_after_kill_9_is_bit_identical(tmp_path: Path) -> None:
    settings = _sets("epochs=4000", "checkpoint_steps=3", "method=mr2")
    with started([*CLI, *settings, "--out", str(tmp_path / "killed")]) as process:
        log = tmp_path / "killed" / "log.jsonl"
        wait_until(lambda: log.exists() and len(log.read_bytes().splitlines()) >= 5, process)
        process.kill()
    saved = torch.load(tmp_path / "killed" / "checkpoint.pt", weights_only=True)
    reached = saved["position"]["epoch"]
    assert reached >= 4

    def stop_there(position: TrainProgress) -> None:
        if position.epoch == reached + 2:
            raise Killed

    config = TrainConfig().override([s for s in settings if s != "--set"])
    for folder, resume in (("killed", True), ("whole", False)):
        with pytest.raises(Killed):
            train(config, tmp_path / folder, resume=resume, accelerator="cpu", watch=stop_there)
    one, two = (torch.load(tmp_path / f / "checkpoint.pt", weights_only=True) for f in ("killed", "whole"))
    assert one["position"] == two["position"] == {"epoch": reached + 2, "step": 0}
    for part in ("model", "criterion"):
        assert one[part].keys() == two[part].keys()
        assert all(torch.equal(one[part][k], two[part][k]) for k in one[part])
    assert str(one["optimizer"]) == str(two["optimizer"])
    epochs = [json.loads(line)["epoch"] for line in log.read_text().splitlines()]
    assert epochs == list(range(reached + 2))


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """130 samples in batches of 23: shares of 12 and 11, and a last batch of 15 in 8 and 7."""
    settings = _sets("batch=23", "optim.accumulate=2", "optim.clip=0.5", "precision=64-true")
    one = train(TrainConfig().override([s for s in settings if s != "--set"]), tmp_path / "one", accelerator="cpu")
    done = _run(*settings, "--out", str(tmp_path / "two"), "--devices", "2", "--accelerator", "cpu")
    assert done.stdout.count("overall") == 1  # only the first process talks
    for key, value in _weights(tmp_path / "one").items():
        torch.testing.assert_close(_weights(tmp_path / "two")[key], value, rtol=1e-4, atol=1e-6)
    records = [json.loads(line) for line in (tmp_path / "two" / "log.jsonl").read_text().splitlines()]
    for mine, theirs in zip(one.history, records, strict=True):
        assert theirs["train"] == pytest.approx(mine["train"], rel=1e-4)
        assert theirs["val"]["per_class"] == mine["val"]["per_class"]


def test_a_damaged_checkpoint_is_left_alone(tmp_path: Path) -> None:
    _fit(tmp_path)
    checkpoint = tmp_path / "checkpoint.pt"
    whole = checkpoint.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a checkpoint"):
        checkpoint.write_bytes(damaged)
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        with pytest.raises(InputError, match="damaged or half-written"):
            _fit(tmp_path, resume=True)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    torch.save({"model": {}}, checkpoint)
    with pytest.raises(InputError, match="not a checkpoint of `classgap train`"):
        _fit(tmp_path, resume=True)


@pytest.mark.parametrize("stage", [[], ["stage=gap_dial", "stage.strength=1", "stage.ridge=1"]])
def test_settings_that_could_not_work_do_not_block_the_folder(tmp_path: Path, stage: list[str]) -> None:
    with pytest.raises(InputError, match=r"schedule\.warmup_steps=99 must be less than the \d+ steps"):
        _fit(tmp_path, *stage, "schedule.warmup_steps=99")
    found = _fit(tmp_path, *stage, "schedule.warmup_steps=2")
    assert found.config.schedule.warmup_steps == 2
    assert json.loads((tmp_path / "run.json").read_text())["config"]["schedule"]["warmup_steps"] == 2


def test_a_finished_or_foreign_run_is_not_overwritten(tmp_path: Path) -> None:
    _fit(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="already holds a run; continue it with --resume"):
        _fit(tmp_path)
    with pytest.raises(InputError, match=r"other settings \(optim\.lr: 0\.05 → 0\.2\)"):
        _fit(tmp_path, "optim.lr=0.2", resume=True)
    _fit(tmp_path, resume=True)  # nothing left to do
    assert (tmp_path / "model.safetensors").read_bytes() == before
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="is not the description of a run"):
        _fit(tmp_path, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        _fit(tmp_path / "file")


def test_other_data_under_the_same_name_are_noticed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "d.npz"
    arrays = {"x_train": rng.normal(size=(40, 5)), "y_train": np.arange(40) % 4}
    arrays |= {"x_test": rng.normal(size=(8, 5)), "y_test": np.arange(8) % 4}
    np.savez(path, **arrays)
    settings = (f"data=npz:{path}", "data.per_class=none")
    _fit(tmp_path / "run", *settings)
    np.savez(path, **{**arrays, "y_train": arrays["y_train"][::-1]})
    with pytest.raises(InputError, match="made on other data"):
        _fit(tmp_path / "run", *settings, resume=True)


def test_a_diverging_run_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not finite in epoch \d.*lower optim\.lr"):
        _fit(tmp_path, "optim.lr=1e30", "checkpoint_steps=1")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert np.isfinite(list(saved["meter"]["losses"].values())).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"devices": "zero"}, "cannot be combined"), ({"strategy": "dpd"}, "did you mean 'ddp'")],
    ids=["devices", "strategy"],
)
def test_devices_that_do_not_exist(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _fit(tmp_path / "run", **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method=mr3"], "did you mean 'mr2'"),
        (["method=mr2", "method.lambd=1"], "parameter of mr2 'lambd'"),
        (["model=resnet33"], "did you mean 'resnet32'"),
        (["data=digit"], "did you mean 'digits'"),
        (["data.augment=crap"], "did you mean 'crop'"),
        (["data.per_class=400"], r"lower data\.per_class"),
    ],
)
def test_bad_names_cost_nothing(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _fit(tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_learns_is_trained_and_resumed(tmp_path: Path) -> None:
    from classgap import registry
    from classgap.losses import ClassLoss, LossBatch

    class Learned(ClassLoss):
        def __init__(self, num_classes: int) -> None:
            super().__init__(num_classes)
            self.log_scale = torch.nn.Parameter(torch.zeros(()))

        def per_sample(self, batch: LossBatch) -> torch.Tensor:
            logits = batch.logits * self.log_scale.exp()
            return torch.nn.functional.cross_entropy(logits, batch.target, reduction="none")

    registry.method("learned_scale_for_tests", kind="loss", family="test", paper="—")(Learned)
    try:
        _fit(tmp_path, "method=learned_scale_for_tests")
        saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        assert saved["criterion"]["log_scale"] != 0
    finally:
        del registry._METHODS["loss", "learned_scale_for_tests"]


def test_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from classgap.cli.app import app

    recipe = tmp_path / "small.py"
    recipe.write_text(
        "from classgap.training import TrainConfig\n"
        "def config(quick=False):\n"
        "    return TrainConfig(epochs=1 if quick else 99).override(['data.per_class=13', 'model=mlp-16'])\n"
    )
    out = str(tmp_path / "run")
    done = CliRunner().invoke(app, ["train", str(recipe), "--quick", "--set", "seed=3", "--out", out])
    assert done.exit_code == 0, done.output
    assert "epoch 1/1" in done.output
    assert "hard" in done.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["seed"] == 3
    again = CliRunner().invoke(app, ["train", "--resume", "--out", out])  # the folder says what to do
    assert again.exit_code == 0, again.output
    assert "overall" in again.output


def test_two_classes_have_no_medium_third(tmp_path: Path) -> None:
    """NumPy warned of an empty mean in every epoch, and the last lines had a medium accuracy of nan %."""
    from typer.testing import CliRunner

    from classgap.cli.app import app

    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    np.savez(tmp_path / "two.npz", x_train=x + y[:, None], y_train=y, x_test=x + y[:, None], y_test=y)
    words = [f"--set=data={tmp_path / 'two.npz'}", "--set=epochs=1", "--accelerator=cpu", f"--out={tmp_path / 'run'}"]
    result = CliRunner().invoke(app, ["train", *words], catch_exceptions=False)
    assert result.exit_code == 0
    assert "hard" in result.output
    assert "medium" not in result.output
    assert "nan" not in result.output


def test_a_bad_setting_is_one_sentence_and_exit_code_2() -> None:
    failed = _run("--set", "seeed=3", check=False)
    assert failed.returncode == 2
    assert len(failed.stderr.strip().splitlines()) == 1
    assert "did you mean 'seed'" in failed.stderr
    missing = _run("--resume", "--out", "no/such/run", check=False)
    assert missing.returncode == 2
    assert "there is no run in no/such/run" in missing.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "epochs=1", "batch=8"], "every setting needs its own --set: write --set batch=8"),
        (["epochs=1", "batch=8"], "write --set epochs=1 --set batch=8"),
        (["one.py", "two.py"], "train takes one recipe, got one.py, two.py"),
    ],
)
def test_words_without_an_option_are_explained(words: list[str], message: str) -> None:
    from typer.testing import CliRunner

    from classgap.cli.app import app

    done = CliRunner().invoke(app, ["train", *words])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_recipes_that_cannot_be_used(tmp_path: Path) -> None:
    from classgap.training.recipes import load_recipe

    with pytest.raises(InputError, match="unknown recipe 'nowhere'"):
        load_recipe("nowhere")
    bad = tmp_path / "bad.py"
    bad.write_text("x = 1\n")
    with pytest.raises(InputError, match=r"must define config\(quick=False\)"):
        load_recipe(str(bad))
    bad.write_text("def config(quick=False):\n    return {}\n")
    with pytest.raises(InputError, match="must return a TrainConfig, got dict"):
        load_recipe(str(bad))
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(InputError, match=r"ending in \.py"):
        load_recipe(str(tmp_path / "text.txt"))
