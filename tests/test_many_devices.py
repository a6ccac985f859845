"""Many devices: three processes and two machines against one process, signals, lost processes, other numbers of processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer
from lightning_fabric.plugins.environments.lightning import find_free_network_port
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from rich.console import Console

import device_workers
from classgap.checks import InputError
from classgap.cli.train import _ending_well
from classgap.training import TrainConfig, TrainProgress, train
from classgap.training.interruption import RunInterrupted, noting_signals
from classgap.training.lock import lock_folder
from classgap.training.loop import Trainer
from classgap.training.processes import LostProcessError, resolve_size, starting_together
from waiting import LOOPBACK, SECONDS, started, wait_until

SMALL = ["epochs=2", "data.per_class=12", "batch=32", "model=mlp-8", "method=mr2"]
COMMAND = [sys.executable, "-m", "classgap", "train", "--accelerator", "cpu"]
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK}


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def cut_off(config: TrainConfig, folder: Path, checkpoints: int) -> None:
    """A run that ends after some checkpoints."""
    save, left = Trainer.save, [checkpoints]

    def save_some(trainer: Trainer) -> None:
        save(trainer)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "save", save_some)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder, accelerator="cpu")


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, log and predictions, up to the order of sums."""
    a, b = (np.load(folder / "predictions_test.npz") for folder in (one, other))
    np.testing.assert_allclose(a["scores"], b["scores"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(a["y_true"], b["y_true"])
    logs = [[json.loads(line) for line in (f / "log.jsonl").read_text().splitlines()] for f in (one, other)]
    for mine, theirs in zip(*logs, strict=True):
        assert theirs["train"] == pytest.approx(mine["train"], rel=1e-4)
        assert theirs["val"]["per_class"] == mine["val"]["per_class"]
        assert theirs["spread"]["per_class"] == pytest.approx(mine["spread"]["per_class"], rel=1e-4)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three processes, one of them begun by a single process."""
    folder = tmp_path_factory.mktemp("three")
    cut_off(device_workers.config("mr2"), folder / "began", 1)
    mp.spawn(device_workers.worker, args=(str(folder), find_free_network_port()), nprocs=3, join=True)
    return folder


@pytest.mark.parametrize("name", device_workers.CASES)
def test_three_processes_equal_one(three: Path, tmp_path: Path, name: str) -> None:
    """Gradients, class statistics, samplers, metrics and results, with a last batch that one process has alone."""
    train(device_workers.config(name), tmp_path, accelerator="cpu")
    assert_same_run(tmp_path, three / name)


def test_three_processes_finish_what_one_began(three: Path) -> None:
    assert_same_run(three / "mr2", three / "began")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["method=eql", 'method.class_counts="train"'], "draws random numbers"),
        (["optim.accumulate=2"], "optim.accumulate cuts"),
    ],
)
def test_another_number_of_processes_is_refused_where_it_changes_the_result(
    tmp_path: Path, settings: list[str], reason: str
) -> None:
    config = TrainConfig().override([*SMALL, *settings])
    cut_off(config, tmp_path, 1)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    state["rng"] = state["rng"].repeat(2, 1)
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match=rf"made by 2 processes, now there are 1, .*{reason}.*--devices 2"):
        train(config, tmp_path, accelerator="cpu", resume=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("step", [2, 3])  # in the middle and at the end of an epoch
def test_a_signal_stops_a_run_after_a_checkpoint(tmp_path: Path, number: signal.Signals, step: int) -> None:
    config = TrainConfig().override([*SMALL, "seed=3"])

    def watch(progress: TrainProgress) -> None:
        if progress.step == step and progress.record is None and not progress.note:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with noting_signals(), pytest.raises(RunInterrupted, match=number.name):
        train(config, tmp_path / "stopped", accelerator="cpu", watch=watch)
    assert signal.getsignal(number) == before
    saved = torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)
    assert saved["position"] == {2: {"epoch": 0, "step": 3}, 3: {"epoch": 1, "step": 0}}[step]
    train(config, tmp_path / "stopped", accelerator="cpu", resume=True)
    train(config, tmp_path / "whole", accelerator="cpu")
    for name in ("model.safetensors", "predictions_test.npz"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A command that notes how it was called, as on a machine with SLURM."""
    command, noted = tmp_path / "scontrol", tmp_path / "noted"
    command.write_text(f'#!/bin/sh\necho "$@" > {noted}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    return noted


@pytest.mark.parametrize(("number", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_warned_slurm_job_is_queued_again(
    scontrol: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, requeued: bool
) -> None:
    with pytest.raises(typer.Exit) as ended, _ending_well(Console(width=500), tmp_path / "run"):
        raise RunInterrupted(number)
    assert ended.value.exit_code == 128 + number
    said = capsys.readouterr().out
    assert f"stopped by {number.name} after a checkpoint was saved" in said
    assert ("SLURM job 77 is in the queue again" in said) == requeued
    assert scontrol.exists() == requeued
    if requeued:
        assert scontrol.read_text().strip() == "requeue 77"


def test_several_machines_need_a_launcher(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nodes=2 needs one start on every machine.*MASTER_ADDR"):
        train(TrainConfig().override(SMALL), tmp_path, nodes=2)


def run(command: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT | options.get("env", {})
    )


@pytest.mark.slow
def test_two_machines_equal_one_process(tmp_path: Path) -> None:
    """Two launchers on loopback, with one and one process, and with torchrun."""
    settings = words([*device_workers.BASE, *device_workers.CASES["mr2"]])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
    command = [*COMMAND, *settings, "--out", str(tmp_path / "nodes"), "--nodes", "2", "--devices", "2"]
    launchers = [run(command, env={**shared, "NODE_RANK": str(rank)}) for rank in range(2)]
    said = [launcher.communicate(timeout=SECONDS) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert [out.count("overall") for out, _ in said] == [1, 0]
    port = find_free_network_port()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    train_words = ["-m", "classgap", "train", "--accelerator", "cpu", *settings, "--out", str(tmp_path / "torchrun")]
    launchers = [run([*torchrun, "--node-rank", str(rank), *train_words]) for rank in range(2)]
    said = [launcher.communicate(timeout=SECONDS) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    train(device_workers.config("mr2"), tmp_path / "one", accelerator="cpu")
    assert_same_run(tmp_path / "one", tmp_path / "nodes")
    assert_same_run(tmp_path / "one", tmp_path / "torchrun")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_waits_for_the_first_one_ends_with_it() -> None:
    """It waited for half an hour: nothing connects two processes before they have found each other."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        with starting_together():
            if os.fork() == 0:
                sys.stderr = os.fdopen(write, "w")
                with starting_together():
                    time.sleep(60)
        os._exit(0)
    os.close(write)
    os.waitpid(first, 0)
    with open(read, "rb") as stream:
        assert b"another process of this run has ended before training began" in stream.read()
    assert "CLASSGAP_FIRST_PROCESS" not in os.environ


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_first_process_ends_with_one_that_it_waits_for() -> None:
    """Fabric killed it without a word."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        os.dup2(write, 2)
        sys.stderr = os.fdopen(2, "w")
        with starting_together(), subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as child:
            _ChildProcessObserver(os.getpid(), [child], sleep_period=0).start()
            time.sleep(60)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as stream:
        assert (
            stream.read().count(b"another process of this run has ended before training began; start the run again")
            == 1
        )
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_never_comes_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of SLURM that dies before the processes have found each other left the others waiting for half an hour."""
    monkeypatch.setenv("CLASSGAP_START_SECONDS", "0.5")
    port, (read, write) = find_free_network_port(), os.pipe()
    waiting = os.fork()
    if waiting == 0:
        os.dup2(write, 2)
        sys.stderr = os.fdopen(2, "w")
        with contextlib.suppress(Exception), starting_together():
            address = f"tcp://127.0.0.1:{port}"
            dist.init_process_group("gloo", address, timeout=timedelta(seconds=60), world_size=2, rank=0)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as stream:
        assert b"not all processes of this run have started within 0.5 seconds" in stream.read()
    assert os.waitstatus_to_exitcode(os.waitpid(waiting, 0)[1]) == 2


@pytest.mark.parametrize("text", ["soon", "0", "nan"])
def test_the_time_to_start_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CLASSGAP_START_SECONDS", text)
    with pytest.raises(InputError, match="CLASSGAP_START_SECONDS must be a"):
        train(TrainConfig().override(SMALL), tmp_path, accelerator="cpu")


def test_one_of_the_processes_that_are_left_tells_it(tmp_path: Path) -> None:
    lost = [LostProcessError("another process has ended", tmp_path) for _ in range(3)]
    assert [error.is_first() for error in lost] == [True, False, False]
    lock_folder(tmp_path).release()  # the next start
    assert lost[0].is_first()
    assert all(LostProcessError("before there is a folder", None).is_first() for _ in range(2))


def slurm(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in {"JOB_NAME": "train", "NNODES": "2", "NTASKS": "4", "NTASKS_PER_NODE": "2", **variables}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_a_slurm_job_without_srun_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the other tasks, which nobody starts."""
    slurm(monkeypatch)
    with pytest.raises(InputError, match=r"this SLURM job has 4 tasks, but the command was started once; write srun"):
        resolve_size(None, None)


def test_srun_says_how_many_processes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(monkeypatch, STEP_ID="0")
    assert resolve_size(None, None) == resolve_size("auto", 2) == resolve_size("2", None) == (2, 2)
    with pytest.raises(InputError, match=r"has started 2 processes on each of 2 machines, but devices=8 and nodes=2"):
        resolve_size(8, None)


def test_a_machine_with_srun_gets_no_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert resolve_size(None, None) == (1, 1)
    train(TrainConfig().override([*SMALL, "epochs=1"]), tmp_path / "run", accelerator="cpu")  # warnings are errors


@pytest.mark.slow
def test_a_problem_of_all_processes_is_told_once(tmp_path: Path) -> None:
    done = run([*COMMAND, "--set", "data=nowhere/", "--devices", "2", "--out", str(tmp_path / "run")])
    out, err = done.communicate(timeout=SECONDS)
    assert done.returncode == 2, out
    assert err.count("classgap: ") == 1, err
    assert "nowhere" in err


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "training"])
@pytest.mark.parametrize("victim", ["first", "second"])
def test_a_killed_process_ends_the_run_with_a_sentence(tmp_path: Path, victim: str, moment: str) -> None:
    settings = words([*SMALL, "epochs=100000"])
    command = [*COMMAND, *settings, "--out", str(tmp_path / "run"), "--devices", "2"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as first:
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        if not children.exists():
            pytest.skip("needs a system that lists the children of a process")
        if moment == "training":
            wait_until((tmp_path / "run" / "checkpoint.pt").exists, first)
        wait_until(children.read_text, first)
        second = int(children.read_text().split()[0])
        os.kill(first.pid if victim == "first" else second, signal.SIGKILL)
        out, err = first.communicate(timeout=SECONDS)  # both share the streams, so both have ended
    assert "Traceback" not in err, err
    assert err.count("another process of this run has ended") == 1, err
    assert ("--resume --out" if moment == "training" else "same command and --resume") in err
    assert first.returncode == (-signal.SIGKILL if victim == "first" else 2), out
