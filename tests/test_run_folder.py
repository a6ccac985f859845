"""The folder of a run: what crashes, damage and a second process may do to it, and what a user is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classgap.checks import InputError
from classgap.training import TrainConfig, train
from classgap.training.checkpoint import check_groups
from classgap.training.epoch import read_log
from classgap.training.lock import lock_folder
from classgap.training.loop import Trainer
from waiting import SECONDS

SMALL = ["epochs=2", "data.per_class=12", "batch=32", "model=mlp-8", "method=mr2"]
CONFIG = TrainConfig().override(SMALL)


def fit(folder: Path, **options: Any) -> None:
    train(CONFIG, folder, accelerator="cpu", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    fit(folder)
    return folder


def copied(whole: Path, folder: Path) -> Path:
    """A run without results, to be resumed."""
    folder.mkdir()
    for name in ("run.json", "log.jsonl", "checkpoint.pt"):
        (folder / name).write_bytes((whole / name).read_bytes())
    return folder


def test_killed_between_the_first_log_line_and_the_first_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(trainer: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path)
    assert len(read_log(tmp_path / "log.jsonl")) == 1
    fit(tmp_path, resume=True)
    assert [record["epoch"] for record in read_log(tmp_path / "log.jsonl")] == [0, 1]
    assert (tmp_path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("torn", [b'{"epoch": 2, "lr"', b'{"epoch": 2}', b'{"epoch": 2, "x": "\xc3'])
def test_a_torn_last_line_of_the_log_is_left_out(whole: Path, tmp_path: Path, torn: bytes) -> None:
    run = copied(whole, tmp_path / "run")
    with (run / "log.jsonl").open("ab") as handle:
        handle.write(torn)
    fit(run, resume=True)
    assert [record["epoch"] for record in read_log(run / "log.jsonl")] == [0, 1]


def test_a_log_that_is_none_gets_a_sentence(whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path / "run")
    (run / "log.jsonl").write_text("[1]\n\x00\n")
    with pytest.raises(InputError, match=r"log.jsonl is not the log of a run"):
        fit(run, resume=True)


def test_two_processes_do_not_train_in_one_folder(whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path / "run")
    before = (run / "log.jsonl").read_bytes()
    code = (
        "import sys; from pathlib import Path; from classgap.training.lock import lock_folder\n"
        "from classgap.checks import InputError\n"
        "try: lock_folder(Path(sys.argv[1]), wait=0.1)\n"
        "except InputError as error: print(error)"
    )
    lock = lock_folder(run)
    try:
        other = subprocess.run(
            [sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        assert f"another process is training in {run}" in other.stdout
        fit(run, resume=True)  # the same process may
    finally:
        lock.release()
    assert (run / "log.jsonl").read_bytes() == before


def test_leftovers_of_killed_writers_are_removed(whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path / "run")
    (run / "first").mkdir()
    for place in (run / ".classgap-1234.npz", run / "first" / ".classgap-77.json"):
        place.write_text("half")
    fit(run, resume=True)
    assert not list(run.rglob(".classgap-*"))
    assert not list(run.rglob("*.tmp"))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_flipped_bit_in_a_checkpoint_is_noticed(whole: Path, tmp_path: Path, share: float) -> None:
    run = copied(whole, tmp_path / "run")
    content = bytearray((run / "checkpoint.pt").read_bytes())
    records = content.find(b"PK\x01\x02")  # the data of all parts come before the directory
    content[int(share * records)] ^= 1
    (run / "checkpoint.pt").write_bytes(content)

    try:
        fit(run, resume=True)
    except InputError as error:
        assert "damaged or half-written" in str(error)  # noqa: PT017
    else:  # between two parts there are bytes that mean nothing
        assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("meter"), "lacks meter"),
        (lambda state: state.pop("rng"), "lacks rng"),
        (lambda state: state["model"].popitem(), "does not fit this run"),
        (
            lambda state: state["model"].update(dict.fromkeys(state["model"], torch.zeros(3, 3))),
            "does not fit this run",
        ),
        (lambda state: state["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(2, 2)), "has shape"),
        (lambda state: state["optimizer"]["state"][0].pop("momentum_buffer"), "different state for some"),
        (lambda state: state["optimizer"]["state"][0].update(momentum_buffer="x"), "different state for some"),
        (lambda state: state["optimizer"]["param_groups"][0].update(momentum=0.1), "momentum of the optimiser is 0.1"),
        (lambda state: state["optimizer"].pop("param_groups"), "does not fit this run"),
        (lambda state: state["model"].update({k: v.double() for k, v in state["model"].items()}), "is of type"),
        (
            lambda state: state["meter"].update(moments=torch.full_like(state["meter"]["moments"], torch.nan)),
            "no numbers",
        ),
        (lambda state: state.update(position={"epoch": 0.5, "step": 0}), "its epoch must be a whole number"),
        (lambda state: state["criterion"].update({"moments.sums": torch.zeros(1)}), "does not fit this run"),
        (lambda state: state.update(position={}), "does not fit this run"),
        (lambda state: state.update(position={"epoch": 99, "step": 0}), "position"),
        (lambda state: state.update(meter={}), "does not fit this run"),
        (lambda state: state.update(rng=torch.zeros(1, 3, dtype=torch.uint8)), "does not fit this run"),
    ],
)
def test_checkpoints_that_do_not_fit_get_a_sentence(whole: Path, tmp_path: Path, change: Any, message: str) -> None:
    run = copied(whole, tmp_path / "run")
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    change(state)
    torch.save(state, run / "checkpoint.pt")
    with pytest.raises(InputError, match=message):
        fit(run, resume=True)


def test_weights_that_are_no_numbers_give_no_results(whole: Path, tmp_path: Path) -> None:
    """The predictions of a finished run were written with scores of nan."""
    run = copied(whole, tmp_path / "run")
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    for weight in state["model"].values():
        weight.mul_(torch.nan)
    torch.save(state, run / "checkpoint.pt")
    with pytest.raises(InputError, match="scores that are nan or infinite"):
        fit(run, resume=True)
    assert not (run / "model.safetensors").exists()


def test_checkpoints_do_not_pass_through_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    fit(tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("setting", ["seed=4294967296", "data.seed=99999999999999999999", "seed=-1"])
def test_seeds_out_of_range(setting: str) -> None:
    with pytest.raises(InputError, match="seed must be"):
        TrainConfig().override([setting])


def test_a_full_disk_keeps_the_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    """A limit of the file size stands for a full disk."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from classgap.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "sys.argv = ['classgap', *sys.argv[1:]]; main()"
    )
    words = [word for setting in [*SMALL, "model=mlp-256"] for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *words, "--out", str(tmp_path / "run"), "--accelerator", "cpu"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "checkpoint.pt" in done.stderr
    assert not list((tmp_path / "run").glob("*.tmp"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())


def test_settings_of_an_optimiser_may_come_back_as_lists() -> None:
    """As torch returns them where weights are divided between processes; the values must be those of the run."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], betas=(0.8, 0.99))
    before = [dict(group) for group in optimizer.param_groups]
    optimizer.param_groups[0]["betas"] = [0.8, 0.99]
    check_groups(optimizer, before)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    optimizer.param_groups[0]["betas"] = [0.9, 0.99]
    with pytest.raises(ValueError, match="betas of the optimiser is"):
        check_groups(optimizer, before)


def test_a_changed_data_file_is_not_resumed(tmp_path: Path) -> None:
    """Other pixels or class names with the same labels went on as if nothing had happened."""
    rng = np.random.default_rng(0)
    arrays = {f"{kind}_{part}": rng.integers(0, 3, 30) for part in ("train", "test") for kind in "xy"}
    arrays |= {part: rng.integers(0, 255, (30, 4, 4)).astype(np.uint8) for part in ("x_train", "x_test")}
    names = {"class_names": np.array(["a", "b", "c"])}
    settings = [f"data={tmp_path / 'data.npz'}", "epochs=1", "model=mlp-8", "batch=10"]
    np.savez(tmp_path / "data.npz", **arrays, **names)
    train(folder=tmp_path / "run", settings=settings)
    changes = [{part: 255 - arrays[part]} for part in ("x_train", "x_test")]
    for change in (*changes, {"class_names": np.array(["b", "a", "c"])}):
        np.savez(tmp_path / "data.npz", **{**arrays, **names, **change})
        with pytest.raises(InputError, match="samples or class names have changed"):
            train(folder=tmp_path / "run", settings=settings, resume=True)
    np.savez(tmp_path / "data.npz", **arrays, **names)
    train(folder=tmp_path / "run", settings=settings, resume=True)


def test_a_teacher_that_was_trained_anew_is_not_taken_for_the_first(tmp_path: Path) -> None:
    settings = ["epochs=1", "data.per_class=12", "batch=32", "model=mlp-8"]
    train(folder=tmp_path / "teacher", settings=settings)
    taught = [*settings, "method=distillation", f"teacher={tmp_path / 'teacher'}"]
    train(folder=tmp_path / "run", settings=taught)
    train(folder=tmp_path / "run", settings=taught, resume=True)
    shutil.rmtree(tmp_path / "teacher")
    train(folder=tmp_path / "teacher", settings=[*settings, "seed=1"])
    with pytest.raises(InputError, match="was made with another teacher"):
        train(folder=tmp_path / "run", settings=taught, resume=True)
